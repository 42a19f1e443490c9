"""int8 and bit codes of vectors, and their similarity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from fastflow.kernels.search import cpu
except ImportError:  # built without a compiler
    cpu = None  # type: ignore[assignment]
from fastflow.kernels.search import reference

LEVELS = 127
TINY = np.finfo(np.float32).tiny
SHORT, LONG = 2.0**-40, 2.0**60  # between these lengths float32 products neither vanish nor overflow
MANY = 16  # queries, from which on a BLAS is faster


def dots(codes: NDArray[np.int8], query: NDArray[np.int8], threads: int | None = None) -> NDArray[np.int32]:
    """Compute dot products (n,) of ``codes`` (n, D) with ``query`` (D,)."""
    return reference.dots(codes, query) if cpu is None else cpu.dots(codes, query, threads)


def hammings(codes: NDArray[np.uint8], query: NDArray[np.uint8], threads: int | None = None) -> NDArray[np.int32]:
    """Count the differing bits (n,) of ``codes`` and ``query``."""
    return reference.hammings(codes, query) if cpu is None else cpu.hammings(codes, query, threads)


def products(
    rows: NDArray[np.float32], queries: NDArray[np.float32], threads: int | None = None
) -> NDArray[np.float32]:
    """Compute dot products (q, n) of float32; ``threads`` is for fewer than MANY queries."""
    few = cpu is not None and len(queries) < MANY
    return cpu.products(rows, queries, threads) if few else reference.products(rows, queries)


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
        return dots(self._codes, encode_bytes(query[None])[0][0], self._threads) * self._weights


class Bits(Codes):
    """Codes of a file of bits: the bits themselves."""

    factor = 1

    def __init__(self, rows: int, dim: int, threads: int | None) -> None:
        super().__init__(rows, -(-dim // 8), np.uint8, threads)

    def put(self, at: int, vectors: NDArray[Any]) -> None:
        self._codes[at : at + len(vectors)] = vectors

    def scores(self, query: NDArray[Any]) -> NDArray[Any]:
        return -hammings(self._codes, np.packbits(query > 0), self._threads)


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
