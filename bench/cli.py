"""``fastflow bench``: which suites there are, and one run from the options to table, JSON and plot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastflow import console
from fastflow.bench.measure.machine import Neighbours, describe
from fastflow.bench.measure.row import Results, keeping
from fastflow.bench.report.plot import plot
from fastflow.bench.report.table import table, write_json
from fastflow.bench.suites.sizes import FULL, QUICK, Sizes
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.kernels.threads import default_threads

SUITES = ("flow", "encoder", "end-to-end", "startup", "serve", "static")
SHAPED = ("encoder", "end-to-end", "serve")  # they take a shape


def run(
    model: str | None = None,
    suites: Sequence[str] = SUITES[:1],
    against: Sequence[str] | None = None,
    quick: bool = False,
    json_path: str | Path | None = None,
    plot_path: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    sizes: Sizes | None = None,
    shape: str | None = None,
) -> dict[str, Any]:
    """Run ``suites``, print the table on standard output, write the files asked for, and return the report.

    ``against``: peers by family or row name, None for all. ``device``: cpu, cuda, or auto (cuda if there is one).
    ``threads``: for every candidate, None for OMP_NUM_THREADS, else one a core. ``sizes``: None for QUICK where
    ``quick`` is set, else FULL. ``shape``: one of ``workbench.SHAPES``, in BERT-base's place.
    The report is {machine, rows, ratios, subjects, skipped, quick, seconds}. A run that is stopped leaves the rows
    measured so far beside ``json_path``, in a file named so with ``.part`` behind it, one a line.
    """
    for suite in suites:
        if suite not in SUITES:
            raise UsageError(f"there is no bench suite {suite!r}; suites: {', '.join(SUITES)}")
    for path in (json_path, plot_path):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written: its folder does not exist; make it first")
    if plot_path is not None and find_spec("matplotlib") is None:
        raise missing_extra("bench", "matplotlib", "--plot")  # now, not after minutes of measuring
    if find_spec("torch") is None:
        raise missing_extra("bench", "torch", "fastflow bench")
    if find_spec("transformers") is None and set(suites) != {"flow"}:
        raise missing_extra(
            "bench", "transformers", f"fastflow bench --suite {','.join(s for s in suites if s != 'flow')}"
        )
    if shape is not None:
        _check_shape(shape, model, suites)
    device, sizes = _device(device), sizes or (QUICK if quick else FULL)
    start, neighbours = time.monotonic(), Neighbours()
    with keeping(Path(f"{json_path}.part") if json_path is not None else None):
        results = _run(model, suites, against, sizes, device, threads, shape)
        others = neighbours.processors()
        machine = describe(device) | {"ceilings": results.ceilings, "processors_used_by_others": others}
        report = {
            "machine": machine, "rows": results.rows, "ratios": results.ratios, "subjects": results.subjects,
            "skipped": results.skipped, "quick": sizes.quick, "seconds": time.monotonic() - start,
        }  # fmt: skip
        print(table(report))
        if json_path is not None:
            write_json(report, Path(json_path))
    if plot_path is not None:
        plot(report, Path(plot_path))
    return report


def _run(
    model: str | None,
    suites: Sequence[str],
    against: Sequence[str] | None,
    sizes: Sizes,
    device: str,
    threads: int | None,
    shape: str | None = None,
) -> Results:
    """The suites in their order, results in sequence; start-up and tables are of the CPU, whatever ``device``."""
    from fastflow.bench.suites.encoder import run_encoder
    from fastflow.bench.suites.encoder_gpu import run_encoder_gpu
    from fastflow.bench.suites.end_to_end import run_end_to_end
    from fastflow.bench.suites.end_to_end_gpu import run_end_to_end_gpu
    from fastflow.bench.suites.flow import run_flow
    from fastflow.bench.suites.serve import run_serve
    from fastflow.bench.suites.startup import run_startup
    from fastflow.bench.suites.static import run_static
    from fastflow.bench.suites.workbench import workbench

    texts = {
        "encoder": run_encoder, "end-to-end": run_end_to_end, "startup": run_startup, "serve": run_serve,
        "static": run_static,
    }  # fmt: skip
    if device == "cuda":
        texts |= {"encoder": run_encoder_gpu, "end-to-end": run_end_to_end_gpu}
    every, count = Results(), threads or default_threads()
    with workbench(model, sizes.bert, shape) as bench:
        for suite in suites:
            if suite == "flow":
                one = run_flow(model, against, sizes, device, threads, say)
            else:
                one = texts[suite](bench, against, sizes, count, say)
            for part in ("rows", "skipped", "ratios", "subjects", "ceilings"):
                getattr(every, part).extend(getattr(one, part))
    return every


def _check_shape(shape: str, model: str | None, suites: Sequence[str]) -> None:
    """Raise a UsageError where ``shape`` is unknown or fits no suite."""
    from fastflow.bench.suites.workbench import SHAPES

    if shape not in SHAPES:
        raise UsageError(f"there is no shape {shape!r}; shapes: {', '.join(SHAPES)}")
    if model is not None:
        raise UsageError("give a model or a shape, not both: a model has its own")
    if other := [suite for suite in suites if suite not in SHAPED]:
        raise UsageError(f"a shape is for the suites {', '.join(SHAPED)}, not for {', '.join(other)}")


def say(message: str) -> None:
    """A line of progress, on standard error."""
    console.say(f"bench: {message}")


def _device(device: str) -> str:
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {device!r}; use auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise FastflowError("device 'cuda': PyTorch finds no CUDA device; usable here: cpu")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
