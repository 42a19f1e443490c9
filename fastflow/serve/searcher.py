"""Search the file of --search in a thread of its own."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.runtime import Runtime
from fastflow.search import Hit, Index
from fastflow.search.source import compile_condition
from fastflow.serve.queue import SMOOTH, WAIT, Promised
from fastflow.serve.requests import Refused, refuse_busy

CODED = ("float32", "float16"), ("cosine", "dot")  # precisions and similarities that int8 codes can hold
TRIES = 2  # searches that are timed at the start
REOPENED = 5  # openings for one search of a file that changes


class Searcher:
    """Searches a file for many requests; call ``find`` and ``turn`` on the event loop."""

    def __init__(self, path: Path, runtime: Runtime, threads: int | None = None) -> None:
        self._index = _open(path, runtime, threads)
        self._open = partial(_open, path, runtime, threads)
        self.name, self.rows, self.similarity = path.name, len(self._index), self._index.similarity
        self.query_options = self._index.query_options()
        self._asking, self._promised = 0, Promised()  # requests that wait or search, and refused ones
        self._thread = ThreadPoolExecutor(1, "fastflow-search")
        zeros = np.zeros((1, self._index.dim), np.float32)
        self._seconds = min(self._search(zeros, None, {"k": 1})[1] for _ in range(TRIES))  # seconds of a recent query

    @contextmanager
    def turn(self, most: float) -> Iterator[None]:
        """Take a turn for the ``with`` block; raises Refused if it would wait over ``most`` seconds."""
        wait = self._asking * self._seconds
        if wait > most:
            raise refuse_busy(self._promised.refuse(wait - most / 2, 1, 1 / self._seconds, WAIT))
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            self._promised.subtract(1 if self._asking else math.inf)

    def check(self, where: dict[str, Any] | None) -> None:
        """Raise Refused for a filter that the file cannot take."""
        try:
            compile_condition(where or {}, self._index.columns)
        except UsageError as error:
            raise Refused("validation", str(error), "filter") from error

    async def find(self, vector: NDArray[Any], text: str, options: dict[str, Any]) -> tuple[list[Hit], float]:
        """Return the best rows for ``text`` with ``vector`` (D,) by ``Index.search``, and the seconds."""
        loop = asyncio.get_running_loop()
        hits, spent = await loop.run_in_executor(self._thread, self._search, vector[None], text, options)
        self._seconds += SMOOTH * (spent - self._seconds)
        return hits, spent

    def describe(self) -> dict[str, Any]:
        return {"file": self.name, "rows": self.rows, "precision": self._index.precision, "dim": self._index.dim}

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._index.close()

    def _search(self, vectors: NDArray[Any], text: str | None, options: dict[str, Any]) -> tuple[list[Hit], float]:
        start = time.monotonic()
        queries: Any = vectors if text is None else [text]
        for left in reversed(range(REOPENED)):
            try:
                if self._index.is_changed():
                    self._reopen()
                (hits,) = self._index.search(queries, **options, vectors=vectors)
                break
            except FastflowError:
                if not left or not self._index.is_changed():
                    raise
        return hits, time.monotonic() - start

    def _reopen(self) -> None:
        """Open the file that was changed or replaced."""
        index = self._open()
        self._index.close()
        self._index, self.rows, self.query_options = index, len(index), index.query_options()


def _open(path: Path, runtime: Runtime, threads: int | None) -> Index:
    if path.suffix != ".db":
        raise UsageError(f"--search takes a .db with texts, not {path}: make one with fastflow embed -o OUT.db")
    with Index(path, runtime) as index:
        precisions, similarities = CODED
        coded = index.precision in precisions and index.similarity in similarities
    return Index(path, runtime, hold="int8" if coded else "vectors", threads=threads)
