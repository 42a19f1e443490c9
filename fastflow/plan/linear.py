"""A matrix that stays a diagonal with a gather index as long as possible."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Linear:
    """A matrix (N, M): diagonal ``scale`` and ``gather``, (N,) each, until it becomes ``dense``."""

    def __init__(self, size: int) -> None:
        self.columns = size
        self.scale: Array = np.ones(size)
        self.gather: Array = np.arange(size)
        self.dense: Array | None = None

    def __len__(self) -> int:
        return len(self.scale) if self.dense is None else len(self.dense)

    def matrix(self) -> Array:
        """(N, M), dense."""
        if self.dense is not None:
            return self.dense
        return self.place(np.diag(self.scale), slice(None))

    def place(self, weight: Array, rows: slice) -> Array:
        """Move columns (n, len(rows)) -> (n, M) to the channels that ``rows`` gather from. Diagonal only."""
        out = np.zeros((len(weight), self.columns))
        out[:, self.gather[rows]] = weight
        return out

    def read(self, weight: Array, rows: slice) -> tuple[Array, tuple[int, int]]:
        """Return ``weight`` @ self[rows], (n, M), and the range of columns that may be nonzero."""
        if self.dense is not None:
            return weight @ self.dense[rows], (0, self.columns)
        return self.place(weight * self.scale[rows], rows), hull(self.gather[rows])

    def take(self, order: Array) -> None:
        """Reorder the rows."""
        if self.dense is None:
            self.scale, self.gather = self.scale[order], self.gather[order]
        else:
            self.dense = self.dense[order]

    def times(self, a: Array) -> None:
        """Multiply row i by a[i]."""
        if self.dense is None:
            self.scale = self.scale * a
        else:
            self.dense = a[:, None] * self.dense


def hull(indices: Array) -> tuple[int, int]:
    """Return the smallest range (lo, hi), hi exclusive, that holds all ``indices``."""
    return int(indices.min()), int(indices.max()) + 1


def width(rows: Array) -> int:
    """Return the length of the smallest range that holds all true ``rows``."""
    low, high = hull(np.flatnonzero(rows))
    return high - low


def magnitude(array: Array) -> float:
    """Return the largest absolute value, or NaN; np.abs would copy, which takes longer."""
    return max(float(array.max(initial=0)), -float(array.min(initial=0)))
