"""Who runs encoders on a GPU besides fastflow: PyTorch and transformers in each of the ways people run them.

Every candidate takes token ids in host memory and gives pooled vectors in host memory, as fastflow does, so that copies
and waiting count for everybody. ``Gpu`` decides where tensors live and how a call is captured; a dry run has another.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from fastflow.bench.measure.probe_gpu import SIDE, GpuCeilings, probe, products, torch_dtype
from fastflow.bench.measure.subject import Array, Subject
from fastflow.bench.measure.timing import Watch, cuda_watch
from fastflow.bench.peers.encoder import Call, EncoderCandidate, left_out, said
from fastflow.bench.peers.pooled import pooled
from fastflow.bench.peers.pytorch import captured
from fastflow.errors import UsageError, missing_extra
from fastflow.runtime import Runtime

LOWER = ("float16", "bfloat16")
# family -> precisions; torch.compile's modes by their names, "torch-graph" is the unfused module in a CUDA graph
PEERS: dict[str, tuple[str, ...]] = {
    "torch-eager": ("float32", "tf32", *LOWER),
    "torch-compile": ("bfloat16",),
    "torch-reduce-overhead": ("bfloat16",),
    "torch-max-autotune": ("bfloat16",),
    "torch-graph": ("float32", "tf32", *LOWER),
    "sentence-transformers": ("float32", *LOWER),
}
MODES = {"torch-compile": "default", "torch-reduce-overhead": "reduce-overhead", "torch-max-autotune": "max-autotune"}
TEXTS_ONLY = "sentence-transformers"


def replay_ms(call: Callable[[], Any], calls: int = 20) -> float | None:
    """Milliseconds of GPU time of a call, if its attribute ``replay`` launches a graph on ``stream``; else None."""
    if not hasattr(call, "replay"):
        return None
    with torch.inference_mode(), torch.cuda.stream(getattr(call, "stream", None)):
        return statistics.median(cuda_watch(call.replay, calls) for _ in range(5)) / calls * 1e3


@dataclass(frozen=True)
class Gpu:
    """Where PyTorch's tensors live, what times a call on the device, and what captures one in a graph."""

    device: str = "cuda"
    watch: Watch = cuda_watch
    busy: Callable[[Call], float | None] = replay_ms  # milliseconds of GPU time of a call
    side: int = SIDE  # of the matrices that the probe multiplies
    capture: Callable[[Callable[[Any], Any], Any], Callable[[], Any]] = captured

    def ceilings(self, seconds: float) -> GpuCeilings:
        """The measured ceilings, ``seconds`` for each figure."""
        floats = 1 << (28 if self.side == SIDE else 16)
        whole = lambda call: self.capture(lambda _: call(), None)  # noqa: E731
        return probe(self.device, whole, self.watch, self.side, floats, seconds)


def chosen(against: Sequence[str] | None) -> list[str]:
    """The families that ``against`` picks, None for all; raises a UsageError for an unknown one."""
    for word in against or ():
        if word not in PEERS:
            raise UsageError(f"unknown peer {word!r} for the encoder suites on a GPU; known: {', '.join(PEERS)}")
    return [name for name in PEERS if against is None or name in against]


def ours(subject: Subject) -> Iterator[tuple[str, Runtime]]:
    """(dtype, Runtime) of fastflow on the GPU."""
    for dtype in ("float32", *LOWER):
        yield dtype, Runtime(subject.model, "cuda", dtype, backend="triton")


def open_peers(
    subject: Subject, families: Sequence[str], gpu: Gpu, quick: bool, skipped: list[dict[str, Any]]
) -> Iterator[EncoderCandidate]:
    """The candidates of ``families`` on token ids; quick runs leave out what has to be compiled."""
    for family in families:
        if family == TEXTS_ONLY or (quick and family in MODES):
            continue
        for dtype in PEERS[family]:
            try:
                yield EncoderCandidate(family, dtype, "torch", _prepare(subject, family, dtype, gpu))
            except Exception as error:  # other people's loaders raise anything; the run goes on without them
                skipped.append(left_out(subject, family, dtype, f"it cannot be opened: {said(error)}"))


def _prepare(subject: Subject, family: str, dtype: str, gpu: Gpu) -> Callable[[Array, Array], Call]:
    module = pooled(subject, torch_dtype(dtype)).to(gpu.device)
    if family == "torch-graph":
        return lambda ids, mask: _graph(module, dtype, gpu, ids, mask)
    function = torch.compile(module, dynamic=False, mode=MODES[family]) if family in MODES else module

    def prepare(ids: Array, mask: Array) -> Call:
        def call() -> Array:
            with products(dtype):
                given = (torch.from_numpy(a).to(gpu.device) for a in (ids, mask))
                return np.asarray(function(*given).cpu().numpy())

        return call

    return prepare


def _graph(module: Any, dtype: str, gpu: Gpu, ids: Array, mask: Array) -> Callable[..., Array]:
    """The module in a graph: no mask, which would be looked at on the host, and so texts of equal length only.

    The call takes other ids of the same shape, if they shall be others.
    """
    if not mask.all():
        raise ValueError("a graph without masks needs texts of equal length")
    there, vectors = torch.from_numpy(ids).to(gpu.device), torch.ones(ids.shape, device=gpu.device)
    here = torch.from_numpy(ids)
    here = here.pin_memory() if gpu.device == "cuda" else here
    with products(dtype):
        replay = gpu.capture(lambda x: module.unmasked(x, vectors), there)

    def call(other: Array | None = None) -> Array:
        if other is not None:
            here.copy_(torch.from_numpy(other))
        there.copy_(here, non_blocking=True)
        return np.asarray(replay().cpu().numpy())

    call.replay = replay  # type: ignore[attr-defined]
    return call


class GraphOfEachLength:
    """One text -> its vector (1, D), by the module in a CUDA graph for each number of tokens."""

    def __init__(self, subject: Subject, dtype: str, gpu: Gpu, tokenize: Callable[[Sequence[str]], Any]) -> None:
        module = pooled(subject, torch_dtype(dtype)).to(gpu.device)
        self._prepare, self._tokenize = partial(_graph, module, dtype, gpu), tokenize
        self._graphs: dict[int, Callable[[Array], Array]] = {}

    def __call__(self, texts: Sequence[str]) -> Array:
        ids = self._tokenize(texts).ids.astype(np.int64)[None]
        if ids.shape[1] not in self._graphs:
            self._graphs[ids.shape[1]] = self._prepare(ids, np.ones_like(ids))
        return self._graphs[ids.shape[1]](ids)


def sentence_transformers(subject: Subject, dtype: str, gpu: Gpu) -> Callable[[Sequence[str]], Array]:
    """SentenceTransformer as users call it; raises ValueError if it is absent."""
    if find_spec("sentence_transformers") is None:
        raise ValueError(str(missing_extra("peers", "sentence_transformers", "this peer")))
    from sentence_transformers import SentenceTransformer

    kwargs = {"dtype": dtype}
    model = SentenceTransformer(
        str(subject.saved or subject.encoder), device=gpu.device, local_files_only=True, model_kwargs=kwargs
    )
    model.max_seq_length = subject.max_length
    return lambda texts: np.asarray(model.encode(list(texts), show_progress_bar=False), np.float32)
