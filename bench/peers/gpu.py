"""PyTorch and transformers on a GPU, from token ids to pooled vectors, both in host memory."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastflow.bench.measure.row import Array, Results, Subject
from fastflow.bench.measure.timing import cuda_watch
from fastflow.bench.peers import engines
from fastflow.bench.peers.encoder import Call, EncoderCandidate, Prepare, first_line, open_pooled
from fastflow.errors import missing_extra
from fastflow.runtime import Runtime


@contextmanager
def settings(threads: int) -> Iterator[None]:
    """Run the block with ``threads`` threads, no gradients and full float32 products."""
    before = torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before[1:]


@contextmanager
def compiling() -> Iterator[None]:
    """Raise torch.compile's limit of recompilations, beyond which code stays eager."""
    import torch._dynamo

    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(logging.ERROR)  # else torch reports every graph break
    torch.compiler.reset()
    try:
        with torch._dynamo.config.patch(recompile_limit=64):
            yield
    finally:
        logger.setLevel(before)


def device_ms(function: Callable[[Any], Any], x: Tensor, calls: int = 20, replays: int = 5) -> float:
    """Return the milliseconds of a call on ``x`` in a CUDA graph of ``calls``: the median of seven samples."""

    def many(x: Tensor) -> Any:
        return [function(x) for _ in range(calls)][-1]

    replay = capture(many, x)
    return statistics.median(cuda_watch(replay, replays) for _ in range(7)) / replays / calls * 1e3


def capture(function: Callable[[Any], Any], x: Tensor) -> Callable[[], Tensor]:
    """Capture ``function`` on ``x`` in a CUDA graph; each call replays it into the same result."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # lazy initialisation cannot be captured
        for _ in range(3):
            function(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = function(x)

    def call() -> Tensor:
        graph.replay()
        return z

    return call


LOWER: tuple[Any, ...] = ("float16", "bfloat16")
# family -> dtypes; torch-graph is the plain module in a CUDA graph, MODES are compiled
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


def replay_ms(call: Callable[[], Any], seconds: float = 0.02) -> float | None:
    """Return the GPU's milliseconds of a call that can ``replay`` a graph, in samples of ``seconds``; or None."""
    if not hasattr(call, "replay"):
        return None
    with torch.inference_mode(), torch.cuda.stream(getattr(call, "stream", None)):
        calls = max(1, round(seconds / cuda_watch(call.replay, 1)))
        return statistics.median(cuda_watch(call.replay, calls) for _ in range(5)) / calls * 1e3


@dataclass(frozen=True)
class Gpu:
    """A device of PyTorch, and functions that time a call on it and capture it in a CUDA graph."""

    device: str = "cuda"
    busy: Callable[[Call], float | None] = replay_ms  # milliseconds of GPU time of a call
    capture: Callable[[Callable[[Any], Any], Any], Callable[[], Any]] = capture


@contextmanager
def _use_products(dtype: str) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@cache
def _open_module(subject: Subject, dtype: str, device: str) -> Any:
    return open_pooled(subject, getattr(torch, dtype)).to(device)


def open_ours(subject: Subject) -> Iterator[tuple[str, Runtime]]:
    """Yield (dtype, Runtime) of fastflow."""
    for dtype in ("float32", *LOWER):
        yield dtype, Runtime(subject.model, "cuda", dtype, backend="triton")


def open_peers(
    subject: Subject, families: Sequence[str], gpu: Gpu, quick: bool, results: Results
) -> Iterator[EncoderCandidate]:
    """Yield the candidates of ``families`` on token ids; quick runs compile nothing."""
    for family in families:
        if family == TEXTS_ONLY or (quick and family in MODES):
            continue
        for dtype in PEERS[family]:
            try:
                yield EncoderCandidate(family, dtype, "torch", _open(subject, family, dtype, gpu))
            except Exception as error:
                results.leave_out(subject.label, f"{family} {dtype}", f"it cannot be opened: {first_line(error)}")


def _open(subject: Subject, family: str, dtype: str, gpu: Gpu) -> Prepare:
    module = _open_module(subject, "float32" if dtype == "tf32" else dtype, gpu.device)
    if family == "torch-graph":
        return partial(_capture_module, module, dtype, gpu)
    function = torch.compile(module, dynamic=False, mode=MODES[family]) if family in MODES else module

    def prepare(ids: Array, mask: Array) -> Call:
        def call() -> Array:
            with _use_products(dtype):
                given = (torch.from_numpy(a).to(gpu.device) for a in (ids, mask))
                return np.asarray(function(*given).cpu().numpy())

        return call

    return prepare


def _capture_module(module: Any, dtype: str, gpu: Gpu, ids: Array, mask: Array) -> Callable[..., Array]:
    """Capture ``module`` without a mask, which the host would read, for ids of this shape."""
    if not mask.all():
        raise ValueError("a graph without masks needs texts of equal length")
    there, vectors = torch.from_numpy(ids).to(gpu.device), torch.ones(ids.shape, device=gpu.device)
    here = torch.from_numpy(ids)
    here = here.pin_memory() if gpu.device == "cuda" else here
    with _use_products(dtype):
        replay = gpu.capture(lambda x: module.pool_without_mask(x, vectors), there)

    def call(other: Array | None = None) -> Array:
        if other is not None:
            here.copy_(torch.from_numpy(other))
        there.copy_(here, non_blocking=True)
        return np.asarray(replay().cpu().numpy())

    call.replay = replay  # type: ignore[attr-defined]
    return call


class GraphOfEachLength:
    """Embeds one text (1, D) by the CUDA graph of its number of tokens."""

    def __init__(self, subject: Subject, dtype: str, gpu: Gpu, tokenize: Callable[[Sequence[str]], Any]) -> None:
        module = _open_module(subject, dtype, gpu.device)
        self._prepare, self._tokenize = partial(_capture_module, module, dtype, gpu), tokenize
        self._graphs: dict[int, Callable[[Array], Array]] = {}

    def __call__(self, texts: Sequence[str]) -> Array:
        ids = self._tokenize(texts).ids.astype(np.int64)[None]
        if ids.shape[1] not in self._graphs:
            self._graphs[ids.shape[1]] = self._prepare(ids, np.ones_like(ids))
        return self._graphs[ids.shape[1]](ids)


def open_sentence_transformers(subject: Subject, dtype: str, gpu: Gpu) -> Callable[[Sequence[str]], Array]:
    """Open SentenceTransformer as users call it; raise ValueError if it is absent."""
    if find_spec("sentence_transformers") is None:
        raise ValueError(str(missing_extra("peers", "sentence_transformers", "this peer")))
    return engines.open_sentence_transformers(subject, dtype, device=gpu.device)
