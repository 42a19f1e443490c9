"""A walk over the batches of the flow suite, and which of its comparisons fit into memory and into the time given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastflow.bench.measure.machine import memory_available
from fastflow.bench.measure.timing import Effort, Watch
from fastflow.bench.suites.candidates_flow import FlowCandidate
from fastflow.bench.suites.sizes import Sizes
from fastflow.bench.suites.workloads import Workload


@dataclass(frozen=True)
class Pass:
    """One walk over ``batches`` with a workload and a number of threads; ``peers`` are row names."""

    workload: Workload
    threads: int
    batches: tuple[int, ...]
    peers: frozenset[str]
    sizes: Sizes

    def effort(self, batch: int) -> Effort:
        """Time for a comparison; a million rows get three samples each."""
        size = self.sizes.flow
        if size.effort is not None:
            return size.effort
        if batch > size.whole:
            return Effort(budget_s=0, min_runs=3, sample_s=0, limit_s=self.allowance_s(batch))
        return Effort(budget_s=size.budgets[batch >= size.whole], min_runs=5)

    def allowance_s(self, batch: int) -> float:
        """The seconds that a comparison on ``batch`` rows may take; ``affordable`` drops the slowest candidates."""
        return 12.0 if self.sizes.quick else 120.0 if batch > self.sizes.flow.whole else 40.0


def too_large(workload: Workload, batch: int, device: str) -> str | None:
    """Why ``batch`` rows do not fit, or None. Input, one output, and room for a piece's intermediates and the check."""
    need = 4 * batch * (workload.plans[0].inputs + 2 * workload.plans[-1].outputs) + 2**30
    free = memory_available() if device == "cpu" else torch.cuda.mem_get_info()[0]
    return None if need <= free else f"needs {need / 2**30:.0f} GiB of memory, and {free / 2**30:.0f} GiB are free"


def sound_out(
    candidates: Sequence[FlowCandidate], x: Tensor, out: Tensor, watch: Watch, whole: int
) -> dict[str, float]:
    """Seconds a row, {name: ...}, over the first piece of ``x``, done as all would be; the better of two."""
    speed = {}
    for c in candidates:
        rows = c.piece or whole
        call = c.prepare(x[:rows], out[:rows])
        speed[c.name] = min(watch(call, 1), watch(call, 1)) / rows
    return speed


def affordable(
    candidates: Sequence[FlowCandidate], speed: dict[str, float], batch: int, one: Pass
) -> tuple[list[FlowCandidate], list[dict[str, Any]]]:
    """Those that fit into the allowance together, by their seconds a row, and the others with reasons."""
    calls = one.effort(batch).min_runs + 1
    cost = {c.name: calls * batch * speed.get(c.name, 0.0) for c in candidates}
    too_slow = []
    for name in sorted(cost, key=lambda name: -cost[name]):
        if sum(cost.values()) <= one.allowance_s(batch):
            break
        reason = f"{calls} calls would take about {cost.pop(name):.0f} s, judged by smaller ones"
        too_slow.append(left_out(one, batch, name, reason))
    return [c for c in candidates if c.name in cost], too_slow


def left_out(one: Pass, batch: int, name: str, reason: str) -> dict[str, Any]:
    """The entry under ``skipped``; ``name`` is * for everybody."""
    return {"subject": one.workload.label, "threads": one.threads, "batch": batch, "name": name, "reason": reason}
