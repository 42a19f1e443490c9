"""PyTorch's settings while a benchmark runs, and the capture of a call in a CUDA graph."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fastflow.bench.measure.timing import cuda_watch


@contextmanager
def settings(threads: int) -> Iterator[None]:
    """``threads`` threads, no gradients and full float32 products; as it was before, afterwards."""
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
    """torch.compile at its best: at its usual limit, code that synchronising reads cut up partly stays eager."""
    import torch._dynamo

    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(logging.ERROR)  # otherwise every cut is reported
    torch.compiler.reset()
    try:
        with torch._dynamo.config.patch(recompile_limit=64):
            yield
    finally:
        logger.setLevel(before)


def device_ms(function: Callable[[Any], Any], x: Tensor, calls: int = 20, replays: int = 5) -> float:
    """Milliseconds of a call of ``function`` on ``x`` as one of ``calls`` in a CUDA graph: no launch from Python.

    The median of seven samples of ``replays`` replays each.
    """

    def many(x: Tensor) -> Any:
        return [function(x) for _ in range(calls)][-1]

    replay = captured(many, x)
    return statistics.median(cuda_watch(replay, replays) for _ in range(7)) / replays / calls * 1e3


def captured(function: Callable[[Any], Any], x: Tensor) -> Callable[[], Tensor]:
    """A CUDA graph of ``function`` on ``x``, replayed by each call; the result is overwritten by the next."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # a few calls outside the capture: lazy initialisation must not be captured
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
