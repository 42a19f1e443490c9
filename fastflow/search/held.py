"""Search rows that are held in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.search.codes import Bits, Bytes, Codes, find_largest, norms
from fastflow.search.scan import Best
from fastflow.search.source import Source
from fastflow.values import short

HOLDS = ("vectors", "int8")
BLOCK = 16_384  # rows multiplied at a time


class Held:
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

    def find(self, queries: NDArray[Any], k: int, where: str | None) -> list[list[tuple[int, float]]]:
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
