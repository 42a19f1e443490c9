"""The best rows of each query: products in float32 find candidates, float64 decides between them.

A row's score is computed alone, in one order: it does not depend on the rows around it, so equal vectors have equal
scores, and ties go to the lower row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.search.codes import hammings, norms
from fastflow.search.source import Rows
from fastflow.stages.similarity import SIMILARITIES

Floats = NDArray[np.float64]
ROUNDING = 2.0**-22  # times the terms of a sum: more than float32 products and lengths can be off, relative
SIGNS = "signs"  # similarity of vectors that are packed bits: the cosine of their signs


class Best:
    """The ``k`` best rows so far of each of ``queries`` (q, D)."""

    def __init__(self, queries: NDArray[Any], k: int, similarity: str) -> None:
        self._queries, self._k, self._similarity = queries.astype(np.float64), k, similarity
        self._found: list[tuple[Rows, Floats]] = [(np.zeros(0, np.int64), np.zeros(0)) for _ in queries]
        lengths = np.sqrt((self._queries * self._queries).sum(axis=1))
        self._lengths = np.maximum(lengths, np.finfo(np.float32).tiny)
        self._rough = (self._queries / self._lengths[:, None]).astype(np.float32)

    def add(self, rows: Rows, vectors: NDArray[Any], lengths: NDArray[np.float32] | None = None) -> None:
        """Look at ``vectors`` (b, D), numbers of any kind; ``lengths`` (b,) are their L2 norms where they are known."""
        if self._similarity not in ("cosine", "dot"):
            for at, query in enumerate(self._queries):
                self._take(at, rows, exact(query, vectors, self._similarity))
            return
        floats = np.asarray(vectors, np.float32)
        lengths = norms(floats) if lengths is None else lengths
        rough = floats @ self._rough.T
        slack = ROUNDING * floats.shape[1]
        if self._similarity == "cosine":
            rough /= np.maximum(lengths, np.finfo(np.float32).tiny)[:, None]
        else:
            slack *= float(lengths.max(initial=0))
        for at, scores in enumerate(rough.T):
            worst = self.worst(at) / (1 if self._similarity == "cosine" else self._lengths[at])
            chosen = np.flatnonzero(scores >= worst - slack)
            if len(chosen) > self._k:
                among = scores[chosen]
                chosen = chosen[among >= np.partition(among, -self._k)[-self._k] - slack]
            if len(chosen):
                self._take(at, rows[chosen], exact(self._queries[at], vectors[chosen], self._similarity))

    def worst(self, at: int) -> float:
        """The score that a row must reach for query ``at``."""
        scores = self._found[at][1]
        return float(scores[-1]) if len(scores) == self._k else -np.inf

    def result(self) -> list[list[tuple[int, float]]]:
        """Row and score of the best of each query, best first."""
        return [list(zip(rows.tolist(), scores.tolist(), strict=True)) for rows, scores in self._found]

    def _take(self, at: int, rows: Rows, scores: Floats) -> None:
        known, before = self._found[at]
        rows, scores = np.concatenate([known, rows]), np.concatenate([before, scores])
        first = np.lexsort((rows, -scores))[: self._k]
        self._found[at] = rows[first], scores[first]


def exact(query: Floats, vectors: NDArray[Any], similarity: str) -> Floats:
    """(n,) similarities of ``query`` (D,) with ``vectors`` (n, D) in float64, each summed alone."""
    if similarity == SIGNS:
        packed = np.packbits(query > 0)
        return 1 - 2 * hammings(np.ascontiguousarray(vectors), packed) / len(query)
    x = vectors.astype(np.float64)
    if similarity not in ("cosine", "dot"):
        return np.asarray(SIMILARITIES[similarity](query[None], x)[0], np.float64)
    products = (x * query).sum(axis=1)
    if similarity == "dot":
        return products
    tiny = np.finfo(np.float32).tiny
    lengths = np.maximum(np.sqrt((x * x).sum(axis=1)), tiny)
    return products / lengths / max(float(np.sqrt((query * query).sum())), tiny)
