"""The candidates of the flow suite: fastflow's own kernels, and PyTorch in each of the ways people run it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastflow.bench.measure.compare import Candidate
from fastflow.bench.measure.row import Results
from fastflow.bench.peers import flow as peers_flow
from fastflow.bench.peers.pytorch import capture
from fastflow.bench.suites.workloads import Workload
from fastflow.errors import FastflowError, UsageError

Function = Callable[[Tensor], Tensor]
Prepare = Callable[[Tensor], Callable[[], Any]]


@dataclass(frozen=True)
class FlowCandidate(Candidate):
    """``prepare``: x (B, D) -> the call, which returns (B, N)."""

    prepare: Prepare
    optional: bool = False  # it needs a compiler: if its first call fails it is left out, with the reason
    graph: Function | None = None  # the function in its CUDA graph


COMPILED = ("compile", "reduce-overhead", "max-autotune")  # torch.compile's modes, "compile" being its default
MODES = {"cpu": ("compile",), "cuda": (*COMPILED, "graph")}
# family -> its modes besides eager; "graph" is a CUDA graph captured for one batch
FAMILIES: dict[str, tuple[str, ...]] = {
    "torch": (),  # the equations unfused, as backend torch runs them
    "torch-lean": (*COMPILED, "graph"),
    "torch-folded-state": (*COMPILED, "graph"),
}


def list_rows(device: str, quick: bool) -> dict[str, list[str]]:
    """Return {family: names of its rows} on ``device``; quick runs compile nothing."""
    wanted = [mode for mode in MODES[device] if mode == "graph" or not quick]
    return {
        family: [f"{family}-{mode}" for mode in ("eager", *(m for m in modes if m in wanted))]
        for family, modes in FAMILIES.items()
    }


def choose(against: Sequence[str] | None, device: str, quick: bool) -> set[str]:
    """Return the peers' row names that ``against`` picks, by family or by full name; None picks all."""
    families = list_rows(device, quick)
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


def open_peers(workload: Workload, device: str, wanted: set[str], results: Results) -> list[FlowCandidate]:
    """Return the PyTorch candidates in ``wanted``; leave out of ``results`` whoever cannot run this calibration."""
    builders: dict[str, Callable[[], Function | None]] = {
        "torch": lambda: peers_flow.build_unfused(workload.stages, device, torch.float32),
        "torch-lean": lambda: peers_flow.build_lean(workload.stages, device),
        "torch-folded-state": lambda: peers_flow.build_folded(workload.sparse, device),
    }
    peers = []
    for family, of_family in list_rows(device, quick=False).items():
        rows = [name for name in of_family if name in wanted]
        function = builders[family]() if rows else None
        if function is None:
            for name in rows:
                results.leave_out(workload.label, name, "its plan has no state form")
            continue
        for name in rows:
            mode = name.removeprefix(f"{family}-")
            graph, prepare = function if mode == "graph" else None, _make_prepare(function, mode)
            peers.append(FlowCandidate(name, "float32", "torch", prepare, mode in COMPILED, graph))
    return peers


def _make_prepare(function: Function, mode: str) -> Prepare:
    if mode == "graph":
        return partial(capture, function)
    if mode in COMPILED:
        function = torch.compile(function, mode="default" if mode == "compile" else mode)
    return lambda x: partial(function, x)


def open_ours(workload: Workload, device: str, threads: int) -> list[FlowCandidate]:
    """Return fastflow's kernels; raise a FastflowError if the compiled ones are not built."""
    if device == "cuda":
        return open_triton(workload)
    try:
        cpu = importlib.import_module("fastflow.kernels.flow.cpu")
    except ImportError as error:
        raise FastflowError(
            f"the compiled kernels cannot be imported ({error}); build them with "
            "FASTFLOW_REQUIRE_EXT=1 pip install -e . in the fastflow checkout"
        ) from error
    flow = cpu.CpuFlow(workload.sparse, threads)
    return [FlowCandidate("fastflow", "float32", f"cpu {flow.isa}", lambda x: partial(flow, x.numpy()))]


def open_triton(workload: Workload, device: str = "cuda") -> list[FlowCandidate]:
    """Return the Triton kernels, in a graph as after an encoder, and launched one by one."""
    triton = importlib.import_module("fastflow.kernels.flow.triton")
    try:
        flow = triton.TritonFlow(workload.plans, device)
    except ValueError as error:  # kernels raise no FastflowError
        raise FastflowError(str(error)) from error

    return [
        FlowCandidate("fastflow", "tf32x3", "triton", partial(capture, flow), graph=flow),
        FlowCandidate("fastflow-launches", "tf32x3", "triton", lambda x: partial(flow, x)),
    ]
