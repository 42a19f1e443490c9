"""A matrix that stays a diagonal with a gather index as long as possible; sizes of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.flow import Plan, stack

Array = NDArray[Any]
LARGEST = 1e12  # products of two such numbers and their sums fit float32
INVERTIBLE = 1e30  # largest scale with an inverse that fits float32


class Linear:
    """A matrix (N, M): row i is scale[i] in column gather[i], until it becomes ``dense``."""

    def __init__(self, size: int) -> None:
        self.columns = size
        self.scale: Array = np.ones(size)
        self.gather: Array = np.arange(size)
        self.dense: Array | None = None

    def __len__(self) -> int:
        return len(self.scale) if self.dense is None else len(self.dense)

    def matrix(self) -> Array:
        if self.dense is not None:
            return self.dense
        return self.place(np.diag(self.scale), slice(None))

    def place(self, weight: Array, rows: slice) -> Array:
        """Move columns of ``weight`` (n, len(rows)) to the columns that ``rows`` gather: (n, M). Diagonal only."""
        out = np.zeros((len(weight), self.columns))
        out[:, self.gather[rows]] = weight
        return out

    def read(self, weight: Array, rows: slice) -> tuple[Array, tuple[int, int]]:
        """Return ``weight`` @ self[rows], (n, M), and the range of columns that may be nonzero."""
        if self.dense is not None:
            return weight @ self.dense[rows], (0, self.columns)
        return self.place(weight * self.scale[rows], rows), hull(self.gather[rows])

    def take(self, order: Array) -> None:
        if self.dense is None:
            self.scale, self.gather = self.scale[order], self.gather[order]
        else:
            self.dense = self.dense[order]

    def times(self, a: Array) -> None:
        if self.dense is None:
            self.scale = self.scale * a
        else:
            self.dense = a[:, None] * self.dense


def hull(indices: Array) -> tuple[int, int]:
    """Return the smallest range (lo, hi), hi exclusive, of ``indices``."""
    return int(indices.min()), int(indices.max()) + 1


def magnitude(array: Array) -> float:
    """Return the largest absolute value, or NaN, without np.abs's copy."""
    return max(float(array.max(initial=0)), -float(array.min(initial=0)))


def products(plan: Plan) -> int:
    """Count the multiply-adds for one vector, without blocks that are always 0."""
    w, reads, writes = plan.width, plan.reads, plan.writes
    steps = int(w * (reads[:, 1] - reads[:, 0]).sum()) + plan.B.size
    written = int(w * (writes[:, 1] - writes[:, 0]).sum()) * (1 if plan.R is None else 2)
    return steps + written + plan.S.size + (0 if plan.L is None else plan.L.size)


def join(plans: Sequence[Plan]) -> list[Plan]:
    """Replace neighbours with dense matrices by their ``stack`` if it takes fewer products."""
    groups: list[list[Plan]] = []
    for plan in plans:
        both = [*groups[-1], plan] if groups else []
        if both and all(map(_is_dense, both)) and _estimate(both) < _estimate(groups[-1]) + products(plan):
            groups[-1] = both
        else:
            groups.append([plan])
    return [group[0] if len(group) == 1 else stack(group) for group in groups]


def _is_dense(plan: Plan) -> bool:
    return plan.R is None and (plan.L is not None or plan.gather is None)


def _estimate(plans: Sequence[Plan]) -> int:
    """Count the products of ``plans``, stacked if several; a step then writes what dense matrices reach."""
    if len(plans) == 1:
        return products(plans[0])
    k, w, outputs = sum(plan.steps for plan in plans), max(plan.width for plan in plans), plans[-1].outputs
    reached = 0 if plans[-1].gather is None else outputs
    written = sum(plan.steps * (outputs - int(plan.reads.min(initial=reached))) for plan in plans)
    return plans[0].inputs * (k * w + outputs) + 2 * k * w * w + w * (written + k * (k - 1) // 2 * w) + outputs


def divides(scale: NDArray[Any], *largest: float) -> bool:
    """Return whether float32 can divide by ``scale`` (N,), and numbers up to ``largest`` stay within LARGEST."""
    low, high = np.abs(scale).min(), np.abs(scale).max()
    return bool(low > 1 / INVERTIBLE and high < INVERTIBLE and max(largest) <= low * LARGEST)
