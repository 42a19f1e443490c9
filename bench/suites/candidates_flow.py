"""Who takes part in the flow suite: fastflow's own kernels and the PyTorch peers, each in the ways people run it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastflow.bench.measure.compare import Candidate
from fastflow.bench.peers import flow as peers_flow
from fastflow.bench.peers.folded import folded, folded_state
from fastflow.bench.peers.port import port
from fastflow.bench.peers.pytorch import captured
from fastflow.bench.suites.workloads import Workload
from fastflow.errors import FastflowError, UsageError

PIECE = {"cpu": 2048, "cuda": 131072}  # rows at once of large batches; on CPUs what fits their caches runs fastest
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FlowCandidate(Candidate):
    """``prepare`` takes x (B, D), and out (B, N) or None."""

    whole: bool = False  # no batch so large that it is given in pieces
    piece: int | None = None  # very large batches are given by this many rows at a time; None: whole
    optional: bool = False  # it needs a compiler: if its first call fails it is left out, with the reason
    counts: dict[str, int] = field(default_factory=dict)  # operations and synchronisations, for its rows
    graph: Function | None = None  # what its CUDA graph holds


COMPILED = ("compile", "reduce-overhead", "max-autotune")  # torch.compile's modes, "compile" being its default
MODES = {"cpu": ("compile",), "cuda": (*COMPILED, "graph")}
# The ways each family runs besides eager; "graph" is a CUDA graph captured for one batch: no synchronising reads in it.
FAMILIES: dict[str, tuple[str, ...]] = {
    "torch": (),  # the equations unfused, what backend torch runs
    "torch-ukp": ("compile",),
    "torch-lean": (*COMPILED, "graph"),
    "torch-folded": ("graph",),
    "torch-folded-state": (*COMPILED, "graph"),
}


def names(device: str, quick: bool) -> dict[str, list[str]]:
    """{family: names of its rows} on ``device``; quick runs leave out what has to be compiled."""
    wanted = [mode for mode in MODES[device] if mode == "graph" or not quick]
    return {
        family: [f"{family}-{mode}" for mode in ("eager", *(m for m in modes if m in wanted))]
        for family, modes in FAMILIES.items()
    }


def chosen(against: Sequence[str] | None, device: str, quick: bool) -> set[str]:
    """The peers' row names that ``against`` picks, by family or by full name; None picks all."""
    families = names(device, quick)
    every = [name for of_family in families.values() for name in of_family]
    if against is None:
        return set(every)
    picked: set[str] = set()
    for word in against:
        found = families.get(word) or families.get(f"torch-{word}") or [name for name in every if name == word]
        if not found:
            known = ", ".join([*families, *every])
            raise UsageError(f"unknown peer {word!r} for the flow suite here; known: {known}")
        picked.update(found)
    return picked


def torch_peers(workload: Workload, device: str, wanted: set[str]) -> tuple[list[FlowCandidate], list[dict[str, str]]]:
    """The PyTorch candidates in ``wanted``, and those that cannot run this calibration with the reason."""
    builders: dict[str, Callable[[], Function | None]] = {
        "torch": lambda: peers_flow.unfused(workload.stages, device, torch.float32),
        "torch-ukp": lambda: port(workload.stages, device),
        "torch-lean": lambda: peers_flow.lean(workload.stages, device),
        "torch-folded": lambda: folded(workload.plans, device),
        "torch-folded-state": lambda: folded_state(workload.sparse, device),
    }
    reasons = {
        "torch-ukp": "the published port has additive couplings with reversal only, and nothing around the flow",
        "torch-folded-state": "no additive plan to turn into state form",
    }
    peers, skipped = [], []
    for family, of_family in names(device, quick=False).items():
        rows = [name for name in of_family if name in wanted]
        function = builders[family]() if rows else None
        if function is None:
            skipped += [{"subject": workload.label, "name": name, "reason": reasons[family]} for name in rows]
            continue
        with torch.inference_mode():
            operations, reads = peers_flow.count_operations(function, torch.from_numpy(workload.x[:1]).to(device))
        counts = {"operations": operations, "synchronisations": reads}
        for name in rows:
            mode = name.removeprefix(f"{family}-")
            prepare = _prepare(function, mode, PIECE[device])
            peers.append(
                FlowCandidate(
                    name, "float32", "torch", prepare, whole=mode == "graph", piece=PIECE[device],
                    optional=mode in COMPILED, counts=counts if mode == "eager" else {},
                    graph=function if mode == "graph" else None,
                )
            )  # fmt: skip
    return peers, skipped


def _prepare(function: Function, mode: str, piece: int) -> Callable[[Tensor, Tensor | None], Callable[[], Tensor]]:
    if mode == "graph":
        return lambda x, out: captured(function, x)
    if mode in COMPILED:
        function = torch.compile(function, mode="default" if mode == "compile" else mode)
    return lambda x, out: (lambda: function(x)) if out is None else (lambda: in_pieces(function, x, out, piece))


def in_pieces(function: Callable[[Any], Any], x: Any, out: Any, piece: int) -> Any:
    """``function`` on ``piece`` rows of ``x`` at a time, each result copied into ``out``."""
    for start in range(0, len(x), piece):
        out[start : start + piece] = function(x[start : start + piece])
    return out


def ours(workload: Workload, device: str, threads: int, quick: bool) -> list[FlowCandidate]:
    """fastflow's kernels. CPU: the best instruction set and, unless quick, each lesser one forced; GPU: Triton."""
    return triton_candidates(workload) if device == "cuda" else _cpu(workload, threads, quick)


def _cpu(workload: Workload, threads: int, quick: bool) -> list[FlowCandidate]:
    cpu, instructions = cpu_kernels("flow.cpu"), cpu_kernels("isa")
    best = instructions.isa()
    found = []
    for isa in instructions.usable_isas():
        if isa == best or not quick:
            flow = cpu.CpuFlow(workload.sparse, threads, isa)
            name = "fastflow" if isa == best else f"fastflow-{isa}"
            found.append(FlowCandidate(name, "float32", f"cpu {flow.isa}", _numpy(flow)))
    return sorted(found, key=lambda candidate: candidate.name != "fastflow")


def cpu_kernels(module: str) -> Any:
    """A module of the compiled CPU kernels; a FastflowError if they were not built."""
    try:
        return importlib.import_module(f"fastflow.kernels.{module}")
    except ImportError as error:
        raise FastflowError(
            f"the compiled kernels cannot be imported ({error}); build them with "
            "FASTFLOW_REQUIRE_EXT=1 pip install -e . in the fastflow checkout"
        ) from error


def _numpy(flow: Any) -> Callable[[Tensor, Tensor | None], Callable[[], Any]]:
    def prepare(x: Tensor, out: Tensor | None) -> Callable[[], Any]:
        rows = x.numpy()
        if out is None:
            return lambda: flow(rows)
        target = out.numpy()
        return lambda: flow(rows, out=target)

    return prepare


def triton_candidates(workload: Workload, device: str = "cuda") -> list[FlowCandidate]:
    """The Triton kernels, in a graph and launched one by one."""
    triton = importlib.import_module("fastflow.kernels.flow.triton")
    try:
        flow = triton.TritonFlow(workload.plans, device)
    except ValueError as error:  # kernels raise no FastflowError
        raise FastflowError(str(error)) from error
    return [
        FlowCandidate("fastflow", "tf32x3", "triton", partial(_replayed, flow), graph=flow),
        FlowCandidate("fastflow-launches", "tf32x3", "triton", partial(_launched, flow), whole=True),
    ]


def _replayed(flow: Any, x: Tensor, out: Tensor | None) -> Callable[[], Tensor]:
    """In a CUDA graph, as after an encoder; a launch is nothing compared with a batch given in pieces."""
    return captured(flow, x) if out is None else _launched(flow, x, out)


def _launched(flow: Any, x: Tensor, _: Tensor | None) -> Callable[[], Tensor]:
    return lambda: flow(x)
