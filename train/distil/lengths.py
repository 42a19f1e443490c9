"""Bags divided by the lengths of their vectors, so that the regression fits directions: a cosine is what counts.

A teacher's vector has length 1, and the mean of few or of kindred tokens is long, that of many is short. A first table,
fitted to the first shard, tells how long, and the regression is of (x / length) T, not of x T.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from fastflow.train.distil.ridge import Prior
from fastflow.train.distil.sums import Sums
from fastflow.train.distil.teacher import Vectors

FIRM = 0.1  # of the map of the first table, which has one shard to learn from
LIMIT = 5.0  # a length differs from the mean length by this factor at most


@dataclass(frozen=True)
class Lengths:
    """``table`` (V, D) float32, by which the mean length of a sentence's vector is 1."""

    table: Vectors

    def divide(self, bags: sparse.csr_array) -> sparse.csr_array:
        """(n, V) each of ``bags`` divided by the length of its vector."""
        lengths = np.clip(_lengths(bags, self.table), 1 / LIMIT, LIMIT)
        return sparse.csr_array(sparse.diags_array(1 / lengths) @ bags)


def first_lengths(
    alone: Vectors, counts: NDArray[np.int64], bags: sparse.csr_array, targets: NDArray[np.float32]
) -> Lengths:
    """Those of a table fitted to a shard, ``bags`` (n, V) and ``targets`` (n, D); the others as in Prior."""
    sums = Sums.of(bags, targets)
    table = Prior(alone, counts, sums, uniform=True)(FIRM) + sums.mean
    found = _lengths(bags, table)
    return Lengths(np.asarray(table / (found[found > 0].mean() if found.any() else 1.0), np.float32))


def _lengths(bags: sparse.csr_array, table: NDArray[np.floating]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(bags @ table, axis=1), np.float64)
