"""PyTorch as a benchmark wants it, for as long as the benchmark runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
