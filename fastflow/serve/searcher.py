"""The file that a server searches: held in memory, and searched in a thread of its own, a query at a time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import UsageError
from fastflow.runtime import Runtime
from fastflow.search import Hit, Index
from fastflow.serve.queue import SMOOTH, WAIT, Promised
from fastflow.serve.refusals import overloaded

CODED = ("float32", "float16"), ("cosine", "dot")  # precisions and similarities of which int8 codes can be held
TRIES = 2  # searches at the start that measure one


class Searcher:
    """Searches ``path`` for many requests. Each asks for one query after the other, so requests take turns.

    ``find`` and ``turn`` are for the event loop.
    """

    def __init__(self, path: Path, runtime: Runtime, threads: int | None = None) -> None:
        """Reads the file. Raises a FastflowError for one that is no .db or was made with another model."""
        self._index = _opened(path, runtime, threads)
        self.name, self.rows, self.similarity = path.name, len(self._index), self._index.similarity
        self.query_options = self._index.query_options()
        self._asking, self._promised = 0, Promised()  # requests that have a turn, and queries of those refused
        self._thread = ThreadPoolExecutor(1, "fastflow-search")
        nothing = np.zeros(self._index.dim, np.float32)
        self._seconds = min(self._timed(nothing, 1)[1] for _ in range(TRIES))  # of a query, lately

    @contextmanager
    def turn(self, most: float) -> Iterator[None]:
        """A request takes part; raises Refused if it would wait longer than ``most`` seconds for its first query."""
        wait = self._asking * self._seconds
        if wait > most:
            raise overloaded(self._promised.refuse(wait - most / 2, 1, 1 / self._seconds, WAIT))
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            self._promised.done(1 if self._asking else math.inf)

    async def find(self, vector: NDArray[Any], k: int) -> tuple[list[Hit], float]:
        """The ``k`` best rows for the vector (D,) of a query, and the seconds that they took; raises as Index does."""
        loop = asyncio.get_running_loop()
        hits, spent = await loop.run_in_executor(self._thread, self._timed, vector, k)
        self._seconds += SMOOTH * (spent - self._seconds)
        return hits, spent

    def describe(self) -> dict[str, Any]:
        """The part of /info that the file gives."""
        return {"file": self.name, "rows": self.rows, "precision": self._index.precision, "dim": self._index.dim}

    def close(self) -> None:
        """End the thread, after the query that is searched now."""
        self._thread.shutdown(cancel_futures=True)
        self._index.close()

    def _timed(self, vector: NDArray[Any], k: int) -> tuple[list[Hit], float]:
        start = time.monotonic()
        hits = cast("list[Hit]", self._index.search(vector, k))  # of one query
        return hits, time.monotonic() - start


def _opened(path: Path, runtime: Runtime, threads: int | None) -> Index:
    """The file, held as what is quick to search: the codes that it stores, int8 codes of floats, or else the floats."""
    if path.suffix != ".db":
        raise UsageError(f"--search takes a .db with texts, not {path}: make one with fastflow embed -o OUT.db")
    with Index(path, runtime) as index:
        precisions, similarities = CODED
        coded = index.precision in precisions and index.similarity in similarities
    return Index(path, runtime, hold="int8" if coded else "vectors", threads=threads)
