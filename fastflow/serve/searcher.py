"""Search the file of --search, and score pairs by --reranker, each in a thread of its own."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.model.tokenizer import Tokens
from fastflow.reranker import Reranker, score_tokens
from fastflow.runtime import Runtime
from fastflow.search import Hit, Index
from fastflow.search.source import compile_condition
from fastflow.serve.queue import SMOOTH, WAIT, Promised
from fastflow.serve.requests import Refused, refuse_busy

CODED = ("float32", "float16"), ("cosine", "dot")  # precisions and similarities that int8 codes can hold
RESTLESS, PAUSE = 10.0, 0.02  # seconds to retry while a file changes, and between openings
TRIES, PROBED = 2, 16  # calls that are timed at the start, and pairs of one


class Turns:
    """A thread that computes for many requests, in turns; call ``turn`` and ``run`` on the event loop."""

    def __init__(self, name: str) -> None:
        self._waiting, self._promised = 0, Promised()  # work of requests that wait or run, and of refused ones
        self._seconds = 0.0  # seconds of one piece of work, lately
        self._thread = ThreadPoolExecutor(1, name)

    @contextmanager
    def turn(self, most: float, work: int = 1) -> Iterator[None]:
        """Take a turn for the ``with`` block; raises Refused if it would wait over ``most`` seconds."""
        wait = self._waiting * self._seconds
        if wait > most:
            raise refuse_busy(self._promised.refuse(wait - most / 2, work, 1 / self._seconds, WAIT))
        self._waiting += work
        try:
            yield
        finally:
            self._waiting -= work
            self._promised.subtract(work if self._waiting else math.inf)

    async def run(self, work: int, call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        """Return the call's result, and its seconds for ``work``."""
        loop = asyncio.get_running_loop()
        found, spent = await loop.run_in_executor(self._thread, time_call, call, *arguments)
        self._seconds += SMOOTH * (spent / work - self._seconds)
        return found, spent

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def time_call(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return a call's result and seconds."""
    start = time.monotonic()
    return call(*arguments), time.monotonic() - start


class Searcher(Turns):
    """Searches a file for many requests."""

    def __init__(self, path: Path, runtime: Runtime, threads: int | None = None) -> None:
        super().__init__("fastflow-search")
        self._index = _open(path, runtime, threads)
        self._open = partial(_open, path, runtime, threads)
        self.name, self.rows, self.similarity = path.name, len(self._index), self._index.similarity
        self.query_options = self._index.query_options()
        zeros = np.zeros((1, self._index.dim), np.float32)
        self._seconds = min(time_call(self._search, zeros, None, {"k": 1})[1] for _ in range(TRIES))

    def check(self, where: dict[str, Any] | None) -> None:
        """Raise Refused for a filter that the file cannot take."""
        try:
            compile_condition(where or {}, self._index.columns)
        except UsageError as error:
            raise Refused("validation", str(error), "filter") from error

    async def find(self, vector: NDArray[Any], text: str, options: dict[str, Any]) -> tuple[list[Hit], float]:
        """Return the best rows for ``text`` with ``vector`` (D,) by ``Index.search``, and the seconds."""
        return await self.run(1, self._search, vector[None], text, options)

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
        super().close()
        self._index.close()


class PairScorer(Turns):
    """Scores the pairs of many requests."""

    def __init__(self, reranker: Reranker) -> None:
        if reranker.num_labels != 1:
            raise UsageError(f"--reranker takes a model of one label, and {reranker.model.path} has several")
        super().__init__("fastflow-rerank")
        self.reranker, self.name = reranker, reranker.model.path.name
        reranker.model.pairing.threads = 1
        probe = self.pair("a", ["b"] * PROBED)
        self._seconds = min(time_call(self.score, probe)[1] for _ in range(TRIES)) / len(probe.ids)

    def pair(self, query: str, texts: Sequence[str]) -> Tokens:
        return self.reranker.model.pairing.pair([(query, text) for text in texts])

    def score(self, tokens: Tokens) -> NDArray[np.float64]:
        """Return logits (B,)."""
        return score_tokens(self.reranker, tokens, "identity")[1][:, 0]

    def describe(self) -> dict[str, Any]:
        it = self.reranker
        return {"model": self.name, "max_input_length": it.max_length, "dtype": it.backend.dtype}


def _open(path: Path, runtime: Runtime, threads: int | None) -> Index:
    if path.suffix != ".db":
        raise UsageError(f"--search takes a .db with texts, not {path}: make one with fastflow embed -o OUT.db")
    with Index(path, runtime) as index:
        precisions, similarities = CODED
        coded = index.precision in precisions and index.similarity in similarities
    return Index(path, runtime, hold="int8" if coded else "vectors", threads=threads)
