"""Similarities, named as in Sentence Transformers: larger is more similar. Different widths are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.stages.vectors import check_same_width, compute_paired_cosine, cosine

BLOCK = 1 << 22


def dot(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (n, D) -> (m, n) dot products."""
    check_same_width(a, b)
    return np.asarray(a @ b.T)


def euclidean(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (n, D) -> (m, n) negated Euclidean distances."""
    return -_distances(a, b, lambda difference: np.sqrt(np.square(difference).sum(axis=-1)))


def manhattan(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (n, D) -> (m, n) negated sums of absolute differences."""
    return -_distances(a, b, lambda difference: np.abs(difference).sum(axis=-1))


def _distances(a: NDArray[Any], b: NDArray[Any], length: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    check_same_width(a, b)
    out = np.empty((len(a), len(b)), np.result_type(a, b))
    step = max(1, BLOCK // max(1, b.size))
    for start in range(0, len(a), step):
        out[start : start + step] = length(a[start : start + step, None] - b)
    return out


def pairwise(name: str, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (m, D) -> (m,) similarities of kind ``name``, row by row."""
    check_same_width(a, b)
    if len(a) != len(b):
        raise FastflowError(f"similarity_pairwise takes as many rows on both sides, not {len(a)} and {len(b)}")
    if name == "cosine":
        return np.clip(compute_paired_cosine(a, b), -1.0, 1.0)
    if name == "dot":
        return np.asarray((a * b).sum(axis=1))
    length = np.abs(a - b).sum(axis=1) if name == "manhattan" else np.sqrt(np.square(a - b).sum(axis=1))
    return np.asarray(-length)


SIMILARITIES: dict[str, Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]] = {
    "cosine": cosine,
    "dot": dot,
    "euclidean": euclidean,
    "manhattan": manhattan,
}
