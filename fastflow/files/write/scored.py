"""Rows that hold a vector and, after it, its log-density: how a growing file keeps both, and how they are parted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

ROWS = 4096  # parted at a time


def joined(vectors: NDArray[Any], log_probs: NDArray[np.float64] | None) -> bytes:
    """The bytes of the rows; of the vectors alone if there is no log-density."""
    if log_probs is None:
        return vectors.tobytes()
    rows = np.empty(len(vectors), _row(vectors.dtype, vectors.shape[1]))
    rows["vector"], rows["log_prob"] = vectors, log_probs
    return rows.tobytes()


def column(handle: BinaryIO, start: int, dtype: np.dtype[Any], width: int, name: str) -> Iterator[bytes]:
    """The bytes of every ``vector`` or every ``log_prob`` in the file from ``start`` on, ROWS after another."""
    row = _row(dtype, width)
    handle.seek(start)
    while data := handle.read(ROWS * row.itemsize):
        yield np.frombuffer(data, row)[name].tobytes()


def _row(dtype: np.dtype[Any], width: int) -> np.dtype[Any]:
    return np.dtype([("vector", dtype, (width,)), ("log_prob", "<f8")])
