"""The ridge regression about a prior: solve for a table T (V, D) of token vectors.

    T = T0 + argmin_D |X (T0 + D) - Y|^2 + penalty |D|^2        (X^T X + penalty I) D = X^T (Y - X T0)

X (n, V) are bags of tokens, Y (n, D) the centred targets. The prior T0 is one linear map of the teacher's vector of
each single token. A token in no sentence keeps its prior. Conjugate gradients with Jacobi's preconditioner solve the
system (Hestenes & Stiefel 1952).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fastflow.train.distil.sums import COLUMNS, Floats, Sums

Singles = NDArray[np.float32]

RARE = (3e-3, 1e-4)  # two values of SIF's a; the map mixes both
TOLERANCE = 1e-3  # of a column's residual, relative to its right side
MOST_STEPS = 500


class Prior:
    """Token vectors from ``alone`` (V, D), the teacher's of each token, zero for a special token.

    ``counts`` (V,) are the corpus's. ``uniform``: without token weights the map mixes k copies, weighted by RARE.
    """

    def __init__(self, alone: NDArray[np.float32], counts: NDArray[np.int64], sums: Sums, uniform: bool) -> None:
        usable = np.any(alone != 0, axis=1)
        centred = np.where(usable[:, None], alone - alone[usable].mean(axis=0, dtype=np.float64), 0.0)
        share = (counts / max(1, counts.sum()))[:, None]
        copies = [centred * (rare / (rare + share)) for rare in RARE] if uniform else [centred]
        self.features = np.hstack(copies)  # (V, kD)
        self._square = self.features.T @ sums.multiply(self.features).astype(np.float64)
        self._right = self.features.T @ sums.centre()

    def __call__(self, firmness: float) -> Floats:
        return np.asarray(self.features @ self.fit_map(firmness))

    def fit_map(self, firmness: float) -> Floats:
        """Fit the map (kD, D); ``firmness`` draws it to a multiple of the first copy."""
        (width, dim), unit = self._right.shape, float(np.diagonal(self._square).mean()) or 1.0
        size = float(np.trace(self._square[:dim, :dim]))
        plain = np.eye(width, dim) * (float(np.trace(self._right[:dim])) / size if size > 0 else 0.0)
        system = self._square + firmness * unit * np.eye(width)
        return np.asarray(plain + np.linalg.solve(system, self._right - self._square @ plain))


def compute_right_side(sums: Sums, start: Floats) -> Floats:
    """Compute X^T (Y - X T0) (V, D) for centred Y; ``start`` is T0."""
    return np.asarray(sums.centre() - sums.multiply(start))


def solve(
    sums: Sums,
    right: Floats,
    penalty: float,
    start: Singles | None = None,
    tolerance: float = TOLERANCE,
    count: Callable[[int], None] = lambda columns: None,
) -> Singles:
    """Solve (X^T X + ``penalty`` I) D = ``right`` for D (V, D); ``count`` takes solved columns.

    A column's residual is at most ``tolerance`` times its right side, in float32.
    """
    out = np.empty(right.shape, np.float32)
    inverse = (1.0 / (sums.diagonal() + penalty)).astype(np.float32)[:, None]
    for first in range(0, right.shape[1], COLUMNS):
        part = slice(first, first + COLUMNS)
        begun = None if start is None else np.ascontiguousarray(start[:, part])
        wanted = np.ascontiguousarray(right[:, part], np.float32)
        out[:, part] = _solve_columns(sums, wanted, np.float32(penalty), inverse, begun, tolerance)
        count(wanted.shape[1])
    return out


def _solve_columns(
    sums: Sums, right: Singles, penalty: np.float32, inverse: Singles, start: Singles | None, tolerance: float
) -> Singles:
    found = np.zeros_like(right) if start is None else start.copy()
    residual = right.copy() if start is None else right - (sums.multiply(found) + penalty * found)
    goal = tolerance * np.linalg.norm(right, axis=0)
    direction = inverse * residual
    size = (residual * direction).sum(axis=0)
    for _ in range(MOST_STEPS):
        open_ = np.linalg.norm(residual, axis=0) > goal
        if not open_.any():
            break
        image = sums.multiply(direction) + penalty * direction
        step = _divide(size, (direction * image).sum(axis=0), open_)
        found += step * direction
        residual -= step * image
        better = inverse * residual
        before, size = size, (residual * better).sum(axis=0)
        direction = better + _divide(size, before, open_) * direction
    return found


def _divide(over: Singles, under: Singles, where: NDArray[np.bool_]) -> Singles:
    return np.divide(over, under, out=np.zeros_like(over), where=where & (under > 0))


def find_principal(sums: Sums, table: Floats, dim: int) -> Floats:
    """Find the ``dim`` directions (D, dim) of the largest variance of sentence vectors."""
    mean = sums.bag @ table / sums.count
    scatter = table.T @ sums.multiply(table) / sums.count - np.outer(mean, mean)
    return np.ascontiguousarray(np.linalg.eigh((scatter + scatter.T) / 2)[1][:, ::-1][:, :dim])
