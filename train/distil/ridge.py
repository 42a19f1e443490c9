"""The ridge regression about a prior: sums over sentences -> a table T (V, D) of token vectors.

    T = T0 + argmin_D |X (T0 + D) - Y|^2 + penalty |D|^2        (X^T X + penalty I) D = X^T (Y - X T0)

X (n, V) are bags of tokens, Y (n, D) the centred targets. The prior T0 is a linear map, the same for all tokens, of the
teacher's vector of each token alone. A token that no sentence holds keeps its prior. The system is solved by conjugate
gradients with Jacobi's preconditioner (Hestenes & Stiefel 1952).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fastflow.train.distil.sums import COLUMNS, Floats, Sums

Singles = NDArray[np.float32]

RARE = (3e-3, 1e-4)  # each an a of SIF: a token of share p counts a / (a + p); the map takes both
TOLERANCE = 1e-3  # of the residual of each column, relative to its right side
MOST_STEPS = 500


class Prior:
    """Token vectors made from ``alone`` (V, D), the teacher's of each token, zero for a token that no text can hold.

    ``counts`` (V,) are the tokens of the corpus. ``uniform``: all tokens count 1 in the bags, so rare ones get their
    weight here, once for each of RARE, and the map mixes these k copies.
    """

    def __init__(self, alone: NDArray[np.float32], counts: NDArray[np.int64], sums: Sums, uniform: bool) -> None:
        usable = np.any(alone != 0, axis=1)
        centred = np.where(usable[:, None], alone - alone[usable].mean(axis=0, dtype=np.float64), 0.0)
        share = (counts / max(1, counts.sum()))[:, None]
        copies = [centred * (rare / (rare + share)) for rare in RARE] if uniform else [centred]
        self.features = np.hstack(copies)  # (V, kD)
        self._square = self.features.T @ sums.square(self.features).astype(np.float64)
        self._right = self.features.T @ sums.centred()

    def __call__(self, firmness: float) -> Floats:
        """(V, D) T0: ``features`` times ``map``."""
        return np.asarray(self.features @ self.map(firmness))

    def map(self, firmness: float) -> Floats:
        """(kD, D) the map that fits best; ``firmness`` draws it to a multiple of the first copy."""
        (width, dim), unit = self._right.shape, float(np.diagonal(self._square).mean()) or 1.0
        size = float(np.trace(self._square[:dim, :dim]))
        plain = np.eye(width, dim) * (float(np.trace(self._right[:dim])) / size if size > 0 else 0.0)
        system = self._square + firmness * unit * np.eye(width)
        return np.asarray(plain + np.linalg.solve(system, self._right - self._square @ plain))


def right_side(sums: Sums, start: Floats) -> Floats:
    """(V, D) X^T (Y - X T0), Y centred by ``Sums.centred``; ``start`` is T0."""
    return np.asarray(sums.centred() - sums.square(start))


def solve(
    sums: Sums,
    right: Floats,
    penalty: float,
    start: Singles | None = None,
    tolerance: float = TOLERANCE,
    count: Callable[[int], None] = lambda columns: None,
) -> Singles:
    """(V, D) the solution of (X^T X + ``penalty`` I) D = ``right``, from ``start`` on; ``count`` takes columns solved.

    Every column's residual is at most ``tolerance`` times its right side, in float32.
    """
    out = np.empty(right.shape, np.float32)
    inverse = (1.0 / (sums.squares() + penalty)).astype(np.float32)[:, None]
    for first in range(0, right.shape[1], COLUMNS):
        part = slice(first, first + COLUMNS)
        begun = None if start is None else np.ascontiguousarray(start[:, part])
        wanted = np.ascontiguousarray(right[:, part], np.float32)
        out[:, part] = _gradients(sums, wanted, np.float32(penalty), inverse, begun, tolerance)
        count(wanted.shape[1])
    return out


def _gradients(
    sums: Sums, right: Singles, penalty: np.float32, inverse: Singles, start: Singles | None, tolerance: float
) -> Singles:
    """``solve`` of some columns; a column that is solved takes no further step."""
    found = np.zeros_like(right) if start is None else start.copy()
    residual = right.copy() if start is None else right - (sums.square(found) + penalty * found)
    goal = tolerance * np.linalg.norm(right, axis=0)
    direction = inverse * residual
    size = (residual * direction).sum(axis=0)
    for _ in range(MOST_STEPS):
        open_ = np.linalg.norm(residual, axis=0) > goal
        if not open_.any():
            break
        image = sums.square(direction) + penalty * direction
        step = _ratio(size, (direction * image).sum(axis=0), open_)
        found += step * direction
        residual -= step * image
        better = inverse * residual
        before, size = size, (residual * better).sum(axis=0)
        direction = better + _ratio(size, before, open_) * direction
    return found


def _ratio(over: Singles, under: Singles, where: NDArray[np.bool_]) -> Singles:
    return np.divide(over, under, out=np.zeros_like(over), where=where & (under > 0))


def principal(sums: Sums, table: Floats, dim: int) -> Floats:
    """(D, dim) the directions in which the table's sentence vectors vary most, the widest first."""
    mean = sums.bag @ table / sums.count
    scatter = table.T @ sums.square(table) / sums.count - np.outer(mean, mean)
    return np.ascontiguousarray(np.linalg.eigh((scatter + scatter.T) / 2)[1][:, ::-1][:, :dim])
