"""Measure a GPU's ceilings: products by precision, reads and copies of memory, and the cost of a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fastflow.bench.measure.timing import Watch, cuda_watch

DTYPES = ("float32", "tf32", "float16", "bfloat16")
SIDE = 8192  # of the square matrices multiplied
FLOATS = 1 << 28  # read and copied: 1 GiB, far beyond any cache


@dataclass(frozen=True)
class GpuCeilings:
    """Rates in 10^9 operations and bytes a second; a launch in microseconds, alone and as a node of a graph."""

    gflops: dict[str, float]
    read_gbs: float
    copy_gbs: float
    launch_us: float
    node_us: float

    def floors_ms(self, dtype: str, flop: float, traffic: float) -> tuple[float, float]:
        """Return the least milliseconds for ``flop`` operations in ``dtype``, and for reading ``traffic`` bytes."""
        return flop / self.gflops[dtype] / 1e6, traffic / self.read_gbs / 1e6

    def floor_ms(self, flop: float, traffic: float) -> float:
        """Return the least milliseconds for ``flop`` float32 operations and for copying ``traffic`` bytes."""
        return max(flop / self.gflops["float32"], traffic / self.copy_gbs) / 1e6

    def as_dict(self) -> dict[str, Any]:
        """Return the entry under ``machine.ceilings``, with the names of a CPU's."""
        return {
            "threads": 0,
            "measured_with": f"PyTorch: products of {SIDE} x {SIDE}, a sum and a copy of 1 GiB, an empty addition",
            "fma_gflops": round(self.gflops["float32"], 1),
            "sgemm_gflops": round(self.gflops["float32"], 1),
            "gflops": {dtype: round(rate, 1) for dtype, rate in self.gflops.items()},
            "gbs": {"memory": round(self.copy_gbs, 1), "reads": round(self.read_gbs, 1)},
            "launch_us": round(self.launch_us, 2),
            "graph_node_us": round(self.node_us, 2),
        }


@contextmanager
def use_products(dtype: str) -> Iterator[None]:
    """Multiply float32 through TF32 in the block if, and only if, ``dtype`` is tf32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def to_torch_dtype(dtype: str) -> torch.dtype:
    """Return the dtype of tensors; tf32 is a way to multiply float32."""
    found = getattr(torch, "float32" if dtype == "tf32" else dtype)
    assert isinstance(found, torch.dtype)  # noqa: S101 - for the type checker
    return found


def probe(
    device: str, capture: Callable[[Callable[[], Any]], Callable[[], Any]], watch: Watch = cuda_watch,
    side: int = SIDE, floats: int = FLOATS, seconds: float = 0.05,
) -> GpuCeilings:  # fmt: skip
    """Measure the ceilings of ``device``, ``seconds`` a figure; ``capture`` turns a call into a replayed graph."""

    def fastest(call: Callable[[], Any]) -> float:
        watch(call, 2)
        rounds = max(1, round(seconds / max(watch(call, 1), 1e-6)))
        return min(watch(call, rounds) for _ in range(3)) / rounds

    rates = {}
    for dtype in DTYPES:
        a, b, out = (torch.ones(side, side, dtype=to_torch_dtype(dtype), device=device) for _ in range(3))
        with use_products(dtype):
            rates[dtype] = 2 * side**3 / fastest(lambda a=a, b=b, out=out: torch.mm(a, b, out=out)) / 1e9  # type: ignore[misc]
    x = torch.ones(floats, device=device)
    y = torch.empty_like(x)
    read, copy = fastest(lambda: torch.sum(x)), fastest(lambda: y.copy_(x))
    small = torch.zeros(32, device=device)
    many = 100
    launch = fastest(lambda: small.add_(1))

    def chain() -> None:
        for _ in range(many):
            small.add_(1)

    node = fastest(capture(chain)) / many
    return GpuCeilings(rates, 4 * floats / read / 1e9, 8 * floats / copy / 1e9, launch * 1e6, node * 1e6)
