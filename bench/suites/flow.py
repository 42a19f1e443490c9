"""The flow suite: pooled vectors in, calibrated vectors out, by fastflow's kernels and by PyTorch as others run it.

Every candidate gets the same float32 batch, is checked against float64 before each timing, and is timed alternately
with the others. GFLOP/s and GB/s count what the folded plan needs, whichever way a candidate goes about it, so that
they compare; the floor is the time that the machine's measured ceilings allow for that work.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fastflow.bench.measure.compare import Errors, Measured, checked, compare, errors
from fastflow.bench.measure.machine import Ceilings, ceilings, cuda_ceilings
from fastflow.bench.measure.row import Results, Row
from fastflow.bench.measure.timing import Call, Timing, Watch, alternate, cpu_watch, cuda_watch
from fastflow.bench.peers import flow as peers_flow
from fastflow.bench.peers.pytorch import compiling, device_ms, settings
from fastflow.bench.report.ratios import flow_ratios
from fastflow.bench.suites.candidates_flow import FlowCandidate, chosen, names, ours, torch_peers
from fastflow.bench.suites.flow_limits import Pass, affordable, left_out, sound_out, too_large
from fastflow.bench.suites.sizes import Sizes
from fastflow.bench.suites.workloads import of_model, synthetic
from fastflow.kernels.threads import default_threads
from fastflow.model.artifact import load_model
from fastflow.train.options import DEFAULTS, LARGE

WATCHES: dict[str, Watch] = {"cpu": cpu_watch, "cuda": cuda_watch}
MOST_IN_GRAPH = 1024  # rows of a call that is timed as one of many in a graph: beyond, launches do not matter
Say = Callable[[str], None]


def run_flow(
    model: str | None, against: Sequence[str] | None, sizes: Sizes, device: str, threads: int | None, say: Say
) -> Results:
    """Run the suite on ``device`` (cpu or cuda); ``threads`` None: OMP_NUM_THREADS, else one for each core."""
    peers = frozenset(chosen(against, device, sizes.quick))
    if device == "cuda":
        sizes = replace(sizes, flow=sizes.gpu_flow)
    threads = threads or (default_threads() if device == "cpu" else torch.get_num_threads())
    if model is not None:
        load_model(model)  # one that cannot be measured is refused before anything is
    results, counts = Results(), [threads] if device == "cuda" or sizes.quick or threads == 1 else [threads, 1]
    say("measuring the machine's ceilings")
    limits = {threads: cuda_ceilings()} if device == "cuda" else ceilings(counts, sizes.probe_s)
    results.ceilings = [limit.as_dict() for limit in limits.values()]
    end = time.monotonic() + sizes.flow.seconds
    with nullcontext() if sizes.quick else compiling():
        for one in passes(model, peers, sizes, device, counts):
            if not results.subjects or results.subjects[-1]["subject"] != one.workload.label:
                results.subjects.append({"subject": one.workload.label, "inputs": one.workload.inputs})
            with settings(one.threads):
                run_pass(one, device, limits[one.threads], results, end, say)
    results.ratios = flow_ratios(results.rows, device)
    return results


def passes(
    model: str | None, peers: frozenset[str], sizes: Sizes, device: str, counts: Sequence[int]
) -> Iterator[Pass]:
    """The paper's flow, or a model's; then, unless quick, the same on one thread, the default's, with recolour after
    it, and a smaller affine flow.
    """
    size = sizes.flow
    rows = min(size.whole, max(size.batches))
    workload = synthetic(3, 3, 32, "additive", rows, size.dim) if model is None else of_model(model, size.model_rows)
    yield Pass(workload, counts[0], size.batches, peers, sizes)
    eager = frozenset(name for of_family in names(device, quick=True).values() for name in of_family) & peers
    for one_thread in counts[1:]:
        yield Pass(workload, one_thread, tuple(b for b in size.batches if b <= 1024), eager, sizes)
    if not sizes.quick and model is None:
        coloured = synthetic(DEFAULTS.levels, **LARGE, coupling="additive", rows=1024, dim=size.dim, recolour=True)
        yield Pass(coloured, counts[0], size.affine, eager, sizes)
        yield Pass(synthetic(2, 3, 32, "affine", 1024, size.dim), counts[0], size.affine, eager, sizes)


def run_pass(one: Pass, device: str, limits: Ceilings, results: Results, end: float, say: Say) -> None:
    """Check and time every candidate at every batch begun before ``end`` (monotonic seconds); adds to ``results``."""
    peers, cannot = torch_peers(one.workload, device, set(one.peers))
    candidates = [*ours(one.workload, device, one.threads, one.sizes.quick), *peers]
    results.skipped += cannot
    distinct = torch.from_numpy(one.workload.x).to(device)
    exact = peers_flow.unfused(one.workload.stages, device, torch.float64)(distinct).cpu().numpy()
    whole, few = one.sizes.flow.whole, one.sizes.flow.compiled
    speed: dict[str, float] = {}  # seconds a row, the best so far: medians follow the machine's moods
    for batch in one.batches:
        say(f"{one.workload.label}: {batch} rows, threads: {one.threads}")
        reason = too_large(one.workload, batch, device)
        if reason or time.monotonic() > end:
            results.skipped.append(left_out(one, batch, "*", reason or "the suite has used up its time"))
            continue
        compiled = few is None or batch in few
        taking_part = [c for c in candidates if (batch <= whole or not c.whole) and (compiled or not c.optional)]
        taking_part, too_slow = affordable(taking_part, speed, batch, one)
        x = distinct.repeat(-(-batch // len(distinct)), 1)[:batch].contiguous()
        out = torch.empty(batch, exact.shape[1], device=device) if batch > whole else None
        if out is not None:  # pieces are not a smaller batch, so try one
            tried = sound_out(taking_part, x, out, WATCHES[device], whole)
            taking_part, more = affordable(taking_part, tried, batch, one)
            too_slow += more
        results.skipped += too_slow
        rows = measure(one, taking_part, x, out, exact, limits, results.skipped)
        failed = {c.name for c in taking_part} - {done.name for done in rows}
        candidates = [c for c in candidates if c.name not in failed]
        for done in rows:
            speed[done.name] = min(done.p20_ms / 1e3 / batch, speed.get(done.name, math.inf))
        results.add(rows)


def measure(
    one: Pass, candidates: Sequence[FlowCandidate], x: Tensor, out: Tensor | None, exact: NDArray[Any],
    limits: Ceilings, skipped: list[dict[str, Any]],
) -> list[Row]:  # fmt: skip
    """The rows of one comparison on ``x``: every output checked, then all timed. Adds failures to ``skipped``."""
    batch, device = len(x), x.device.type
    part = x[: len(exact)]
    unfused = peers_flow.unfused(one.workload.stages, device, torch.float32)
    scale = errors(unfused(part).cpu().numpy(), exact[: len(part)])

    def admit(candidate: FlowCandidate) -> tuple[Call, Errors]:
        call = candidate.prepare(x, out)
        return call, checked(candidate, call(), exact, scale)

    measured = compare(
        candidates, admit,
        timer=lambda calls: alternate(calls, one.effort(batch), WATCHES[device]),
        excuse=excuse,
        leave_out=lambda candidate, reason: skipped.append(left_out(one, batch, candidate.name, reason)),
        end=math.inf if out is None else time.monotonic() + one.allowance_s(batch),
    )  # fmt: skip
    rows = [row(one, found, batch, out is not None, limits, scale) for found in measured]
    if device == "cuda" and batch <= MOST_IN_GRAPH:
        graphs = {c.name: c.graph for c in candidates if c.graph is not None}
        rows = [replace(r, gpu_ms=device_ms(graphs[r.name], x)) if r.name in graphs else r for r in rows]
    return rows


def excuse(candidate: FlowCandidate, error: Exception) -> str | None:
    """Only what needs a compiler may fail; a wrong result never may."""
    if not (candidate.optional and isinstance(error, RuntimeError)):
        return None
    return f"its first call failed: {str(error).strip().splitlines()[0]}"


def row(
    one: Pass, found: Measured[FlowCandidate, Errors, Timing], batch: int, in_pieces: bool, limits: Ceilings,
    scale: Errors,
) -> Row:  # fmt: skip
    """The row of a candidate; ``scale``: the errors of the unfused equations in float32."""
    candidate, off, ms = found.candidate, found.accuracy, found.timing.median_ms
    flop, traffic = batch * one.workload.flop(), one.workload.traffic(batch)
    floor = limits.floor_ms(flop, traffic, traffic)
    pieces = in_pieces and candidate.piece is not None
    return Row.timed(
        found.timing, suite="flow", subject=one.workload.label, name=candidate.name, backend=candidate.backend,
        dtype=candidate.dtype, threads=one.threads, batch=batch, tokens=None,
        max_abs_err=off.max_abs, relative_err=off.relative,
        err_against_unfused=off.max_abs / scale.max_abs if scale.max_abs else None,
        gflops=flop / ms / 1e6, gbs=traffic / ms / 1e6, floor_ms=floor, times_floor=ms / floor,
        note=f"in pieces of {candidate.piece} rows" if pieces else None, **candidate.counts,
    )  # fmt: skip
