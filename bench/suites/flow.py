"""The flow suite: pooled vectors in, calibrated vectors out, by fastflow's kernels and by PyTorch.

Every candidate gets the same float32 batch and is checked against float64.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastflow.bench.measure.compare import Candidate, Errors, check, compare, compute_errors
from fastflow.bench.measure.machine import WATCHES
from fastflow.bench.measure.row import Results, Row, make_row
from fastflow.bench.measure.timing import Call, Effort, Timing, alternate
from fastflow.bench.peers import flow as peers_flow
from fastflow.bench.peers.gpu import capture, compiling, device_ms, settings
from fastflow.bench.report.ratios import compute_flow_ratios
from fastflow.bench.suites.sizes import FlowSizes
from fastflow.bench.suites.texts import real_texts
from fastflow.bench.suites.workbench import SuiteRun
from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.flow import Plan
from fastflow.model.artifact import load_model
from fastflow.plan import fold
from fastflow.plan.builder import products
from fastflow.runtime import Runtime
from fastflow.train.methods.closed_forms import fit_recolour, measure_joint
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.options import DEFAULTS, LARGE
from fastflow.transforms.calibration import Stage, describe

Floats = NDArray[np.float32]
OUTLIERS = ((0.40, -9.0, 1.2), (0.50, 5.0, 0.9), (0.80, -3.5, 0.8))  # position (share of D), mean, deviation


@dataclass(frozen=True)
class Workload:
    """A calibration under test; ``x`` (rows, D) float32 is repeated to fill larger batches."""

    label: str
    stages: tuple[Stage, ...]
    plans: tuple[Plan, ...]  # float64
    x: Floats
    inputs: str  # the source of x

    def flop(self) -> float:
        """Return the operations of a row; a multiply-add is two, zero blocks are not counted."""
        return sum(2.0 * (plan.inputs + products(plan)) + 2 * plan.outputs for plan in self.plans)

    def weight_bytes(self) -> float:
        """Return the float32 bytes of weights of one pass, without zero blocks."""
        vectors = sum(plan.inputs + 2 * plan.outputs + len(plan.c) + plan.d.size for plan in self.plans)
        return 4.0 * (vectors + sum(map(products, self.plans)))

    def traffic(self, batch: int) -> float:
        return 4.0 * batch * (self.plans[0].inputs + self.plans[-1].outputs) + self.weight_bytes()


def make_pooled_like(rows: int, dim: int, seed: int) -> Floats:
    """Make (rows, dim) vectors like pooled BERT states: 16 shared directions, three outliers."""
    rng = np.random.default_rng(seed)
    mean, deviation = 0.3 * rng.standard_normal(dim), 0.2 * np.exp(0.4 * rng.standard_normal(dim))
    shared = rng.standard_normal((16, dim)) / 4
    for position, outlier_mean, outlier_deviation in OUTLIERS:
        channel = int(position * dim)
        mean[channel], deviation[channel] = outlier_mean, outlier_deviation
    noise = rng.standard_normal((rows, dim), np.float32)
    noise += rng.standard_normal((rows, 16), np.float32) @ shared.astype(np.float32)
    return mean.astype(np.float32) + deviation.astype(np.float32) * noise


def make_trained_like(x: Floats, seed: int, **settings: Any) -> Stage:
    """Make a flow with ActNorms that fit ``x`` and last layers N(0, 0.05^2) instead of zero."""
    config = FlowConfig(x.shape[1], **settings)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        flow = Flow(config)
        flow.initialise(torch.from_numpy(x))
        for name, parameter in flow.named_parameters():
            if name.rsplit(".", 1)[1] in ("weight3", "bias3", "logscale3"):
                parameter.normal_(0, 0.05)
    return Stage("flow", dict(vars(config)), {name: array.numpy().copy() for name, array in flow.state_dict().items()})


def make_synthetic(
    levels: int, depth: int, width: int, coupling: str, rows: int, dim: int = 768, seed: int = 2020,
    recolour: bool = False,
) -> Workload:  # fmt: skip
    """Make a flow of the paper's shape on ``rows`` vectors of ``dim`` channels; with recolour if asked."""
    x = make_pooled_like(max(rows, 4096), dim, seed)
    stages = [make_trained_like(x[:4096], seed, levels=levels, depth=depth, width=width, coupling=coupling)]
    if recolour:
        stages.append(fit_recolour(measure_joint(stages, x[:4096]), dim, **DEFAULTS.colour))
    inputs = f"{rows} synthetic vectors with the outlier dimensions of a pooled BERT, seed {seed}; random weights"
    return Workload(f"{describe(stages)}, D={dim}", tuple(stages), fold(stages, dim), x[:rows], inputs)


def take_model(path: str | Path, rows: int) -> Workload:
    """Take the calibration at ``path``, on its pooled embeddings of ``rows`` sentences."""
    stages = load_model(path).calibration
    if not stages:
        raise UsageError(f"{path} has no calibration, so there is nothing to time; leave -m out for the paper's flow")
    texts, source = real_texts(rows)
    with Runtime(path, device="cpu") as runtime:
        x = np.ascontiguousarray(runtime.pool(texts), np.float32)
    dim = x.shape[1]
    inputs = f"the model's pooled embeddings of {source}: {len(texts)}, repeated in larger batches"
    return Workload(f"{describe(stages)}, D={dim}", tuple(stages), fold(stages, dim), x, inputs)


MOST_DISTINCT = 65_536  # most different rows of a batch; they are checked
MOST_IN_GRAPH = 1024  # most rows in a CUDA graph: with more, launches do not matter
Function = Callable[[Tensor], Tensor]
Prepare = Callable[[Tensor], Callable[[], Any]]


@dataclass(frozen=True)
class FlowCandidate(Candidate):
    """``prepare``: x (B, D) -> the call, which returns (B, N)."""

    prepare: Prepare
    optional: bool = False  # left out, with the reason, if its first call fails
    graph: Function | None = None  # the function, to time in a CUDA graph


COMPILED = ("compile", "reduce-overhead", "max-autotune")


def list_rows(device: str, quick: bool) -> list[str]:
    """Return the names of the peers' rows; quick runs compile none."""
    compiled = () if quick else COMPILED[: 1 if device == "cpu" else None]
    modes = ("eager", *compiled, *(["graph"] if device == "cuda" else []))
    return ["torch-eager", *(f"{family}-{mode}" for family in ("torch-lean", "torch-folded-state") for mode in modes)]


def choose_rows(against: Sequence[str] | None, device: str, quick: bool) -> set[str]:
    """Return the row names that ``against`` picks by family or full name; None: all."""
    every = list_rows(device, quick)
    families = {name: [name] for name in every} | {"torch": every[:1]}
    for family in ("torch-lean", "torch-folded-state"):
        families[family] = [name for name in every if name.startswith(family)]
    families["lean"] = families["torch-lean"]
    for word in against or ():
        if word not in families:
            raise UsageError(f"unknown peer {word!r} for the flow suite here; known: {', '.join(families)}")
    return {name for word in (every if against is None else against) for name in families[word]}


def open_peers(workload: Workload, device: str, wanted: Container[str]) -> list[FlowCandidate]:
    """Return the PyTorch candidates in ``wanted``."""
    functions = {
        "torch": peers_flow.build_unfused(workload.stages, device, torch.float32),
        "torch-lean": peers_flow.build_lean(workload.stages, device),
        "torch-folded-state": peers_flow.build_folded(workload.plans, device),
    }
    peers = []
    for name in (name for name in list_rows(device, quick=False) if name in wanted):
        family, mode = next(
            (family, name[len(family) + 1 :]) for family in reversed(functions) if name.startswith(family)
        )
        function = functions[family]
        if mode in COMPILED:
            function = torch.compile(function, mode="default" if mode == "compile" else mode)
        prepare: Prepare = partial(capture, function) if mode == "graph" else partial(partial, function)
        graph = function if mode == "graph" else None
        peers.append(FlowCandidate(name, "float32", "torch", prepare, mode in COMPILED, graph))
    return peers


def open_ours(workload: Workload, device: str, threads: int) -> list[FlowCandidate]:
    """Return fastflow's kernels; raise a FastflowError if they are not built."""
    if device == "cuda":
        return open_triton(workload)
    try:
        cpu = importlib.import_module("fastflow.kernels.flow.cpu")
    except ImportError as error:
        raise FastflowError(
            f"the compiled kernels cannot be imported ({error}); build them with "
            "FASTFLOW_REQUIRE_EXT=1 pip install -e . in the fastflow checkout"
        ) from error
    flow = cpu.CpuFlow(workload.plans, threads)
    return [FlowCandidate("fastflow", "float32", f"cpu {flow.isa}", lambda x: partial(flow, x.numpy()))]


def open_triton(workload: Workload, device: str = "cuda") -> list[FlowCandidate]:
    """Return the Triton kernels, in a graph and launched one by one."""
    triton = importlib.import_module("fastflow.kernels.flow.triton")
    try:
        flow = triton.TritonFlow(workload.plans, device)
    except ValueError as error:
        raise FastflowError(str(error)) from error

    return [
        FlowCandidate("fastflow", "tf32x3", "triton", partial(capture, flow), graph=flow),
        FlowCandidate("fastflow-launches", "tf32x3", "triton", lambda x: partial(flow, x)),
    ]


class Pass(NamedTuple):
    """A workload to time with ``threads`` at each of ``batches``; ``peers`` are row names."""

    workload: Workload
    threads: int
    batches: tuple[int, ...]
    peers: frozenset[str]
    size: FlowSizes

    def leave_out(self, results: Results, batch: int, name: str, reason: str) -> None:
        results.leave_out(self.workload.label, name, reason, threads=self.threads, batch=batch)


def run_flow(request: SuiteRun) -> Results:
    """Run the suite on the flow of the model given, else on flows of the paper's shape."""
    device, quick, threads, model = request.device, request.sizes.quick, request.threads, request.bench.model
    peers = frozenset(choose_rows(request.against, device, quick))
    size = request.sizes.gpu_flow if request.on_gpu else request.sizes.flow
    if model is not None:
        load_model(model)  # refuse a model that cannot be measured
    results, counts = Results(), [threads] if request.on_gpu or quick or threads == 1 else [threads, 1]
    end = time.monotonic() + size.seconds
    with nullcontext() if quick else compiling():
        for one in list_passes(model, peers, size, device, counts, quick):
            if not results.subjects or results.subjects[-1]["subject"] != one.workload.label:
                results.subjects.append({"subject": one.workload.label, "inputs": one.workload.inputs})
            with settings(one.threads):
                _run_pass(one, request, results, end)
    results.ratios = compute_flow_ratios(results.rows, device)
    return results


def list_passes(
    model: str | None, peers: frozenset[str], size: FlowSizes, device: str, counts: Sequence[int], quick: bool
) -> Iterator[Pass]:
    """Yield a pass of the model's, or the paper's, flow for each of ``counts``; unless quick or a model, two more."""
    if model is None:
        workload = make_synthetic(3, 3, 32, "additive", min(MOST_DISTINCT, max(size.batches)), size.dim)
    else:
        workload = take_model(model, size.model_rows)
    yield Pass(workload, counts[0], size.batches, peers, size)
    eager = peers & set(list_rows(device, quick=True))
    for one_thread in counts[1:]:
        yield Pass(workload, one_thread, tuple(b for b in size.batches if b <= 1024), eager, size)
    if not quick and model is None:
        depth, width = LARGE["depth"], LARGE["width"]
        coloured = make_synthetic(DEFAULTS.levels, depth, width, "additive", 1024, size.dim, recolour=True)
        yield Pass(coloured, counts[0], size.affine, eager, size)
        yield Pass(make_synthetic(2, 3, 32, "affine", 1024, size.dim), counts[0], size.affine, eager, size)


def _run_pass(one: Pass, request: SuiteRun, results: Results, end: float) -> None:
    device, compiled = request.device, one.size.compiled
    candidates = open_ours(one.workload, device, one.threads)
    candidates += open_peers(one.workload, device, one.peers)
    distinct = torch.from_numpy(one.workload.x).to(device)
    exact = peers_flow.build_unfused(one.workload.stages, device, torch.float64)(distinct).cpu().numpy()
    for batch in one.batches:
        request.say(f"{one.workload.label}: {batch} rows, threads: {one.threads}")
        if time.monotonic() > end:
            one.leave_out(results, batch, "*", "the suite has used up its time")
            continue
        taking_part = [c for c in candidates if not c.optional or compiled is None or batch in compiled]
        rows = np.arange(batch) % len(distinct)
        x = distinct[torch.from_numpy(rows).to(device)].contiguous()
        made = measure(one, taking_part, x, exact[rows], results)
        failed = {c.name for c in taking_part} - {row["name"] for row in made}
        candidates = [c for c in candidates if c.name not in failed]
        results.add(made)


def measure(
    one: Pass, candidates: Sequence[FlowCandidate], x: Tensor, exact: NDArray[Any], results: Results
) -> list[Row]:
    """Return the rows of a comparison on ``x``: check every output, then time all."""
    batch, device = len(x), x.device.type
    seen = slice(None, None, max(1, batch // MOST_DISTINCT))
    unfused = peers_flow.build_unfused(one.workload.stages, device, torch.float32)
    scale = compute_errors(unfused(x[seen]).cpu().numpy(), exact[seen])

    def admit(candidate: FlowCandidate) -> tuple[Call, Errors]:
        call = candidate.prepare(x)
        z = call()[seen]
        return call, check(candidate.name, z if isinstance(z, np.ndarray) else z.cpu().numpy(), exact[seen], scale)

    def time_all(calls: Mapping[str, Call]) -> Mapping[str, Timing]:
        effort = one.size.effort or Effort(budget_s=one.size.budgets[batch > 10_000], min_runs=5)
        return alternate(calls, effort, WATCHES[device])

    def leave_out(candidate: FlowCandidate, reason: str) -> None:
        one.leave_out(results, batch, candidate.name, reason)

    flop, traffic = batch * one.workload.flop(), one.workload.traffic(batch)
    rows = []
    for candidate, off, timing in compare(candidates, admit, time_all, _excuse_compiler, leave_out):
        graph = candidate.graph if device == "cuda" and batch <= MOST_IN_GRAPH else None
        rows.append(make_row(
            "flow", subject=one.workload.label, **candidate.as_fields(), threads=one.threads, batch=batch,
            **timing._asdict(), **off._asdict(),
            err_against_unfused=off.max_abs_err / scale.max_abs_err if scale.max_abs_err else None,
            gflops=flop / timing.median_ms / 1e6, gbs=traffic / timing.median_ms / 1e6,
            gpu_ms=None if graph is None else device_ms(graph, x),
        ))  # fmt: skip
    return rows


def _excuse_compiler(candidate: FlowCandidate, error: Exception) -> str | None:
    if not (candidate.optional and isinstance(error, RuntimeError)):
        return None
    return f"its first call failed: {str(error).strip().splitlines()[0]}"
