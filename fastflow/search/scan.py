"""Find the best rows of each query: float32 products choose candidates, float64 decides between them.

Each row is scored by itself: equal vectors have equal scores, the lower row first. Rows with NaN are never found; no
other row is missed.

Let u be 2^-24, D at most 2^21, g = D u / (1 - D u) <= 1.15 D u, x a row, and q the query divided by its length. The
float32 product has an error of at most (g + u) |x|, the length of x (g / 2 + 2 u) |x|, and division, slack and
comparison 3 u. The sum is less than (2 D + 8) u |x|, which SLACK times D + 8 exceeds. Underflow is far smaller, except
for lengths that ``far`` marks: these rows, and rows wider than D, are always candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.search import reference
from fastflow.model import Model
from fastflow.model.encoder import is_static
from fastflow.search.source import Hit, Rows, Source, Where
from fastflow.transforms.vectors import SIMILARITIES
from fastflow.values import short

if TYPE_CHECKING:
    from fastflow.session import Session

kernels: Any = reference
with suppress(ImportError):  # built without a compiler
    from fastflow.kernels.search import cpu as kernels

Floats = NDArray[np.float64]
SLACK, WIDEST = 2.0**-23, 2**21
PIECE = 8192  # candidates scored in float64 at a time
LEVELS = 127
TINY = np.finfo(np.float32).tiny
SHORT, LONG = 2.0**-40, 2.0**60  # between these lengths float32 products neither vanish nor overflow
MANY = 16  # queries, from which on a BLAS is faster
HOLDS = ("vectors", "int8")
BLOCK = 16_384  # rows multiplied at a time
SIGNS = "signs"  # similarity of packed bits: the cosine of their signs
BY = ("vectors", "words", "both")
DEPTH = 100  # rows of each list in a search by both
SHARES = {"table": 0.6, "untuned": 0.8, "tuned": 0.4}  # kind of model -> share of words (bench/results/search.json)


def find_kind(session: Session) -> str:
    """Return the model's kind, a key of SHARES."""
    if session.packaged is not None:
        return "untuned" if session.packaged == "untuned" else "table"  # small and default began as a table
    return "table" if isinstance(session.model, Model) and is_static(session.model.encoder) else "tuned"


def fuse(
    vectors: Sequence[tuple[int, float]], words: Sequence[tuple[int, float]], share: float
) -> list[tuple[int, float]]:
    """Merge two lists of (row, score), best first: (1 - ``share``) v + ``share`` w, with v and w scaled to 0..1.

    The best of a list is 1 and its last 0; a row that a list lacks has 0 there (Lee 1997, CombSUM with MinMax).
    """
    fused: dict[int, float] = {}
    for found, weight in ((vectors, 1 - share), (words, share)):
        if found:
            first, last = found[0][1], found[-1][1]
            for row, score in found:
                scaled = (score - last) / (first - last) if first > last else 1.0
                fused[row] = fused.get(row, 0.0) + weight * scaled
    return sorted(fused.items(), key=lambda each: (-each[1], each[0]))


def join_lists(near: Sequence[tuple[int, float]], worded: Sequence[tuple[int, float]], share: float) -> list[Hit]:
    """Return the rows of both lists by their fused score, with their similarity and BM25."""
    similarity, words = dict(near), dict(worded)
    fused = fuse(near, worded, share)
    return [Hit(row, score, similarity=similarity.get(row), words=words.get(row)) for row, score in fused]


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
        return 1 - 2 * kernels.hammings(np.ascontiguousarray(vectors), packed) / len(query)
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


def products(
    rows: NDArray[np.float32], queries: NDArray[np.float32], threads: int | None = None
) -> NDArray[np.float32]:
    """Compute dot products (q, n) of float32; ``threads`` is for fewer than MANY queries."""
    return (kernels if len(queries) < MANY else reference).products(rows, queries, threads)


class Codes(ABC):
    """Codes of ``rows`` rows, which choose ``factor`` times k rows to compare in full."""

    factor: int

    def __init__(self, rows: int, width: int, dtype: type[np.generic], threads: int | None) -> None:
        self._codes: NDArray[Any] = np.empty((rows, width), dtype)
        self._threads = threads

    @abstractmethod
    def put(self, at: int, vectors: NDArray[Any]) -> None:
        """Store vectors (b, D) from row ``at`` on."""

    @abstractmethod
    def scores(self, query: NDArray[Any]) -> NDArray[Any]:
        """Score each row (rows,) against ``query`` (D,)."""


class Bytes(Codes):
    """int8 codes, with a float32 scale for each row; ``similarity``: cosine or dot."""

    factor = 4

    def __init__(self, rows: int, dim: int, threads: int | None, similarity: str) -> None:
        super().__init__(rows, dim, np.int8, threads)
        self._similarity, self._weights = similarity, np.empty(rows, np.float32)

    def put(self, at: int, vectors: NDArray[Any]) -> None:
        of = slice(at, at + len(vectors))
        stored = vectors.dtype == np.int8  # the file has one scale, which cosines do not need
        self._codes[of], scale = (vectors, np.ones(len(vectors), np.float32)) if stored else encode_bytes(vectors)
        if self._similarity == "cosine":
            scale /= np.maximum(norms(vectors.astype(np.float32, copy=False)), TINY)
        self._weights[of] = scale

    def scores(self, query: NDArray[Any]) -> NDArray[Any]:
        return kernels.dots(self._codes, encode_bytes(query[None])[0][0], self._threads) * self._weights


class Bits(Codes):
    """Codes of a file of bits: the bits themselves."""

    factor = 1

    def __init__(self, rows: int, dim: int, threads: int | None) -> None:
        super().__init__(rows, -(-dim // 8), np.uint8, threads)

    def put(self, at: int, vectors: NDArray[Any]) -> None:
        self._codes[at : at + len(vectors)] = vectors

    def scores(self, query: NDArray[Any]) -> NDArray[Any]:
        return -kernels.hammings(self._codes, np.packbits(query > 0), self._threads)


def encode_bytes(vectors: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round float rows (n, D) to int8 codes (n, D) and scales (n,)."""
    scale = np.maximum(np.abs(vectors).max(axis=1, initial=0), TINY).astype(np.float32) / LEVELS
    return np.rint(vectors / scale[:, None]).astype(np.int8), scale


def find_largest(scores: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the places of the ``count`` largest ``scores``, ascending; the first of equal ones."""
    if count >= len(scores):
        return np.arange(len(scores))
    size = max(1, len(scores) // (4 * count))  # of a piece: count pieces have a maximum of at least the bound
    tops = np.maximum.reduceat(scores, np.arange(0, len(scores), size))
    chosen = np.flatnonzero(scores >= np.partition(tops, -count)[-count])
    order = np.argsort(-scores[chosen], kind="stable")[:count]
    return np.sort(chosen[order])


def norms(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute L2 norms (n,) of (n, D); infinite if float32 cannot hold one."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        again = np.flatnonzero(far(found) | (found == 0))
        found[again] = np.sqrt(np.square(vectors[again], dtype=np.float64).sum(axis=1))
    return np.asarray(found)


def far(lengths: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mark ``lengths`` (n,) with which float32 sums are unreliable; 0 is not marked."""
    return ~((lengths >= SHORT) & (lengths <= LONG)) & (lengths != 0)


class MemoryIndex:
    """All rows in memory: floats as float32 or int8 codes, int8 and bits as stored."""

    def __init__(self, source: Source, hold: str, similarity: str, threads: int | None) -> None:
        if hold not in HOLDS:
            raise UsageError(f"hold is {', '.join(HOLDS)} or None, not {short(hold)}")
        if source.kind == "bits" and hold == "int8":
            raise UsageError(f"{source.path} holds bits, of which no int8 can be made: open it with hold='vectors'")
        if hold == "int8" and similarity not in ("cosine", "dot"):
            raise UsageError(f"int8 codes cannot rank by {similarity}: open {source.path} with hold='vectors'")
        kind = hold if source.kind == "floats" else source.kind
        self._source, self._similarity, count = source, similarity, source.count()
        self._rows, self._threads = np.empty(count, np.int64), threads
        self._codes: Codes | None = None
        if kind == "vectors":
            self._vectors, self._norms = np.empty((count, source.dim), np.float32), np.empty(count, np.float32)
        elif kind == "int8":
            self._codes = Bytes(count, source.dim, threads, similarity)
        else:
            self._codes = Bits(count, source.dim, threads)
        self._fill()

    def _fill(self) -> None:
        at = 0
        for rows, vectors in self._source.blocks():
            of = slice(at, at + len(rows))
            if of.stop > len(self._rows):
                break
            self._rows[of] = rows
            if self._codes is not None:
                self._codes.put(at, vectors)
            else:
                self._vectors[of] = vectors
                self._norms[of] = norms(self._vectors[of])
            at = of.stop
        if at != len(self._rows):
            raise FastflowError(f"{self._source.path} was changed while it was read; open it again")

    def find(self, queries: NDArray[Any], k: int, where: Where | None) -> list[list[tuple[int, float]]]:
        allowed = None if where is None else np.isin(self._rows, self._source.numbers(where), assume_unique=True)
        if self._codes is None:
            best = Best(queries, k, self._similarity, self._threads)
            places = None if allowed is None else np.flatnonzero(allowed)
            for start in range(0, len(self._rows if places is None else places), BLOCK):
                of: Any = slice(start, start + BLOCK)
                of = of if places is None else places[of]
                best.add(self._rows[of], self._vectors[of], self._norms[of])
            return best.list_best()
        return [self._find_by_codes(self._codes, query, k, allowed) for query in queries]

    def _find_by_codes(
        self, codes: Codes, query: NDArray[Any], k: int, allowed: NDArray[np.bool_] | None
    ) -> list[tuple[int, float]]:
        if not len(self._rows):
            return []
        scores = codes.scores(query)
        places = np.arange(len(scores)) if allowed is None else np.flatnonzero(allowed)
        scores = scores if allowed is None else scores[places]
        rows = self._rows[places[find_largest(scores, k * codes.factor)]]
        best = Best(query[None], k, self._similarity, self._threads)
        if len(rows):
            best.add(rows, self._source.vectors(rows))
        return best.list_best()[0]
