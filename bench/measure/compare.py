"""One comparison: candidates that must agree with float64 before they are timed in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError

# The relative L2 error allowed against float64, by what the arithmetic claims to be.
GRADES = {"float32": 2e-6, "tf32x3": 2e-6, "bf16x3": 2e-5, "tf32": 1e-3, "bfloat16": 1e-2}


@dataclass(frozen=True)
class Candidate:
    """Something to time. ``prepare``: the batch, and an array for the output or None -> the call that is timed."""

    name: str
    backend: str  # torch, triton, or cpu with the instruction set
    prepare: Callable[[Any, Any], Callable[[], Any]]
    dtype: str = "float32"
    piece: int | None = None  # very large batches are given to it by so many rows at a time; None: whole
    largest: int | None = None  # no batch above this is given to it at all
    optional: bool = False  # it needs a compiler: when its first call fails it is left out, with the reason
    details: dict[str, Any] = field(default_factory=dict)  # more keys for its rows


@dataclass(frozen=True)
class Errors:
    """Largest absolute and relative L2 difference from float64."""

    max_abs: float
    relative: float


def errors(z: NDArray[Any], exact: NDArray[Any]) -> Errors:
    """Of ``z`` (B, N) against float64 ``exact`` (B, N); not finite where z is not."""
    difference = z.astype(np.float64) - exact
    return Errors(float(np.abs(difference).max(initial=0)), float(np.linalg.norm(difference) / np.linalg.norm(exact)))


def check(name: str, z: NDArray[Any], exact: NDArray[Any], dtype: str, unfused: Errors) -> Errors:
    """The errors of candidate ``name``; a FastflowError when they are beyond what ``dtype`` may have.

    The limit is the dtype's grade, or four times the error of the unfused equations in float32 where the flow itself
    is so badly conditioned that they miss the grade.
    """
    if z.shape != exact.shape:
        raise FastflowError(f"bench: {name} gives shape {z.shape}, not {exact.shape}; nothing is timed")
    found = errors(z, exact)
    limit = max(GRADES[dtype], 4 * unfused.relative)
    if not (np.isfinite(z).all() and found.relative <= limit):
        raise FastflowError(
            f"bench: {name} differs from float64: relative error {found.relative:.1e}, and {dtype} allows {limit:.1e}; "
            "nothing is timed, since a wrong result has no speed"
        )
    return found


def checked(candidate: Candidate, z: Any, exact: NDArray[Any], scale: Errors) -> Errors:
    """The candidate's errors. Of a batch that repeats the inputs, a first, a middle and a last stretch is checked."""
    rows, size = len(z), len(exact)
    worst = Errors(0.0, 0.0)
    for start in sorted({0, rows // 2, max(0, rows - size)}) if rows > size else [0]:
        stop = min(start + size, rows)
        block = z[start:stop]
        block = block if isinstance(block, np.ndarray) else block.cpu().numpy()
        now = check(candidate.name, block, exact[np.arange(start, stop) % size], candidate.dtype, scale)
        worst = Errors(max(worst.max_abs, now.max_abs), max(worst.relative, now.relative))
    return worst
