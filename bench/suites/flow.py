"""The flow suite: pooled vectors in, calibrated vectors out, by fastflow's kernels and by PyTorch as others run it.

Every candidate gets the same float32 batch, is checked against float64 before each timing, and is timed in turn with
the others. GFLOP/s and GB/s count what the folded plan needs, whichever way a candidate goes about it, so that they
compare; the floor is the time that the machine's measured ceilings allow for that work.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fastflow.bench.measure.compare import Candidate, checked, errors
from fastflow.bench.measure.machine import Ceilings, ceilings, cuda_ceilings, memory_available
from fastflow.bench.measure.row import Row
from fastflow.bench.measure.timing import Effort, Watch, alternate, cpu_watch, cuda_watch
from fastflow.bench.peers import flow as peers_flow
from fastflow.bench.peers.pytorch import compiling, settings
from fastflow.bench.report.ratios import flow_ratios
from fastflow.bench.suites.candidates_flow import WHOLE, chosen, cpu_kernels, names, ours, torch_peers
from fastflow.bench.suites.subjects import Subject, of_model, synthetic

BATCHES = (1, 8, 32, 256, 1024, WHOLE, 1_000_000)
QUICK_BATCHES = (1, 32, 1024)
WATCHES: dict[str, Watch] = {"cpu": cpu_watch, "cuda": cuda_watch}
SECONDS, QUICK_SECONDS = 300, 35  # no comparison is begun later: a busy machine shall not keep anybody for an hour
MODEL_ROWS = 256  # distinct sentences embedded for a model's own inputs
Say = Callable[[str], None]


@dataclass(frozen=True)
class Pass:
    """One walk over ``batches`` with a subject and a number of threads; ``peers`` are row names."""

    subject: Subject
    threads: int
    batches: tuple[int, ...]
    peers: frozenset[str]
    quick: bool

    def effort(self, batch: int) -> Effort:
        """Time for a comparison; a million rows get three samples each."""
        if batch > WHOLE:
            return Effort(budget_s=0, min_runs=3, sample_s=0, limit_s=self.allowance_s(batch))
        return Effort(budget_s=2.5, min_runs=5) if self.quick else Effort(budget_s=6.0 if batch < WHOLE else 10.0)

    def allowance_s(self, batch: int) -> float:
        """The longest a comparison may take; the slowest candidates are left out, by name, until it fits."""
        return 12.0 if self.quick else 120.0 if batch > WHOLE else 40.0


@dataclass
class Results:
    """What a suite hands to the report: the parts of the JSON beside ``machine``."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    ratios: list[dict[str, Any]] = field(default_factory=list)
    subjects: list[dict[str, Any]] = field(default_factory=list)
    ceilings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, rows: Iterable[Row]) -> None:
        """Append ``rows`` as the JSON has them."""
        self.rows += [row.as_dict() for row in rows]


def run_flow(
    model: str | None, against: Sequence[str] | None, quick: bool, device: str, threads: int | None, say: Say
) -> Results:
    """Run the suite on ``device`` (cpu or cuda); ``threads`` None: one for each core."""
    peers = frozenset(chosen(against, device, quick))
    threads = threads or (cpu_kernels().default_threads() if device == "cpu" else torch.get_num_threads())
    results, counts = Results(), [threads] if device == "cuda" or quick or threads == 1 else [threads, 1]
    say("measuring the machine's ceilings")
    limits = {threads: cuda_ceilings()} if device == "cuda" else ceilings(counts, 0.1 if quick else 0.4)
    results.ceilings = [limit.as_dict() for limit in limits.values()]
    end = time.monotonic() + (QUICK_SECONDS if quick else SECONDS)
    with nullcontext() if quick else compiling():
        for one in passes(model, peers, quick, device, counts):
            if not results.subjects or results.subjects[-1]["subject"] != one.subject.label:
                results.subjects.append({"subject": one.subject.label, "inputs": one.subject.inputs})
            with settings(one.threads):
                run_pass(one, device, limits[one.threads], results, end, say)
    results.ratios = flow_ratios(results.rows, device)
    return results


def passes(model: str | None, peers: frozenset[str], quick: bool, device: str, counts: Sequence[int]) -> Iterator[Pass]:
    """The paper's flow, or a model's; then, unless quick, the same on one thread, and a smaller affine flow."""
    batches = QUICK_BATCHES if quick else BATCHES
    rows = min(WHOLE, max(batches))
    subject = synthetic(3, 3, 32, "additive", rows) if model is None else of_model(model, MODEL_ROWS)
    yield Pass(subject, counts[0], batches, peers, quick)
    eager = frozenset(name for of_family in names(device, quick=True).values() for name in of_family) & peers
    for one_thread in counts[1:]:
        yield Pass(subject, one_thread, tuple(b for b in batches if b <= 1024), eager, quick)
    if not quick and model is None:
        yield Pass(synthetic(2, 3, 32, "affine", 1024), counts[0], QUICK_BATCHES, eager, quick)


def run_pass(one: Pass, device: str, limits: Ceilings, results: Results, end: float, say: Say) -> None:
    """Check and time every candidate at every batch begun before ``end`` (monotonic seconds); adds to ``results``."""
    peers, cannot = torch_peers(one.subject, device, set(one.peers))
    candidates = [*ours(one.subject, device, one.threads, one.quick), *peers]
    results.skipped += cannot
    exact = peers_flow.unfused(one.subject.stages, "cpu", torch.float64)(torch.from_numpy(one.subject.x)).numpy()
    speed: dict[str, float] = {}  # seconds a row, the best so far: medians follow the machine's moods
    for batch in one.batches:
        say(f"{one.subject.label}: {batch} rows, threads: {one.threads}")
        reason = too_large(one.subject, batch, device)
        if reason or time.monotonic() > end:
            results.skipped.append(_left_out(one, batch, "*", reason or "the suite has used up its time"))
            continue
        taking_part = [c for c in candidates if c.largest is None or batch <= c.largest]
        taking_part, left_out = affordable(taking_part, speed, batch, one)
        x = torch.from_numpy(one.subject.rows(batch)).to(device)
        out = torch.empty(batch, exact.shape[1], device=device) if batch > WHOLE else None
        if out is not None:  # pieces are not a smaller batch, so try one
            taking_part, more = affordable(taking_part, sound_out(taking_part, x, out, WATCHES[device]), batch, one)
            left_out += more
        results.skipped += left_out
        rows = compare(one, taking_part, x, out, exact, limits, results.skipped)
        failed = {c.name for c in taking_part} - {row.name for row in rows}
        candidates = [c for c in candidates if c.name not in failed]
        for row in rows:
            speed[row.name] = min(row.p20_ms / 1e3 / batch, speed.get(row.name, math.inf))
        results.add(rows)


def too_large(subject: Subject, batch: int, device: str) -> str | None:
    """Why ``batch`` rows do not fit, or None. Input, one output, and room for a piece's intermediates and the check."""
    need = 4 * batch * (subject.plans[0].inputs + 2 * subject.plans[-1].outputs) + 2**30
    free = memory_available() if device == "cpu" else torch.cuda.mem_get_info()[0]
    return None if need <= free else f"needs {need / 2**30:.0f} GiB of memory, and {free / 2**30:.0f} GiB are free"


def sound_out(candidates: Sequence[Candidate], x: Tensor, out: Tensor, watch: Watch) -> dict[str, float]:
    """Seconds a row, {name: ...}, over the first piece of ``x``, done as all would be; the better of two."""
    speed = {}
    for c in candidates:
        rows = c.piece or WHOLE
        call = c.prepare(x[:rows], out[:rows])
        speed[c.name] = min(watch(call, 1), watch(call, 1)) / rows
    return speed


def affordable(
    candidates: Sequence[Candidate], speed: dict[str, float], batch: int, one: Pass
) -> tuple[list[Candidate], list[dict[str, Any]]]:
    """Those that fit into the allowance together, by their seconds a row, and the others with reasons."""
    calls = one.effort(batch).min_runs + 1
    cost = {c.name: calls * batch * speed.get(c.name, 0.0) for c in candidates}
    left_out = []
    for name in sorted(cost, key=lambda name: -cost[name]):
        if sum(cost.values()) <= one.allowance_s(batch):
            break
        reason = f"{calls} calls would take about {cost.pop(name):.0f} s, judged by smaller ones"
        left_out.append(_left_out(one, batch, name, reason))
    return [c for c in candidates if c.name in cost], left_out


def _left_out(one: Pass, batch: int, name: str, reason: str) -> dict[str, Any]:
    return {"subject": one.subject.label, "threads": one.threads, "batch": batch, "name": name, "reason": reason}


def compare(
    one: Pass,
    candidates: Sequence[Candidate],
    x: Tensor,
    out: Tensor | None,
    exact: NDArray[Any],
    limits: Ceilings,
    skipped: list[dict[str, Any]],
) -> list[Row]:
    """The rows of one comparison on ``x``: every output checked, then all timed. Adds failures to ``skipped``."""
    batch, device = len(x), x.device.type
    part = x[: len(exact)]
    unfused = peers_flow.unfused(one.subject.stages, device, torch.float32)
    scale = errors(unfused(part).cpu().numpy(), exact[: len(part)])
    calls: dict[str, Callable[[], Any]] = {}
    found, end = {}, time.monotonic() + one.allowance_s(batch)
    for candidate in candidates:
        if out is not None and calls and time.monotonic() > end:
            skipped.append(_left_out(one, batch, candidate.name, "the others before it used up the time"))
            continue
        call = candidate.prepare(x, out)
        try:
            z = call()
        except RuntimeError as error:
            if not candidate.optional:
                raise
            reason = f"its first call failed: {str(error).strip().splitlines()[0]}"
            skipped.append(_left_out(one, batch, candidate.name, reason))
            continue
        found[candidate.name] = checked(candidate, z, exact, scale)
        calls[candidate.name] = call
    timings = alternate(calls, one.effort(batch), WATCHES[device])
    flop, traffic = batch * one.subject.flop(), one.subject.traffic(batch)
    floor = limits.floor_ms(flop, traffic, traffic)
    rows = []
    for c in (c for c in candidates if c.name in calls):
        timing, off = timings[c.name], found[c.name]
        ms, pieces = timing.median_ms, out is not None and c.piece is not None
        rows.append(
            Row.timed(
                timing, suite="flow", subject=one.subject.label, name=c.name, backend=c.backend, dtype=c.dtype,
                threads=one.threads, batch=batch, tokens=None, max_abs_err=off.max_abs, relative_err=off.relative,
                err_against_unfused=off.max_abs / scale.max_abs if scale.max_abs else None,
                gflops=flop / ms / 1e6, gbs=traffic / ms / 1e6, floor_ms=floor, times_floor=ms / floor,
                note=f"in pieces of {c.piece} rows" if pieces else None, **c.details,
            )
        )  # fmt: skip
    return rows
