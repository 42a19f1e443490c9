"""``fastflow bench --suite``: one run from the options to table and JSON, or every run of RUNS."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastflow import console
from fastflow.bench.measure.machine import Neighbours, add_floors, describe, find_commit, measure_ceilings
from fastflow.bench.measure.row import Results, keeping
from fastflow.bench.report.table import is_busy, make_table, write_json
from fastflow.bench.suites.sizes import FULL, QUICK, Sizes
from fastflow.errors import FastflowError, UsageError, missing_extra

SUITES = {  # suite -> module and function in fastflow.bench.suites
    "flow": ("flow", "run_flow"),
    "encoder": ("encoder", "run_encoder"),
    "end-to-end": ("end_to_end", "run_end_to_end"),
    "startup": ("cold_start", "run_startup"),
    "serve": ("serve", "run_serve"),
    "static": ("static", "run_static"),
    "rerank": ("rerank", "run_rerank"),
    "duplicates": ("duplicates", "run_duplicates"),
}
SHAPED = ("encoder", "end-to-end", "serve", "rerank")  # suites that take --shape
ON_GPU = ("flow", "encoder", "end-to-end")  # other suites measure the CPU
REPEATED = 5  # the flow's short run is repeated, since its ratios vary
FEWEST = 4  # quiet runs that make a range
RANGES = "flow-ranges.json"
COMMAND = "from fastflow.cli import main; main()"  # this fastflow, not another on PATH
RUNS: dict[str, tuple[str, ...]] = {
    "flow": ("--suite", "flow"),
    **{f"flow-{i}": ("--suite", "flow", "--quick", "--against", "lean") for i in range(1, REPEATED + 1)},
    "startup": ("--suite", "startup"),
    "static": ("--suite", "static"),
    "end-to-end-default": ("--suite", "end-to-end", "--model", "default"),
    "end-to-end-minilm-l6": ("--suite", "end-to-end", "--quick", "--shape", "minilm-l6"),
    "end-to-end-bert-base": ("--suite", "end-to-end", "--quick", "--shape", "bert-base"),
    "rerank-minilm-l6": ("--suite", "rerank", "--quick", "--shape", "minilm-l6"),
    "serve-bert-base": ("--suite", "serve", "--shape", "bert-base"),
    "encoder-minilm-l6": ("--suite", "encoder", "--shape", "minilm-l6"),
    "encoder-bert-base": ("--suite", "encoder", "--shape", "bert-base"),
    "duplicates": ("--suite", "duplicates"),
}


def run(
    model: str | None = None,
    suites: Sequence[str] = ("flow",),
    against: Sequence[str] | None = None,
    quick: bool = False,
    json_path: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    sizes: Sizes | None = None,
    shape: str | None = None,
) -> dict[str, Any]:
    """Run ``suites``, print the table, write the files asked for, and return the report.

    ``against``: peers by family or row name, None for all. ``device``: cpu, cuda, or auto (cuda if present).
    ``threads`` None: OMP_NUM_THREADS, else one a core. ``shape``: one of ``workbench.SHAPES`` instead of BERT-base. The
    report is {machine, rows, ratios, subjects, skipped, quick, seconds}. A stopped run leaves rows in
    ``json_path``.part.
    """
    for suite in suites:
        if suite not in SUITES:
            raise UsageError(f"there is no bench suite {suite!r}; suites: {', '.join(SUITES)}")
    if json_path is not None and not Path(json_path).absolute().parent.is_dir():
        raise UsageError(f"{json_path} cannot be written: its folder does not exist; make it first")
    if find_spec("torch") is None:
        raise missing_extra("bench", "torch", "fastflow bench")
    if find_spec("transformers") is None and (rest := [suite for suite in suites if suite != "flow"]):
        raise missing_extra("bench", "transformers", f"fastflow bench --suite {','.join(rest)}")
    if shape is not None:
        _check_shape(shape, model, suites)
    from fastflow.bench.peers.gpu import settings
    from fastflow.kernels.processor import default_threads

    device, sizes = _resolve_device(device), sizes or (QUICK if quick else FULL)
    start, neighbours = time.monotonic(), Neighbours()
    with keeping(Path(f"{json_path}.part") if json_path is not None else None):
        results = run_suites(model, suites, against, sizes, device, threads, shape)
        others = neighbours.processors()
        machine = describe(device) | {"processors_used_by_others": others}
        if not {"flow", "encoder"}.isdisjoint(suites):
            count = threads or default_threads()
            say("measuring the machine's ceilings")
            with settings(count):
                machine["ceilings"] = [measure_ceilings(device, count, *sizes.probe)]
            add_floors(results.rows, machine["ceilings"][0])
        report = {
            "machine": machine, "rows": results.rows, "ratios": results.ratios, "subjects": results.subjects,
            "skipped": results.skipped, "quick": sizes.quick, "seconds": time.monotonic() - start,
        }  # fmt: skip
        print(make_table(report))
        if json_path is not None:
            write_json(report, Path(json_path))
    return report


def run_suites(
    model: str | None,
    suites: Sequence[str],
    against: Sequence[str] | None,
    sizes: Sizes,
    device: str,
    threads: int | None,
    shape: str | None = None,
) -> Results:
    """Run the suites in their order; return the joined results."""
    from fastflow.bench.suites.workbench import SuiteRun, open_workbench
    from fastflow.kernels.processor import default_threads

    every, count = Results(), threads or default_threads()
    with open_workbench(model, sizes.bert, shape) as bench:
        for suite in suites:
            module, function = SUITES[suite]
            request = SuiteRun(bench, against, sizes, count, say, device if suite in ON_GPU else "cpu")
            every.merge(getattr(import_module(f"fastflow.bench.suites.{module}"), function)(request))
    return every


def _check_shape(shape: str, model: str | None, suites: Sequence[str]) -> None:
    from fastflow.bench.suites.workbench import SHAPES

    if shape not in SHAPES:
        raise UsageError(f"there is no shape {shape!r}; shapes: {', '.join(SHAPES)}")
    if model is not None:
        raise UsageError("give a model or a shape, not both: a model has its own")
    if other := [suite for suite in suites if suite not in SHAPED]:
        raise UsageError(f"a shape is for the suites {', '.join(SHAPED)}, not for {', '.join(other)}")


def say(message: str) -> None:
    """Write a line of progress to standard error."""
    console.say(f"bench: {message}")


def _resolve_device(device: str) -> str:
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {device!r}; use auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise FastflowError("device 'cuda': PyTorch finds no CUDA device; usable here: cpu")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def run_every(
    out: Path, skip: Sequence[str] = (), device: str = "auto", threads: int | None = None, runs: Any = None
) -> None:
    """Write ``out``/NAME.json and NAME.txt for each run, and the ranges of the flow's ratios; ``skip``: runs or suites.

    A repeated call keeps the files of its commit, unless changes are uncommitted. Raises a FastflowError at the end
    that names the failed runs.
    """
    runs = runs or RUNS
    wanted = {name: words for name, words in runs.items() if not {name, words[1]} & set(skip)}
    if odd := sorted(set(skip) - set(runs) - {words[1] for words in runs.values()}):
        raise UsageError(f"there is no run {odd[0]!r} to skip; runs: {', '.join(runs)}")
    out.mkdir(parents=True, exist_ok=True)
    here, failed = find_commit(), []
    options = ["--device", device, *([] if threads is None else ["--threads", str(threads)])]
    for name, words in wanted.items():
        path = out / f"{name}.json"
        if here is not None and not here.endswith("+") and _read_commit(path) == here:
            say(f"{path} is of this commit: kept")
            continue
        say(f"{name}: fastflow bench {' '.join(words)}")
        again = ["--overwrite"] * (_read_commit(path) is not None)
        command = [sys.executable, "-c", COMMAND, "bench", *words, *options, "--json", str(path), *again]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            failed.append(name)
            continue
        console.write_text(
            str(path.with_suffix(".txt")), make_table(json.loads(path.read_text(encoding="utf-8"))) + "\n"
        )
    _write_ranges(out)
    if failed:
        raise FastflowError(f"runs that failed: {', '.join(failed)}; their reasons are above, the others are in {out}")


def _read_commit(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["machine"]["commit"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_ranges(out: Path) -> None:
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("flow-[0-9].json"))]
    reports = [report for report in reports if not is_busy(report["machine"])]
    if len(reports) < FEWEST:
        return
    values = defaultdict(list)
    for report in reports:
        for ratio in report["ratios"]:
            values[ratio["name"], ratio["threads"]].append(ratio["value"])
    ranges = [
        {"name": name, "threads": threads, "least": min(found), "largest": max(found), "runs": len(found)}
        for (name, threads), found in values.items()
    ]
    machines = [report["machine"] for report in reports]
    write_json({"machine": machines[0], "others": [m["processors_used_by_others"] for m in machines], "ranges": ranges},
               out / RANGES)  # fmt: skip
