"""Similarities, named as in Sentence Transformers: larger is more similar. Different widths are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.stages.vectors import check_same_width, compute_paired_cosine, cosine

BLOCK = 1 << 22
Measure = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]


def dot(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (n, D) -> (m, n) dot products."""
    check_same_width(a, b)
    return np.asarray(a @ b.T)


def euclidean(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (n, D) -> (m, n) negated Euclidean distances."""
    return _measure(_euclidean, a, b)


def manhattan(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (n, D) -> (m, n) negated sums of absolute differences."""
    return _measure(_manhattan, a, b)


def _euclidean(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return -np.asarray(np.sqrt(np.square(a - b).sum(axis=-1)))


def _manhattan(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return -np.asarray(np.abs(a - b).sum(axis=-1))


def _measure(rows: Measure, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    check_same_width(a, b)
    out = np.empty((len(a), len(b)), np.result_type(a, b))
    step = max(1, BLOCK // max(1, b.size))
    for start in range(0, len(a), step):
        out[start : start + step] = rows(a[start : start + step, None], b)
    return out


def pairwise(name: str, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (m, D) -> (m,) similarities of kind ``name``, row by row."""
    check_same_width(a, b)
    if len(a) != len(b):
        raise FastflowError(f"similarity_pairwise takes as many rows on both sides, not {len(a)} and {len(b)}")
    if name == "cosine":
        return compute_paired_cosine(a, b)
    if name == "dot":
        return np.asarray((a * b).sum(axis=1))
    return _manhattan(a, b) if name == "manhattan" else _euclidean(a, b)


SIMILARITIES: dict[str, Measure] = {"cosine": cosine, "dot": dot, "euclidean": euclidean, "manhattan": manhattan}
