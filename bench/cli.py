"""``fastflow bench --suite``: the suites, and one run from the options to table, JSON and plot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastflow import console
from fastflow.bench.measure.machine import Neighbours, describe
from fastflow.bench.measure.row import Results, keeping
from fastflow.bench.report.plot import plot
from fastflow.bench.report.table import make_table, write_json
from fastflow.bench.suites.sizes import FULL, QUICK, Sizes
from fastflow.errors import FastflowError, UsageError, missing_extra

SUITES = {  # suite -> module and function in fastflow.bench.suites
    "flow": ("flow", "run_flow"),
    "encoder": ("encoder", "run_encoder"),
    "end-to-end": ("end_to_end", "run_end_to_end"),
    "startup": ("starts", "run_startup"),
    "serve": ("serve", "run_serve"),
    "static": ("static", "run_static"),
}
SHAPED = ("encoder", "end-to-end", "serve")  # suites that take --shape
ON_GPU = ("flow", "encoder", "end-to-end")  # other suites measure the CPU


def run(
    model: str | None = None,
    suites: Sequence[str] = ("flow",),
    against: Sequence[str] | None = None,
    quick: bool = False,
    json_path: str | Path | None = None,
    plot_path: str | Path | None = None,
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
    for path in (json_path, plot_path):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written: its folder does not exist; make it first")
    if plot_path is not None and find_spec("matplotlib") is None:
        raise missing_extra("bench", "matplotlib", "--plot")
    if find_spec("torch") is None:
        raise missing_extra("bench", "torch", "fastflow bench")
    if find_spec("transformers") is None and (rest := [suite for suite in suites if suite != "flow"]):
        raise missing_extra("bench", "transformers", f"fastflow bench --suite {','.join(rest)}")
    if shape is not None:
        _check_shape(shape, model, suites)
    from fastflow.bench.measure.probe import add_floors, measure_ceilings
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
    if plot_path is not None:
        plot(report, Path(plot_path))
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
    from fastflow.bench.suites.workbench import Request, open_workbench
    from fastflow.kernels.processor import default_threads

    every, count = Results(), threads or default_threads()
    with open_workbench(model, sizes.bert, shape) as bench:
        for suite in suites:
            module, function = SUITES[suite]
            request = Request(bench, against, sizes, count, say, device if suite in ON_GPU else "cpu")
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
