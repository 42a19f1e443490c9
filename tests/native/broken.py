"""Break bodies of C one by one: each must fail a self-test. Run ``python tests/native/broken.py``.

Each change is made in a copy of the sources, which are compiled again; it takes a minute or two. CC names a compiler:
``CC="aarch64-linux-gnu-gcc -static"`` breaks those of arm64, where qemu-aarch64-static runs its programs (binfmt_misc),
with SDOT or, if QEMU_CPU is cortex-a72, without it.
Changes of instruction sets that the program does not find are left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("-O1", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-pthread")
CC = os.environ.get("CC", "gcc").split()
# header, old text, new text, the instruction set that must fail
CHANGES = (
    ("vector_avx512.h", "_mm512_fmadd_ps(a, b, c)", "_mm512_fmsub_ps(a, b, c)", "avx512"),
    ("vector_avx512.h", "_mm512_max_ps(a, b)", "_mm512_min_ps(a, b)", "avx512"),
    ("vector_avx512.h", "_mm512_set_epi32(0, 1, 2,", "_mm512_set_epi32(1, 0, 2,", "avx512"),
    ("vector_avx512.h", "_mm512_div_ps(a, b)", "_mm512_mul_ps(a, _mm512_rcp14_ps(b))", "avx512"),
    ("vector_avx512.h", "_mm512_roundscale_ps(a, 8)", "_mm512_roundscale_ps(a, 24)", "avx512"),
    ("vector_avx512.h", "_mm512_cvtph_ps(", "-_mm512_cvtph_ps(", "avx512"),
    ("vector_avx512.h", "_mm512_slli_epi32(w, 16)", "_mm512_slli_epi32(w, 15)", "avx512"),
    ("gemm/avx512_int8.c", "acc0, y, b0", "acc0, b0, y", "avx512"),
    ("encoder/avx512_vnni.c", "acc0, b0, y", "acc0, y, b0", "avx512"),
    ("encoder/avx512_bf16.c", "acc1, y, b1", "acc1, y, b0", "avx512"),
    ("search/avx512.c", "_mm512_madd_epi16(a, b)", "_mm512_mullo_epi16(a, b)", "avx512"),
    ("vector_avx2.h", "_mm256_fmadd_ps(a, b, c)", "_mm256_fmsub_ps(a, b, c)", "avx2"),
    ("gemm/avx2_int8.c", "_mm256_sign_epi8(w, sign)", "w", "avx2"),
    ("vector_portable.h", "#define SUB(a, b) ((a) - (b))", "#define SUB(a, b) ((b) - (a))", "portable"),
    ("gemm/amx_tiles.inc", "_tile_dpbssd", "_tile_dpbusd", "amx"),
    ("vector_neon.h", "vfmaq_f32(c.q[0]", "vfmsq_f32(c.q[0]", "neon"),
    ("vector_neon.h", "BINARY(MAX, vec, vmaxnmq_f32)", "BINARY(MAX, vec, vminnmq_f32)", "neon"),
    ("vector_neon.h", "vextq_f32(pairs, pairs, 2)", "vextq_f32(pairs, pairs, 1)", "neon"),
    ("vector_neon.h", "vrndnq_f32", "vnegq_f32", "neon"),
    ("vector_neon.h", "vcvt_high_f32_f16(h)", "vcvt_f32_f16(vget_low_f16(h))", "neon"),
    ("vector_neon.h", "(vmovn_s32(v.q[0]), vmovn_s32(v.q[1]))", "(vmovn_s32(v.q[0]), vmovn_s32(v.q[0]))", "neon"),
    ("vector_neon.h", "vzip2q_f32(a.q[1], b.q[1])", "vzip1q_f32(a.q[1], b.q[1])", "neon"),
    ("vector_neon.h", "vfmaq_laneq_f32(acc, w, x, i)", "vfmaq_laneq_f32(acc, w, x, 0)", "neon"),
    ("encoder/neon.c", "odd, x, 2 * (i) + 1", "odd, x, 2 * (i)", "neon"),
    ("gemm/neon_dot.c", "vreinterpretq_s8_s32(x), i)", "vreinterpretq_s8_s32(x), 0)", "sdot"),
    ("gemm/neon_int8.c", "vpadalq_s16(sums[r][2 * v + 1], high)", "vpadalq_s16(sums[r][2 * v + 1], low)", "smull"),
    ("gemm/neon_pairs.inc", "vzip2q_s64(one, two)", "vzip1q_s64(one, two)", "neon-mm"),
    ("gemm/neon_mm.c", "vreinterpretq_bf16_s64(x)", "vreinterpretq_bf16_f32(w)", "neon-mm"),
    ("gemm/neon_mm.c", "vreinterpretq_s8_s64(x)", "vreinterpretq_s8_f32(w)", "neon-mm"),
    ("table/neon.c", "vmovl_high_s16(wide)", "vmovl_s16(vget_low_s16(wide))", "neon"),
    ("search/neon.c", "vmull_high_s8(a, b)", "vmull_high_s8(a, a)", "smull"),
    ("search/neon.c", "vcntq_u8(", "vmvnq_u8(", "neon"),
    ("search/neon_dot.c", ", a, b)", ", a, a)", "sdot"),
)
ASK = """
#include <stdio.h>
#include "selftest/selftest.h"
int main(void)
{
    for (int isa = 0; isa < FF_ISAS; isa++)
        if (ff_isa_present(isa))
            printf("%s %u\\n", ff_isa_name(isa), ff_wrong(isa));
    if (ff_isa_present(FF_NEON))
        printf("%s %u\\n", ff_has_neon_dot() ? "sdot" : "smull", ff_wrong(FF_NEON));
    return 0;
}
"""


def build(folder: Path, made: Path) -> dict[str, int]:
    """Compile missing objects; return each instruction set's failed self-tests."""
    sources = [*sorted(folder.rglob("*.c"))]
    objects = [made / str(path.relative_to(folder)).replace("/", "_") for path in sources]
    for source, to in zip(sources, objects, strict=True):
        if not to.with_suffix(".o").exists():
            subprocess.run([*CC, *FLAGS, f"-I{folder}", "-c", source, "-o", to.with_suffix(".o")], check=True)
    program = made / "ask"
    subprocess.run([*CC, *(to.with_suffix(".o") for to in objects), "-pthread", "-lm", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    return {name: int(wrong) for name, wrong in map(str.split, done.stdout.splitlines())}


def forget(made: Path, folder: Path, header: str) -> None:
    """Remove the objects that include ``header``."""
    kind = header.split("_")[-1].split(".")[0] if header.startswith("vector_") else ""
    for path in made.glob("*.o"):
        if kind in path.name if kind else header.partition("/")[0] in path.name:
            path.unlink()


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder, made = Path(name, "c"), Path(name, "made")
        made.mkdir()
        shutil.copytree(ROOT / "kernels" / "c", folder)
        (folder / "ask.c").write_text(ASK, encoding="utf-8")
        right = build(folder, made)
        print("unchanged:", *right)
        if any(right.values()):
            raise SystemExit("this machine is wrong")
        changes = [change for change in CHANGES if change[3] in right]
        for header, says, instead, isa in changes:
            path = folder / header
            kept = path.read_text(encoding="utf-8")
            if says not in kept:
                raise SystemExit(f"{header} has no {says}: change CHANGES")
            path.write_text(kept.replace(says, instead), encoding="utf-8")
            forget(made, folder, header)
            found = build(folder, made)
            wrong = hex(found[isa]) if isa in found else "refused at its start"
            missed += wrong == "0x0"
            print(f"{'MISSED' if wrong == '0x0' else 'caught'}: {isa}: {says} -> {instead}: {wrong}", flush=True)
            path.write_text(kept, encoding="utf-8")
            forget(made, folder, header)
    print(f"{missed} of {len(changes)} missed")
    return missed


if __name__ == "__main__":
    sys.exit(main())
