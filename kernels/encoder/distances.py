"""Rotary angles and relative biases: positions in attention without a position table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.encoder import BUCKETS, FARTHEST

Array = NDArray[Any]


def rotary_angles(count: int, head: int, base: float) -> NDArray[np.float32]:
    """Return angles (count, head / 2): p base^(-2i / head) for position p and channel pair i (Su et al. 2021).

    Angles are float32 products, as in training: exact angles differ by up to 5e-4 at position 8191.
    """
    exponents = np.arange(0, head, 2, dtype=np.float32) / np.float32(head)
    frequencies = np.float32(1) / np.power(np.float64(base), exponents.astype(np.float64)).astype(np.float32)
    return np.arange(count, dtype=np.float32)[:, None] * frequencies


def rotary_table(count: int, head: int, base: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return cosine and sine of ``rotary_angles``, each (count, head / 2)."""
    angles = rotary_angles(count, head, base).astype(np.float64)
    return np.cos(angles), np.sin(angles)


def rotate(x: Array, base: float) -> Array:
    """Rotate channel pairs (i, i + d/2) of x (..., T, d) by the angles of positions 0 to T - 1."""
    cos, sin = (table.astype(x.dtype) for table in rotary_table(x.shape[-2], x.shape[-1], base))
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def buckets(distances: Array) -> NDArray[np.int64]:
    """Return the row of MPNet's bias table for each distance key - query (Raffel et al. 2020).

    Half of the rows are for later keys: one per distance below 8, then for ever wider ranges.
    """
    half = BUCKETS // 2
    exact = half // 2
    away = np.abs(distances)
    octaves = np.log2(np.maximum(away, 1) / exact) / np.log2(FARTHEST / exact)  # exact for powers of two
    far = np.minimum(exact + np.floor(octaves * (half - exact)).astype(np.int64), half - 1)
    return np.where(away < exact, away, far) + half * (distances > 0)


def relative_bias(table: Array) -> Array:
    """Return biases (heads, 2 FARTHEST + 1) by distance key - query, from MPNet's table (BUCKETS, heads)."""
    return table[buckets(np.arange(-FARTHEST, FARTHEST + 1))].T
