"""Find the best rows of each query: float32 products choose candidates, float64 decides between them.

Each row is scored by itself: equal vectors have equal scores, the lower row first. Rows with NaN are never found; no
other row is missed.

Let u be 2^-24, D at most 2^21, g = D u / (1 - D u) <= 1.15 D u, x a row, and q the query divided by its length. The
float32 product has an error of at most (g + u) |x|, the length of x (g / 2 + 2 u) |x|, and division, slack and
comparison 3 u. The sum is less than (2 D + 8) u |x|, which SLACK times D + 8 exceeds. Underflow is far smaller, except
for lengths that ``codes.far`` marks: these rows, and rows wider than D, are always candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.search.codes import LONG, TINY, far, hammings, norms, products
from fastflow.search.source import Rows
from fastflow.stages.vectors import SIMILARITIES

Floats = NDArray[np.float64]
SLACK, WIDEST = 2.0**-23, 2**21
PIECE = 8192  # candidates scored in float64 at a time
SIGNS = "signs"  # similarity of packed bits: the cosine of their signs


class Best:
    """The ``k`` best rows so far of each of ``queries`` (q, D)."""

    def __init__(self, queries: NDArray[Any], k: int, similarity: str, threads: int | None = None) -> None:
        self._queries, self._k, self._similarity = queries.astype(np.float64), k, similarity
        self._found: list[tuple[Rows, Floats]] = [(np.zeros(0, np.int64), np.zeros(0)) for _ in queries]
        lengths = np.sqrt((self._queries * self._queries).sum(axis=1))
        self._lengths = np.maximum(lengths, TINY)
        self._rough = (self._queries / self._lengths[:, None]).astype(np.float32)
        self._threads = threads

    def add(self, rows: Rows, vectors: NDArray[Any], lengths: NDArray[np.float32] | None = None) -> None:
        """Add candidates ``rows`` (b,) with ``vectors`` (b, D) or packed bits (b, ceil(D / 8)).

        ``lengths`` (b,): their ``norms``, None to compute them.
        """
        if self._similarity not in ("cosine", "dot"):
            for at, query in enumerate(self._queries):
                self._take(at, rows, exact(query, vectors, self._similarity))
            return
        floats = np.require(vectors, np.float32, ("C", "A"))
        lengths = norms(floats) if lengths is None else lengths
        rough, slack = self._score_roughly(floats, lengths)
        for at, scores in enumerate(rough):
            highest = scores + slack
            chosen = np.flatnonzero(highest >= self._bound(at))
            if len(chosen) > self._k:
                lowest = (scores - slack)[chosen]  # k rows score at least the k-th largest lower bound
                chosen = chosen[highest[chosen] >= np.partition(lowest, -self._k)[-self._k]]
            for start in range(0, len(chosen), PIECE):
                of = chosen[start : start + PIECE]
                self._take(at, rows[of], exact(self._queries[at], vectors[of], self._similarity))

    def _score_roughly(
        self, floats: NDArray[np.float32], lengths: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | np.float32]:
        """Return rough scores (q, b) and their largest error, (b,) or one for all."""
        rough = products(floats, self._rough, self._threads)
        slack: Any = np.float32(SLACK * (floats.shape[1] + 8))
        cosine = self._similarity == "cosine"
        with np.errstate(invalid="ignore"):
            if cosine:
                rough /= np.maximum(lengths, TINY)
            else:
                slack = slack * lengths
        unsure = far(lengths) if floats.shape[1] <= WIDEST else np.ones(len(lengths), bool)
        if unsure.any():
            rough[:, unsure] = 0
            slack = np.where(unsure, np.float32(np.inf), slack)
        return rough, slack

    def _bound(self, at: int) -> np.float32:
        worst = self.worst(at) / (1 if self._similarity == "cosine" else self._lengths[at])
        return np.float32(np.clip(worst, -LONG * LONG, LONG * LONG))  # loses no row: far rows are candidates

    def worst(self, at: int) -> float:
        scores = self._found[at][1]
        return float(scores[-1]) if len(scores) == self._k else -np.inf

    def list_best(self) -> list[list[tuple[int, float]]]:
        return [list(zip(rows.tolist(), scores.tolist(), strict=True)) for rows, scores in self._found]

    def _take(self, at: int, rows: Rows, scores: Floats) -> None:
        known, before = self._found[at]
        numbers = ~np.isnan(scores)
        rows, scores = rows[numbers], scores[numbers]
        rows, scores = np.concatenate([known, rows]), np.concatenate([before, scores])
        first = np.lexsort((rows, -scores))[: self._k]
        self._found[at] = rows[first], scores[first]


def exact(query: Floats, vectors: NDArray[Any], similarity: str) -> Floats:
    """Compute similarities (n,) of ``query`` (D,) with ``vectors`` (n, D) in float64."""
    if similarity == SIGNS:
        packed = np.packbits(query > 0)
        return 1 - 2 * hammings(np.ascontiguousarray(vectors), packed) / len(query)
    x = vectors.astype(np.float64)
    if similarity not in ("cosine", "dot"):
        return np.asarray(SIMILARITIES[similarity](query[None], x)[0], np.float64)
    with np.errstate(invalid="ignore"):
        dots = (x * query).sum(axis=1)
    if similarity == "dot":
        return dots
    lengths = np.maximum(np.sqrt((x * x).sum(axis=1)), TINY)
    with np.errstate(invalid="ignore"):
        return np.clip(dots / lengths / max(float(np.sqrt((query * query).sum())), float(TINY)), -1.0, 1.0)
