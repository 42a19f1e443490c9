"""The engine: threads tokenize texts, one thread computes batches."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.model.tokenizer import Tokens
from fastflow.serve import ServerSettings
from fastflow.serve.model import BatchModel, EmbedOptions, Floats, Part, compute, join_tokens, take_texts
from fastflow.serve.queue import Bounds, Busy, Queue, QueuedJob, Slice, TooMuch
from fastflow.serve.requests import Refused, refuse_busy, refuse_expired

TURNS = 4  # turns of requests that fill a batch
LEAST = 32  # the fewest tokens of a batch; a longer text is its own batch
PIECE = 64  # texts tokenized at a time
CHARACTERS = 2  # of a token, estimated

log = logging.getLogger("fastflow.serve")


class Gone(Exception):
    """The client has closed its connection."""


class Times(NamedTuple):
    """Seconds of tokenizing, of waiting, and from the first batch to the end of the last."""

    tokenization: float
    queue: float
    inference: float


class EmbedResult(NamedTuple):
    """Vectors (B, D') of a request, tokens (B,) of its texts, and how many were cut."""

    vectors: Floats
    lengths: NDArray[np.int64]
    cut: int
    times: Times


class EmbedJob(QueuedJob):
    """A request with its tokens, vectors and answer."""

    def __init__(self, options: EmbedOptions, answer: asyncio.Future[None], deadline: float) -> None:
        super().__init__(deadline)
        self.options, self.answer = options, answer
        self.tokens: Tokens
        self.out: Floats = np.zeros((0, 0))
        self.missing = 0  # texts without a vector
        self.began = self.ended = 0.0

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def take(self, start: int, stop: int, found: Floats, began: float, ended: float) -> None:
        if self.answer.done():
            return
        if not self.out.size:
            self.began = began
            self.out = np.empty((len(self.tokens.offsets) - 1, found.shape[1]), found.dtype)
        self.out[start:stop] = found
        self.missing -= stop - start
        self.ended = ended
        if not self.missing:
            self.answer.set_result(None)


class BatchEngine:
    """Computes texts of many requests in batches; call ``embed`` on the event loop of ``start``."""

    clock = staticmethod(time.monotonic)

    def __init__(
        self, model: BatchModel, settings: ServerSettings, rate: float, turn: threading.Lock | None = None
    ) -> None:
        most = model.batch_tokens
        piece = max(1, min(most, int(rate * settings.batch)) // TURNS)
        bounds = Bounds(settings.batch, min(LEAST, most), most, piece, settings.max_queue, settings.timeout)
        self.queue: Queue[EmbedJob] = Queue(bounds, rate)
        self.model = model
        self.observe: Callable[[int, int, float], None] = lambda texts, tokens, seconds: None  # called after each batch
        self.busy_since: float | None = None  # when the current batch began
        self._wake = threading.Condition()  # guards the queue
        self._stopping = False
        self.turn = turn or threading.Lock()  # models of one server compute in turn
        self._thread = threading.Thread(target=self._run, name="fastflow-compute", daemon=True)
        self._tokenizers = ThreadPoolExecutor(settings.tokenizer_threads, "fastflow-tokenize")

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._tokenizers.shutdown(cancel_futures=True)

    def is_stuck(self, seconds: float) -> bool:
        since = self.busy_since
        return not self._thread.is_alive() or (since is not None and self.clock() - since > seconds)

    async def embed(
        self, texts: Sequence[Any], options: EmbedOptions, cut: bool, gone: Callable[[], asyncio.Future[Any]]
    ) -> EmbedResult:
        """Compute the vectors of the model's ``texts``; raises Refused, or Gone if the client has left.

        ``cut``: whether to cut long texts. ``gone()``: done when the client leaves.
        """
        start = self.clock()
        request = EmbedJob(options, self._loop.create_future(), start + self.queue.bounds.work)
        self._admit(request, texts)
        left = gone()
        try:
            tokens = await self._tokenize(texts, request, cut, left)
            tokenized = self.clock()
            request.tokens, request.missing = tokens, len(tokens.offsets) - 1
            with self._wake:
                self.queue.put(request, np.diff(tokens.offsets).tolist())
                self._wake.notify()
            await self._wait_for(request, left)
        finally:
            left.cancel()
            request.answer.cancel()
            with self._wake:
                self.queue.drop(request)
        times = Times(tokenized - start, request.began - tokenized, request.ended - request.began)
        return EmbedResult(request.out, np.diff(tokens.offsets), len(tokens.cut), times)

    async def run_in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await self._loop.run_in_executor(self._tokenizers, call, *arguments)

    def check_wait(self) -> None:
        try:
            with self._wake:
                self.queue.check_wait()
        except Busy as busy:
            raise refuse_busy(busy) from busy

    def _admit(self, request: EmbedJob, texts: Sequence[Any]) -> None:
        most, prompt = self.model.max_length, len(request.options.prompt)
        lengths = (len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts)  # a pair has two
        tokens = sum(min(most, 2 + (prompt + length) // CHARACTERS) for length in lengths)
        try:
            with self._wake:
                self.queue.admit(request, tokens)
        except Busy as busy:
            raise refuse_busy(busy) from busy
        except TooMuch as much:
            message = (
                f"these texts take about {much.seconds:.0f} s, and a request has {self.queue.bounds.work:g} s: "
                "send fewer at once"
            )
            raise Refused("validation", message) from much

    async def _tokenize(self, texts: Sequence[Any], request: EmbedJob, cut: bool, left: asyncio.Future[Any]) -> Tokens:
        pieces, prompt = [], request.options.prompt
        for start in range(0, len(texts), PIECE):
            _check_waiting(left, self.clock() >= request.deadline)
            try:
                piece = await self.run_in_thread(self.model.tokenize, texts[start : start + PIECE], prompt)
            except FastflowError as error:
                raise Refused("tokenizer", str(error)) from error
            if len(piece.cut) and not cut:
                raise Refused(
                    "validation",
                    f"{self.model.text} {start + int(piece.cut[0])} has more than {self.model.max_length} tokens, the "
                    "most that the model takes: shorten it, or let it be cut with truncate",
                )
            pieces.append(piece)
        _check_waiting(left, self.clock() >= request.deadline)
        return join_tokens(pieces)

    async def _wait_for(self, request: EmbedJob, left: asyncio.Future[Any]) -> None:
        seconds = max(0.0, request.deadline - self.clock())
        await asyncio.wait({request.answer, left}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not request.answer.done():
            _check_waiting(left, True)
        try:
            request.answer.result()
        except Refused:
            raise
        except Exception as error:
            log.error("a batch failed: %s", error, exc_info=None if isinstance(error, FastflowError) else error)
            raise Refused("backend", f"the texts could not be computed: {error}") from error

    def _run(self) -> None:
        while True:
            with self._wake:
                batch, late = self.queue.take(self.clock())
                while not (batch or late or self._stopping):
                    self._wake.wait()
                    batch, late = self.queue.take(self.clock())
            if self._stopping:
                return
            with self.turn:
                self.busy_since = began = self.clock()
                parts = [Part(take_texts(each.tokens, start, stop), each.options) for each, start, stop in batch]
                found = compute(self.model.embed, parts)  # texts that arrive meanwhile join the next batch
            ended, self.busy_since = self.clock(), None
            self._loop.call_soon_threadsafe(self._deliver, batch, late, found, began, ended)

    def _deliver(
        self,
        batch: list[Slice[EmbedJob]],
        late: list[EmbedJob],
        found: list[Floats | Exception],
        began: float,
        ended: float,
    ) -> None:
        for request in late:
            request.fail(refuse_expired())
        for (request, start, stop), z in zip(batch, found, strict=True):
            if isinstance(z, Exception):
                request.fail(z)
            else:
                request.take(start, stop, z, began, ended)
        if not batch:
            return
        tokens = sum(int(each.tokens.offsets[stop] - each.tokens.offsets[start]) for each, start, stop in batch)
        with self._wake:
            self.queue.learn(tokens, ended - began)
        self.observe(sum(stop - start for _, start, stop in batch), tokens, ended - began)


def _check_waiting(left: asyncio.Future[Any], late: bool) -> None:
    if left.done():
        raise Gone
    if late:
        raise refuse_expired()
