"""A comparison: candidates must agree with the reference before they are timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.transforms.vectors import compute_paired_cosine

GRADE = 2e-6  # the largest relative L2 error of a flow against float64
# The least cosine against PyTorch in float32.
COSINES = {"float32": 0.99999, "tf32": 0.9999, "float16": 0.9995, "bfloat16": 0.999, "int8": 0.98}
Who = TypeVar("Who", bound="Candidate")  # the suite's class of candidates
Judged = TypeVar("Judged")  # the accuracy of a candidate
Timed = TypeVar("Timed")  # the times of a candidate
Opened = TypeVar("Opened")  # the timed call


@dataclass(frozen=True)
class Candidate:
    """An engine to time; suites add how to call it."""

    name: str
    dtype: str
    backend: str  # torch, triton, cpu with the instruction set, or a peer's library

    @property
    def key(self) -> str:
        return f"{self.name} {self.dtype}"

    def as_fields(self) -> dict[str, str]:
        return {"name": self.name, "dtype": self.dtype, "backend": self.backend}


def compare(
    candidates: Iterable[Who],
    admit: Callable[[Who], tuple[Opened, Judged]],
    timer: Callable[[Mapping[str, Opened]], Mapping[str, Timed]],
    excuse: Callable[[Who, Exception], str | None],
    leave_out: Callable[[Who, str], None],
) -> list[tuple[Who, Judged, Timed]]:
    """Check every candidate, time the correct ones together, and return (candidate, accuracy, times) of each.

    ``admit`` returns the warmed-up call and its accuracy, and raises if the candidate fails or is wrong. ``excuse``
    returns the reason to leave it out, or None to end the run with the error.
    """
    calls: dict[str, Opened] = {}
    admitted: list[tuple[Who, Judged]] = []
    for candidate in candidates:
        try:
            call, accuracy = admit(candidate)
        except Exception as error:
            reason = excuse(candidate, error)
            if reason is None:
                raise
            leave_out(candidate, reason)
            continue
        calls[candidate.key] = call
        admitted.append((candidate, accuracy))
    timings = timer(calls)
    return [(candidate, accuracy, timings[candidate.key]) for candidate, accuracy in admitted]


class Errors(NamedTuple):
    """Largest absolute and relative L2 difference from float64, as fields of a row."""

    max_abs_err: float
    relative_err: float


def compute_errors(z: NDArray[Any], exact: NDArray[Any]) -> Errors:
    """Return the errors of ``z`` (B, N) against float64 ``exact`` (B, N); not finite if z is not."""
    difference = z.astype(np.float64) - exact
    return Errors(float(np.abs(difference).max(initial=0)), float(np.linalg.norm(difference) / np.linalg.norm(exact)))


def check(name: str, z: NDArray[Any], exact: NDArray[Any], unfused: Errors) -> Errors:
    """Return the errors of candidate ``name``; raise a FastflowError beyond the limit.

    The limit is GRADE or, if larger, four times the error ``unfused`` of the plain equations in float32.
    """
    if z.shape != exact.shape:
        raise FastflowError(f"bench: {name} gives shape {z.shape}, not {exact.shape}; nothing is timed")
    found = compute_errors(z, exact)
    limit = max(GRADE, 4 * unfused.relative_err)
    if not (np.isfinite(z).all() and found.relative_err <= limit):
        raise FastflowError(
            f"bench: {name} differs from float64: relative error {found.relative_err:.1e}, and at most {limit:.1e} is "
            "allowed; nothing is timed, since a wrong result has no speed"
        )
    return found


class Deviation(NamedTuple):
    """Least cosine of a row with PyTorch in float32, and largest absolute difference."""

    least_cosine: float
    max_abs_err: float


def measure_agreement(candidate: Candidate, z: Any, exact: NDArray[Any]) -> Deviation:
    """Return the agreement of ``z`` with ``exact``, both (B, D); raises as ``check_cosine`` does."""
    return Deviation(check_cosine(candidate.name, candidate.dtype, z, exact), float(np.abs(z - exact).max()))


def check_cosine(name: str, dtype: str, z: Any, exact: NDArray[Any]) -> float:
    """Return the least cosine of the rows of ``z`` and ``exact``, both (B, D).

    Raises a FastflowError for another shape, NaN, infinity, or a cosine below COSINES.
    """
    z = np.asarray(z, np.float64)
    if z.shape != exact.shape:
        raise FastflowError(f"bench: {name} {dtype} gives shape {z.shape}, not {exact.shape}; it is not timed")
    cosine = float(compute_paired_cosine(z, exact).min(initial=1.0))
    if not (np.isfinite(z).all() and cosine >= COSINES[dtype]):
        raise FastflowError(
            f"bench: {name} {dtype} differs from PyTorch in float32: cosine {cosine:.5f}, and at least "
            f"{COSINES[dtype]} is asked; it is not timed, since a wrong result has no speed"
        )
    return cosine
