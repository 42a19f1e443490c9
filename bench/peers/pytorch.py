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
    """Run the block with ``threads`` threads, no gradients and full float32 products, then restore the settings."""
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
    """Run torch.compile at its best: at its usual limit, code that synchronising reads split partly stays eager."""
    import torch._dynamo

    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    logger.setLevel(logging.ERROR)  # otherwise every split is reported
    torch.compiler.reset()
    try:
        with torch._dynamo.config.patch(recompile_limit=64):
            yield
    finally:
        logger.setLevel(before)


def device_ms(function: Callable[[Any], Any], x: Tensor, calls: int = 20, replays: int = 5) -> float:
    """Return the milliseconds of a call on ``x`` as one of ``calls`` in a CUDA graph, without launches from Python.

    It is the median of seven samples of ``replays`` replays each.
    """

    def many(x: Tensor) -> Any:
        return [function(x) for _ in range(calls)][-1]

    replay = capture(many, x)
    return statistics.median(cuda_watch(replay, replays) for _ in range(7)) / replays / calls * 1e3


def capture(function: Callable[[Any], Any], x: Tensor) -> Callable[[], Tensor]:
    """Capture ``function`` on ``x`` in a CUDA graph; each call replays it and overwrites the last result."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # lazy initialisation must not be captured
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
