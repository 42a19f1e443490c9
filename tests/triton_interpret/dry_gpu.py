"""A dry run of the GPU suites on a CPU: every line that a GPU would run, tiny, Triton's kernels interpreted.

    TRITON_INTERPRET=1 PYTHONPATH=tests python tests/triton_interpret/dry_gpu.py FOLDER

writes FOLDER/dry.json. It shows that the suites work; its times mean nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from fastflow.backends import choose as choice
from fastflow.backends import triton
from fastflow.backends.gpu import self_test
from fastflow.backends.gpu.graphs import Device
from fastflow.bench import cli
from fastflow.bench.measure.machine import describe
from fastflow.bench.measure.row import Subject
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers import gpu as peers_gpu
from fastflow.bench.report.table import make_table, write_json
from fastflow.bench.suites import encoder, end_to_end, flow, workbench
from fastflow.bench.suites.flow import Workload, make_synthetic
from fastflow.bench.suites.sizes import EncoderSizes, FlowSizes, Sizes, TextSizes

from support.standin import StandIn

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
TEXTS = (["A dog.", "No"], "two made-up texts")
ONCE = Effort(budget_s=0, min_runs=1, max_runs=1, sample_s=0, pause_s=0)
TINY = Sizes(
    quick=True, flow=FlowSizes(batches=(1, 3), effort=ONCE),
    encoder=EncoderSizes(gpu=((1, 3),), effort=ONCE), texts=TextSizes(together=1), bert=SMALL,
)  # fmt: skip


class DryBackend(triton.TritonBackend):
    """The triton backend on the stand-in, its kernels interpreted."""

    on = "cpu"

    def _open_device(self) -> Device:
        return StandIn()


def replayed(function: Any, x: Any) -> Any:
    """In the place of a captured graph."""
    return lambda: function(x)


def always(value: Any) -> Any:
    """A function of anything that gives ``value``."""
    return lambda *_: value


def triton_flow(workload: Workload, *_: Any) -> list[Any]:
    """fastflow's candidates of the flow suite, interpreted."""
    return flow.open_triton(workload, "cpu")


def run(folder: Path) -> dict[str, Any]:
    """Run the three suites and write table and JSON; returns the report."""
    workload = make_synthetic(1, 2, 4, "additive", 8, dim=16)
    real = flow.run_flow

    def flow_on_cpu(request: workbench.SuiteRun) -> Any:
        return real(replace(request, against=["torch-lean-eager"], device="cpu"))

    changes = (
        mock.patch.object(triton, "TritonBackend", DryBackend), mock.patch.object(choice, "_has_cuda", always(True)),
        mock.patch.object(self_test, "LENGTHS", ((3,),)), mock.patch.object(self_test, "ROWS", (1,)),
        mock.patch.object(self_test, "COPIES", 1),
        mock.patch.object(workbench.Workbench, "subjects", only_base),
        mock.patch.object(peers_gpu, "LOWER", ("bfloat16",)), mock.patch.object(flow, "capture", replayed),
        mock.patch.object(encoder, "GPU", peers_gpu.Gpu("cpu", always(1.0), replayed)),
        mock.patch.object(end_to_end, "real_texts", always(TEXTS)),
        mock.patch.object(flow, "run_flow", flow_on_cpu), mock.patch.object(flow, "open_ours", triton_flow),
        mock.patch.object(flow, "make_synthetic", always(workload)),
    )  # fmt: skip
    for change in changes:
        change.start()
    try:
        results = cli.run_suites(None, ("flow", "encoder", "end-to-end"), None, TINY, "cuda", 1)
    finally:
        mock.patch.stopall()
    machine = describe() | {"processors_used_by_others": None}
    parts = {name: getattr(results, name) for name in ("rows", "ratios", "subjects", "skipped")}
    report = {"machine": machine, **parts, "quick": True, "seconds": 0.0}
    print(make_table(report))
    write_json(report, folder / "dry.json")
    return report


def only_base(bench: workbench.Workbench) -> list[Subject]:
    """Without the model in the package, which would take minutes."""
    return [bench.base()]


def main(arguments: Sequence[str]) -> None:
    """``arguments``: the folder."""
    report = run(Path(arguments[0]))
    names = {(row["suite"], row["name"], row["dtype"]) for row in report["rows"]}
    wanted = {(suite, "fastflow", dtype) for suite in ("encoder", "end-to-end") for dtype in ("float32", "bfloat16")}
    if missing := wanted - names:
        raise SystemExit(f"the dry run lacks rows: {sorted(missing)}")
    print(f"dry run: {len(report['rows'])} rows, as expected")


if __name__ == "__main__":
    main(sys.argv[1:])
