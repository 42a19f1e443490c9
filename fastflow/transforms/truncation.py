"""Measured properties of embeddings: leading directions, which ``truncate_dim`` keeps, and root mean squares (spread).

A flow's dimensions are interchangeable, so a model may store an orthogonal basis to cut by. int8 and uint8 need a fixed
range, so calibrations that do not end in unit variance may store the spread of each dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.transforms.calibration import Stage, apply_wide, output_dim, unit_variance

SAMPLE = 16384
BLOCK = 2048
SPREAD = "spread"
ORTHOGONAL = 1e-4


class Rows(Protocol):
    """(n, D) vectors read by slice or by number: an array, or a file larger than memory."""

    @property
    def shape(self) -> Any: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Joined:
    """The rows of ``first`` (n, D), then of ``second`` (k, D), without a copy."""

    def __init__(self, first: Rows, second: Rows) -> None:
        self._first, self._second = first, second
        self.shape = (len(first) + len(second), first.shape[1])

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        numbers = np.arange(len(self))[rows]
        behind = numbers >= len(self._first)
        out = np.empty((len(numbers), self.shape[1]), np.result_type(self._first[:1], self._second[:1]))
        out[~behind] = self._first[numbers[~behind]]
        out[behind] = self._second[numbers[behind] - len(self._first)]
        return out


class Truncation(NamedTuple):
    """Orthonormal columns ``basis`` (D', D'), leading first; ``deviation`` (D',): root mean squares along them."""

    basis: NDArray[Any]
    deviation: NDArray[Any]

    def stage(self, k: int) -> Stage:
        """Return the stage (B, D') -> (B, k) that projects on the first k columns."""
        return Stage("whiten", {}, {"mean": np.zeros_like(self.basis[:, 0]), "matrix": self.basis[:, :k]})


def fit_truncation(stages: Sequence[Stage], pooled: Rows) -> Truncation | None:
    """Fit the basis on pooled vectors (n, D); None unless the last stage is a flow (bench/results/verdicts.md)."""
    return leading_directions(stages, pooled) if stages and stages[-1].kind == "flow" else None


def leading_directions(stages: Sequence[Stage], pooled: Rows) -> Truncation:
    """Return, as basis, left singular vectors of the covariance (D', D) of embedding and pooled vector.

    Variances cannot order the directions: whitening made them equal.
    """
    dims = output_dim(stages, pooled.shape[1])
    count, x_sum, z_sum = 0, np.zeros(pooled.shape[1]), np.zeros(dims)
    cross, square = np.zeros((dims, pooled.shape[1])), np.zeros((dims, dims))
    for x, z in sample_embeddings(stages, pooled):
        count, x_sum, z_sum = count + len(x), x_sum + x.sum(axis=0), z_sum + z.sum(axis=0)
        cross, square = cross + z.T @ x, square + z.T @ z
    basis = np.linalg.svd(cross / count - np.outer(z_sum, x_sum) / count**2)[0]
    largest = np.abs(basis).argmax(axis=0)
    basis = basis * np.sign(basis[largest, np.arange(len(basis))])  # a singular vector has either sign
    deviation = np.sqrt(np.maximum(np.einsum("ij,ik,kj->j", basis, square / count, basis, optimize=True), 0))
    return Truncation(basis.astype(np.float32), deviation.astype(np.float32))


def sample_embeddings(stages: Sequence[Stage], pooled: Rows) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield pooled vectors (b, D) and embeddings (b, D') in float64, of up to SAMPLE rows."""
    rows = pooled[:: -(-len(pooled) // SAMPLE)]
    for start in range(0, len(rows), BLOCK):
        x = np.asarray(rows[start : start + BLOCK], np.float64)
        yield x, apply_wide(stages, x)


def write_truncation(truncation: Truncation) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``truncation`` to store."""
    return {f"truncation.{name}": np.ascontiguousarray(getattr(truncation, name)) for name in ("basis", "deviation")}


def read_truncation(arrays: Mapping[str, NDArray[Any]], dim: int, where: str) -> Truncation | None:
    """Read the truncation of ``dim`` dimensions from ``arrays`` of the file ``where``; None if absent."""
    shapes = {"truncation.basis": (dim, dim), "truncation.deviation": (dim,)}
    if not any(name in arrays for name in shapes):
        return None
    for name, shape in shapes.items():
        if name not in arrays:
            raise FastflowError(f"{where}: array {name} is missing; copy or train the model again")
        array = arrays[name]
        if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
            raise FastflowError(f"{where}, array {name}: must be finite float32 of shape {shape}")
    deviation = arrays["truncation.deviation"]
    if (deviation < 0).any() or not deviation[0] > 0:  # int8 divides by the largest
        raise FastflowError(f"{where}, array truncation.deviation: must be at least 0, and above it at first")
    found = Truncation(arrays["truncation.basis"], arrays["truncation.deviation"])
    wide = found.basis.astype(np.float64)
    if not np.abs(wide.T @ wide - np.eye(dim)).max(initial=0) <= ORTHOGONAL:
        raise FastflowError(f"{where}, array truncation.basis: its columns are not orthonormal; train the model again")
    return found


def fit_spread(stages: Sequence[Stage], pooled: Rows) -> NDArray[np.float32] | None:
    """Measure each dimension's root mean square (D',) over a sample of (n, D); a zero becomes the largest.

    None if the calibration ends in unit variance, or if the spread is 0 or not finite.
    """
    if unit_variance(stages):
        return None
    count, total = 0, np.zeros(1)
    for _, z in sample_embeddings(stages, pooled):
        count, total = count + len(z), total + np.square(z).sum(axis=0)
    spread = np.sqrt(total / count).astype(np.float32)
    spread = np.where(spread == 0, spread.max(), spread)
    return spread if _sound(spread) else None


def read_spread(arrays: Mapping[str, NDArray[Any]], dim: int, where: str) -> NDArray[np.float32] | None:
    """Read the spread of ``dim`` dimensions from ``arrays`` of the file ``where``; None if absent."""
    if SPREAD not in arrays:
        return None
    found = arrays[SPREAD]
    if found.shape != (dim,) or found.dtype != np.float32 or not _sound(found):
        raise FastflowError(f"{where}, array {SPREAD}: must be float32 of shape ({dim},), finite and above 0")
    return found


def _sound(spread: NDArray[Any]) -> bool:
    return bool((np.isfinite(spread) & (spread > 0)).all())
