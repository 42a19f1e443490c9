"""Measure the arm64 kernels without an arm64 machine.

    python -m fastflow.bench.research.arm64 loops --out bench/results/arm64.json
    python -m fastflow.bench.research.arm64 count FOLDER --out bench/results/arm64.json

``loops`` gives the inner loop of each tile to llvm-mca. ``count`` counts the instructions that qemu executes for a call
on one thread, of a random model with the shape of all-MiniLM-L6-v2; as root, in FOLDER, which tests/arm64.sh made.
Instructions are not time. Debian's packages: gcc-aarch64-linux-gnu llvm-22 qemu-user; from PyPI: ziglang.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

FLAGS = ("-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-g0", "-pthread", "-fPIC", "-Ikernels/c")
CLANG = (sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-macos", "-mllvm", "-aarch64-neon-syntax=generic")
COMPILERS = {"gcc": ("aarch64-linux-gnu-gcc",), "clang": CLANG}  # of wheels for Linux, for macOS
SOURCES = {
    "encoder/neon": "neoverse-n1",
    "gemm/neon_dot": "neoverse-n1",
    "gemm/neon_mm": "",
    "gemm/neon_int8": "cortex-a72",
}
PROCESSORS = ("neoverse-v1", "neoverse-n2", "neoverse-v2")  # each runs all sources, except SMULL's
MULTIPLY = re.compile(r"(fmla|sdot|bfmmla|smmla|smull2?)\s")
BRANCH = re.compile(r"(?:b\.?[a-z]{2,3}|cbn?z|tbn?z)\s.*?(\.?L\w+)$")
SHAPES = ((1, 12), (8, 32), (32, 64))  # texts, tokens of each
OLD, NEW = "neoverse-n1", "max,sme=off"  # few processors have SME
RUNS = (  # engine, dtype, instruction set, processor
    ("fastflow", "float32", "portable", OLD),
    *(("fastflow", dtype, "neon", OLD) for dtype in ("float32", "bfloat16", "int8")),
    *(("fastflow", dtype, "neon-mm", NEW) for dtype in ("bfloat16", "int8")),
    *(("onnxruntime", dtype, "", OLD) for dtype in ("float32", "int8")),
    *(("onnxruntime", dtype, "", NEW) for dtype in ("float32", "bfloat16", "int8")),
)
CPU = {"implementer": "0x41", "architecture": "8", "variant": "0x3", "part": "0xd0c", "revision": "1"}  # Neoverse N1
Rows = list[dict[str, Any]]


def run(*command: str, given: str | None = None) -> str:
    """Return what ``command`` prints."""
    return subprocess.run(command, check=True, input=given, stdout=subprocess.PIPE, text=True).stdout


def compile_to_assembly(compiler: str, source: str) -> str:
    """Return the assembly of ``source``."""
    with TemporaryDirectory() as folder:
        run(*COMPILERS[compiler], *FLAGS, "-S", "-o", f"{folder}/made.s", f"kernels/c/{source}.c")
        return Path(folder, "made.s").read_text(encoding="utf-8")


def strip_comments(text: str) -> list[str]:
    """Return the lines of assembly that say something."""
    return [line for line in (re.split(r"//|;|\s@", line)[0].strip() for line in text.splitlines()) if line]


def find_tiles(lines: list[str]) -> dict[str, list[str]]:
    """Return {kind and rows: lines} of the largest tile of each kind, from names such as tile_4_float."""
    found: dict[str, tuple[int, list[str]]] = {}
    for at, line in enumerate(lines):
        if match := re.fullmatch(r"_?tile_(\d+)_(\w+):", line):
            body = lines[at + 1 : lines.index(".cfi_endproc", at)]
            found[match[2]] = max(found.get(match[2], (0, [])), (int(match[1]), body))
    return {f"{kind}, {rows} rows": body for kind, (rows, body) in found.items()}


def find_loop(lines: list[str]) -> list[str]:
    """Return the innermost loop with the most multiply instructions."""
    labels = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
    branches = ((at, match) for at, line in enumerate(lines) if (match := BRANCH.match(line)))
    spans = [(labels[match[1]], at) for at, match in branches if labels.get(match[1], at) < at]
    inner = [(a, b) for a, b in spans if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in spans)]
    loops = [[line for line in lines[a + 1 : b + 1] if not line.startswith(".")] for a, b in inner]
    return max(loops, key=lambda loop: (sum(map(bool, map(MULTIPLY.match, loop))), -len(loop)))


def ask_mca(loop: list[str], processor: str, iterations: int) -> dict[str, Any]:
    """Return llvm-mca's summary of ``iterations`` turns."""
    features = ("-march=aarch64", f"-mcpu={processor}", "-mattr=+dotprod,+bf16,+i8mm")
    text = run("llvm-mca-22", *features, "-json", f"-iterations={iterations}", given="\n".join(loop))
    return dict(json.loads(text)["CodeRegions"][0]["SummaryView"])


def measure_loop(loop: list[str], processor: str) -> dict[str, Any]:
    """Return the cycles of a turn in the steady state, and the least cycles, which its multiply instructions take."""
    multiplies = [line for line in loop if MULTIPLY.match(line)]
    cycles = (ask_mca(loop, processor, 300)["TotalCycles"] - ask_mca(loop, processor, 100)["TotalCycles"]) / 200
    least = ask_mca(multiplies, processor, 1)["BlockRThroughput"]
    figures = {
        "instructions": len(loop),
        "multiplies": len(multiplies),
        "least": round(least, 2),
        "cycles": round(cycles, 2),
    }
    return {"processor": processor, **figures, "percent": round(100 * least / cycles, 1)}


def write(out: Path, name: str, rows: Rows) -> None:
    """Write ``rows`` as ``name`` of a JSON file that keeps its other parts, and print them."""
    from fastflow.bench.report.table import write_json
    from fastflow.bench.research.study import make_table, read

    tools = {**COMPILERS, "llvm-mca": ("llvm-mca-22",), "qemu": ("qemu-aarch64",)}
    versions = {tool: re.findall(r"\d+\.\d+\.\d+", run(*command, "--version"))[0] for tool, command in tools.items()}
    made = {"commit": run("git", "rev-parse", "--short", "HEAD").strip(), "versions": versions, "rows": rows}
    write_json((read(out) if out.exists() else {}) | {name: made}, out)
    print(make_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]))


def make_folder(folder: Path) -> None:
    """Put the model, its ONNX files and the plugin into ``folder``."""
    from fastflow.bench.peers.engines import export_onnx, fuse, quantise
    from fastflow.bench.suites.workbench import open_workbench

    shutil.rmtree(folder, ignore_errors=True)
    with open_workbench(None, shape="minilm-l6") as bench:
        subject = bench.base()
        shutil.copytree(str(subject.model), folder)
        shutil.copy(fuse(subject), folder / "float.onnx")
        shutil.copy(quantise(subject, export_onnx), folder / "int8.onnx")  # 2 % fewer instructions than the fused graph
    plugin = Path(__file__).with_suffix(".c")
    run("gcc", "-O2", "-shared", "-fPIC", str(plugin), "-o", str(folder / "count.so"))
    lines = ("processor\t: 0", *(f"CPU {name}\t: {value}" for name, value in CPU.items()), "")
    (folder / "cpuinfo").write_text("\n".join(lines), encoding="utf-8")  # ONNX Runtime crashes on a cpuinfo of x86
    shutil.copy(__file__, folder)


def emulate(root: Path, engine: str, dtype: str, isa: str, cpu: str) -> tuple[list[int], dict[str, Any]]:
    """Return the instructions of a call for each of SHAPES, and its vectors."""
    places = {"/usr/bin": "mnt", "/sys": "sys", **{name: name[1:] for name in ("/lib64", "/usr/lib/x86_64-linux-gnu")}}
    for place in places.values():
        (root / place).mkdir(exist_ok=True)
    places[f"{root}/count/cpuinfo"] = "proc/cpuinfo"
    mounts = [f"mount --bind {source} {root}/{place}" for source, place in places.items()]  # for this process only
    program = f"/mnt/qemu-aarch64 -cpu {cpu} -plugin /count/count.so /venv/bin/python /count/arm64.py inside"
    started = f"exec env OMP_NUM_THREADS=1 FASTFLOW_ISA={isa} chroot {root} {program} {engine} {dtype}"
    said = run("unshare", "-m", "sh", "-c", " && ".join([*mounts, started]))
    marks = [int(mark) for mark in re.findall(r"^executed (\d+)$", said, re.MULTILINE)]
    with np.load(root / "count/found.npz") as found:
        return [after - before for before, after in pairwise(marks)][::2], dict(found)


def open_fastflow(dtype: str) -> Any:
    """Return a function of ids (B, T) that returns a call."""
    from fastflow.backends.choose import open_backend
    from fastflow.model.artifact import load_model
    from fastflow.model.tokenizer import Tokens

    backend: Any = open_backend(load_model("/count"), "cpu", "cpu", dtype, 1)
    none = np.zeros(0, np.int64)
    return lambda ids: (
        lambda: backend.pool(Tokens(ids.ravel().astype(np.int32), np.arange(len(ids) + 1) * ids.shape[1], none))
    )


def open_onnxruntime(dtype: str) -> Any:
    """Return a function of ids (B, T) that returns a call."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if dtype == "bfloat16":
        options.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", "1")
    session = InferenceSession(f"/count/{'int8' if dtype == 'int8' else 'float'}.onnx", options)
    return lambda ids: lambda: session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]


@click.group(help=__doc__)
def main() -> None:
    """Measure the arm64 kernels."""


@main.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
def loops(out: Path) -> None:
    """Measure the inner loops by llvm-mca."""
    rows: Rows = []
    for source, oldest in SOURCES.items():
        linux = [oldest] if oldest == "cortex-a72" else [*filter(None, [oldest]), *PROCESSORS]
        for compiler, processors in {"gcc": linux, "clang": ["apple-m2"] * (oldest != "cortex-a72")}.items():
            for tile, lines in find_tiles(strip_comments(compile_to_assembly(compiler, source))).items():
                name = {"tile": f"{source.partition('/')[2]} {tile}", "compiler": compiler}
                rows += [name | measure_loop(find_loop(lines), processor) for processor in processors]
    write(out, "loops", rows)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--out", type=click.Path(path_type=Path), required=True)
def count(folder: Path, out: Path) -> None:
    """Count the instructions that qemu executes."""
    root = folder.resolve() / "root"
    make_folder(root / "count")
    rows: Rows = []
    right: dict[str, Any] = {}
    for engine, dtype, isa, cpu in RUNS:
        counted, found = emulate(root, engine, dtype, isa, cpu)
        units = {name: x / np.linalg.norm(x, axis=1)[:, None] for name, x in found.items()}
        row: dict[str, Any] = {"engine": engine, "dtype": dtype, "isa": isa, "processor": cpu}
        row |= {name: round(n / 1e6, 1) for name, n in zip(found, counted, strict=True)}
        row |= {f"ratio of {name}": round(row[name] / (rows[0] if rows else row)[name], 3) for name in found}
        right = right or units
        rows.append(row | {"cosine": round(float(min((units[n] * right[n]).sum(1).min() for n in found)), 5)})
        print(rows[-1], file=sys.stderr, flush=True)
    write(out, "count", rows)


@main.command(hidden=True)
@click.argument("engine")
@click.argument("dtype")
def inside(engine: str, dtype: str) -> None:
    """Embed random ids of each of SHAPES under the emulator."""
    prepare, found = {"fastflow": open_fastflow, "onnxruntime": open_onnxruntime}[engine](dtype), {}
    for batch, tokens in SHAPES:
        ids = np.random.default_rng(tokens).integers(5, 30000, (batch, tokens))
        prepare(ids[:1])()
        call = prepare(ids)
        mark()
        found[f"{batch} x {tokens}"] = call()
        mark()
    np.savez("/count/found.npz", **found)


def mark() -> None:
    """Make the plugin print its count."""
    with suppress(OSError):
        os.sched_get_priority_max(1000)


if __name__ == "__main__":
    main()
