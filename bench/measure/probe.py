"""The machine's ceilings, measured by PyTorch: products by dtype, and reads of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fastflow.bench.measure.row import Row
from fastflow.bench.measure.timing import Watch, cpu_watch, cuda_watch

DTYPES = {"cpu": ("float32",), "cuda": ("float32", "tf32", "float16", "bfloat16")}
SIDES = {"cpu": 1024, "cuda": 8192}  # side of the square matrices multiplied
FLOATS = {"cpu": 1 << 26, "cuda": 1 << 28}  # numbers read, more than any cache
WATCHES: dict[str, Watch] = {"cpu": cpu_watch, "cuda": cuda_watch}
THIRD = {"tf32x3": "tf32"}  # tf32x3 takes three products in tf32


def measure_ceilings(device: str, threads: int, seconds: float, side: int = 0) -> dict[str, Any]:
    """Return the entry of ``machine.ceilings``: 10^9 operations by dtype, and 10^9 bytes read, a second.

    The best of three samples of ``seconds``. ``side`` replaces SIDES.
    """
    watch, size, floats = WATCHES[device], side or SIDES[device], side * side or FLOATS[device]

    def find_fastest(call: Callable[[], Any]) -> float:
        calls = max(1, round(seconds / max(watch(call, 2) / 2, 1e-6)))
        return min(watch(call, calls) for _ in range(3)) / calls

    rates, before = {}, torch.backends.cuda.matmul.allow_tf32
    try:
        for dtype in DTYPES[device]:
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
            a, b, out = (torch.ones(size, size, dtype=kind, device=device) for _ in range(3))
            seconds_each = find_fastest(lambda a=a, b=b, out=out: torch.mm(a, b, out=out))  # type: ignore[misc]
            rates[dtype] = 2 * size**3 / seconds_each / 1e9
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    data = torch.ones(floats, device=device)
    return {
        "threads": threads,
        "measured_with": f"PyTorch: products of {size} x {size}, a sum of {floats} floats",
        "sgemm_gflops": rates["float32"],
        "gflops": rates,
        "gbs": {"reads": 4 * floats / find_fastest(data.sum) / 1e9},
    }


def add_floors(rows: Iterable[Row], ceilings: dict[str, Any]) -> None:
    """Add to rows with GFLOP/s and GB/s the least time by ``ceilings``, and the measured time over it."""
    for row in rows:
        dtype = row["dtype"]
        rate = ceilings["gflops"].get(THIRD.get(dtype, dtype), 0.0) / (3 if dtype in THIRD else 1)
        if row["threads"] == ceilings["threads"] and rate and row.get("gflops") and row.get("gbs"):
            share = max(row["gflops"] / rate, row["gbs"] / ceilings["gbs"]["reads"])
            row |= {"floor_ms": row["median_ms"] * share, "times_floor": 1 / share}
