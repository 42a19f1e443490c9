"""The kernel ladder of docs/kernels.md, measured: from loops in Python to the compiled kernels as they ship.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m fastflow.bench.research.ladder --out bench/results/ladder.json

Every comparison checks its steps against float64 (flow) or PyTorch in float32 (encoder), then times them in turn in one
process. Times are processor time of one thread, which other processes disturb least. ``gain`` is a step's median over
that of the kernel as shipped. Steps that the kernels cannot leave out at run time are left out of builds of their own.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import numpy as np
import torch

from fastflow.bench.measure.compare import check, errors
from fastflow.bench.measure.machine import Neighbours, ceilings, describe
from fastflow.bench.measure.subject import Array
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers import flow as peers_flow
from fastflow.bench.peers.folded import folded, folded_state
from fastflow.bench.peers.pytorch import settings
from fastflow.bench.report.files import write_json
from fastflow.bench.research.ladder_builds import BUILDS, build, using
from fastflow.bench.research.ladder_encoder import measure_encoder
from fastflow.bench.research.ladder_naive import in_c, in_python
from fastflow.bench.research.ladder_rows import SHIPPED, Builds, Call, Rows, same_bits, timed
from fastflow.bench.suites.encoder import DTYPES, body_of, forced
from fastflow.bench.suites.workloads import Workload, synthetic
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.kernels.flow.plan import execute
from fastflow.kernels.isa import usable_isas
from fastflow.stages.calibration import apply

ONE_THREAD = "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1"
BATCHES = (1, 1024)
EFFORT = Effort(budget_s=25, min_runs=9, max_runs=25)


def flow_steps(work: Workload, builds: Builds, python: bool) -> dict[str, Callable[[Array], Array]]:
    """{step: x (B, D) float32 -> z}; ``python``: with the loops in Python, which take tens of milliseconds a row."""
    (stage,), (plan,) = work.stages, work.plans
    single, narrow = stage.astype(np.float32), plan.astype(np.float32)
    steps: dict[str, Callable[[Array], Array]] = {"loops in Python": in_python(stage)} if python else {}
    steps |= in_c(stage, plan)
    steps |= {"NumPy": lambda x: np.asarray(apply([single], x)), "NumPy, folded": lambda x: execute(narrow, x)}
    in_torch = {
        "PyTorch": peers_flow.unfused(work.stages, "cpu", torch.float32),
        "PyTorch, leanest form": peers_flow.lean(work.stages, "cpu"),
        "PyTorch, folded": folded(work.plans, "cpu"),
        "PyTorch, folded, state form": folded_state(work.plans, "cpu"),
    }
    for name, function in in_torch.items():
        steps[name] = lambda x, function=function: function(torch.from_numpy(x)).numpy()  # type: ignore[misc]
    for isa in reversed(usable_isas()):
        with forced(isa):
            steps[f"compiled, {isa}"] = CpuFlow(work.sparse, 1)
    steps[SHIPPED] = CpuFlow(work.sparse, 1)
    for name, module in builds.items():
        with using(module):
            steps[f"without {name.partition(', ')[0]}"] = CpuFlow(work.sparse, 1)
    return steps


def measure_flow(builds: Builds) -> Rows:
    """One comparison for each batch."""
    work, rows = synthetic(3, 3, 32, "additive", max(BATCHES)), []
    for batch in BATCHES:
        x = work.rows(batch)
        exact = peers_flow.unfused(work.stages, "cpu", torch.float64)(torch.from_numpy(x)).numpy()
        scale = errors(peers_flow.unfused(work.stages, "cpu", torch.float32)(torch.from_numpy(x)).numpy(), exact)
        steps = flow_steps(work, builds, python=batch == 1)
        found = {name: check(name, step(x), exact, scale) for name, step in steps.items()}
        same_bits({name: step(x) for name, step in steps.items()})
        calls: dict[str, Call] = {name: partial(step, x) for name, step in steps.items()}
        details = {
            name: {"max_abs_err": e.max_abs, "err_against_unfused": e.max_abs / scale.max_abs}
            for name, e in found.items()
        }
        rows += timed(calls, EFFORT, details, ladder="flow", batch=batch)
    return rows


@click.command()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
def main(out: Path) -> None:
    """Measure every step."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        raise click.UsageError(f"set {ONE_THREAD}: NumPy's products must run on one thread")
    builds = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(BUILDS):
            click.echo(f"ladder: building the kernels without {name}", err=True)
            builds[name] = build(name, Path(folder, str(number)))
    watch, peak = Neighbours(), [ceilings([1])[1].as_dict()]
    with settings(1), forced(usable_isas()[0]):  # AMX has rows of its own
        click.echo("ladder: the flow", err=True)
        rows = measure_flow(builds)
        click.echo("ladder: the encoder", err=True)
        rows += measure_encoder(builds)
        sets = {dtype: body_of(dtype) for dtype in DTYPES}
    report = {
        "command": f"{ONE_THREAD} python -m fastflow.bench.research.ladder --out {out}",
        "machine": describe() | {"ceilings": peak, "processors_used_by_others": watch.processors()},
        "instruction_sets": sets, "rows": rows,
    }  # fmt: skip
    write_json(report, out)


if __name__ == "__main__":
    main()
