"""Search the file of --search, in a thread of its own."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
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
RESTLESS, PAUSE = 10.0, 0.02  # seconds to retry while a file changes, and between openings
TRIES = 2  # calls that are timed at the start


def time_call(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return a call's result and seconds."""
    start = time.monotonic()
    return call(*arguments), time.monotonic() - start


class Searcher:
    """Searches a file for many requests, in turns; call ``turn`` and ``find`` on the event loop."""

    def __init__(self, path: Path, runtime: Runtime, threads: int | None = None) -> None:
        self._waiting, self._promised = 0, Promised()  # requests that wait or run, and refused ones
        self._thread = ThreadPoolExecutor(1, "fastflow-search")
        self._index = _open(path, runtime, threads)
        self._open = partial(_open, path, runtime, threads)
        self.name, self.rows, self.similarity = path.name, len(self._index), self._index.similarity
        self.query_options = self._index.query_options()
        zeros = np.zeros((1, self._index.dim), np.float32)
        # seconds of one search, lately
        self._seconds = min(time_call(self._search, zeros, None, {"k": 1})[1] for _ in range(TRIES))

    @contextmanager
    def turn(self, most: float) -> Iterator[None]:
        """Take a turn for the ``with`` block; raises Refused if it would wait over ``most`` seconds."""
        wait = self._waiting * self._seconds
        if wait > most:
            raise refuse_busy(self._promised.refuse(wait - most / 2, 1, 1 / self._seconds, WAIT))
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._promised.subtract(1 if self._waiting else math.inf)

    def check(self, where: dict[str, Any] | None) -> None:
        """Raise Refused for a filter that the file cannot take."""
        try:
            compile_condition(where or {}, self._index.columns)
        except UsageError as error:
            raise Refused("validation", str(error), "filter") from error

    async def find(self, vector: NDArray[Any], text: str, options: dict[str, Any]) -> tuple[list[Hit], float]:
        """Return the best rows for ``text`` with ``vector`` (D,) by ``Index.search``, and the seconds."""
        loop = asyncio.get_running_loop()
        call = partial(time_call, self._search, vector[None], text, options)
        found, spent = await loop.run_in_executor(self._thread, call)
        self._seconds += SMOOTH * (spent - self._seconds)
        return found, spent

    def _search(self, vectors: NDArray[Any], text: str | None, options: dict[str, Any]) -> list[Hit]:
        queries: Any = vectors if text is None else [text]
        end = time.monotonic() + RESTLESS
        while True:
            try:
                if self._index.is_changed():
                    self._reopen()
                return self._index.search(queries, **options, vectors=vectors)[0]
            except FastflowError:
                if time.monotonic() > end or not self._index.is_changed():
                    raise
                time.sleep(PAUSE)

    def _reopen(self) -> None:
        """Open the file that was changed or replaced."""
        index = self._open()
        self._index.close()
        self._index, self.rows, self.query_options = index, len(index), index.query_options()

    def describe(self) -> dict[str, Any]:
        return {"file": self.name, "rows": self.rows, "precision": self._index.precision, "dim": self._index.dim}

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._index.close()


def _open(path: Path, runtime: Runtime, threads: int | None) -> Index:
    if path.suffix != ".db":
        raise UsageError(f"--search takes a .db with texts, not {path}: make one with fastflow embed -o OUT.db")
    with Index(path, runtime) as index:
        precisions, similarities = CODED
        coded = index.precision in precisions and index.similarity in similarities
    return Index(path, runtime, hold="int8" if coded else "vectors", threads=threads)
