"""Break bodies of C one by one: each must fail a self-test. Run ``python tests/native/broken.py``.

Each change is made in a copy of the sources, which are compiled again. Needs gcc and AVX-512; takes a minute or two.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("-O1", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-pthread")
ISAS = {"portable": 0, "avx2": 1, "avx512": 2, "amx": 3}
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
)
ASK = """
#include <stdio.h>
#include "selftest/selftest.h"
int main(void)
{
    for (int isa = 0; isa < FF_ISAS; isa++)
        printf("%u\\n", ff_isa_present(isa) ? ff_wrong(isa) : 1u << 31);
    return 0;
}
"""


def build(folder: Path, made: Path) -> list[int]:
    """Compile missing objects; return each instruction set's failed self-tests, bit 31 if it is absent."""
    sources = [*sorted(folder.rglob("*.c"))]
    objects = [made / str(path.relative_to(folder)).replace("/", "_") for path in sources]
    for source, to in zip(sources, objects, strict=True):
        if not to.with_suffix(".o").exists():
            subprocess.run(["gcc", *FLAGS, f"-I{folder}", "-c", source, "-o", to.with_suffix(".o")], check=True)
    program = made / "ask"
    subprocess.run(["gcc", *(to.with_suffix(".o") for to in objects), "-pthread", "-lm", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


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
        if any(right[: ISAS["amx"]]):
            raise SystemExit("this machine lacks an instruction set, or is wrong")
        for header, says, instead, isa in CHANGES:
            path = folder / header
            kept = path.read_text(encoding="utf-8")
            if says not in kept:
                raise SystemExit(f"{header} has no {says}: change CHANGES")
            path.write_text(kept.replace(says, instead), encoding="utf-8")
            forget(made, folder, header)
            found = build(folder, made)
            caught = found[ISAS[isa]] != 0
            missed += not caught
            print(f"{'caught' if caught else 'MISSED'}: {isa}: {says} -> {instead}: {found[ISAS[isa]]:#x}", flush=True)
            path.write_text(kept, encoding="utf-8")
            forget(made, folder, header)
    print(f"{missed} of {len(CHANGES)} missed")
    return missed


if __name__ == "__main__":
    sys.exit(main())
