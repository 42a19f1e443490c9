"""Divide bags by the lengths of their vectors, so that the regression fits directions.

A teacher's vector has length 1; a mean of few or similar tokens is longer than a mean of many. A table of the first
shard estimates the length, and the regression is of (x / length) T.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from fastflow.train.distil.ridge import Prior
from fastflow.train.distil.sums import Sums
from fastflow.train.distil.teacher import Vectors

FIRM = 0.1  # firmness of the first table
LIMIT = 5.0  # the largest ratio of a length to the mean length


@dataclass(frozen=True)
class Lengths:
    """``table`` (V, D) float32, scaled to a mean length of 1 of a sentence's vector."""

    table: Vectors

    def divide(self, bags: sparse.csr_array) -> sparse.csr_array:
        lengths = np.clip(_measure_lengths(bags, self.table), 1 / LIMIT, LIMIT)
        return sparse.csr_array(sparse.diags_array(1 / lengths) @ bags)


def fit_lengths(
    alone: Vectors, counts: NDArray[np.int64], bags: sparse.csr_array, targets: NDArray[np.float32]
) -> Lengths:
    """Fit the first table to a shard, ``bags`` (n, V) and ``targets`` (n, D)."""
    sums = Sums.of(bags, targets)
    table = Prior(alone, counts, sums, uniform=True)(FIRM) + sums.mean
    found = _measure_lengths(bags, table)
    return Lengths(np.asarray(table / (found[found > 0].mean() if found.any() else 1.0), np.float32))


def _measure_lengths(bags: sparse.csr_array, table: NDArray[np.floating]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(bags @ table, axis=1), np.float64)
