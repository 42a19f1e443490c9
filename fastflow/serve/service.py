"""``Service``, the object that routes call."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fastflow.serve.batch import How
from fastflow.serve.engine import Embedded, Engine, Gone
from fastflow.serve.fields import parse
from fastflow.serve.formats import OCTETS
from fastflow.serve.metrics import Metrics
from fastflow.serve.model import ServedModel
from fastflow.serve.protocol import make_protocol
from fastflow.serve.refusals import Refused
from fastflow.serve.searcher import Searcher
from fastflow.serve.settings import MIB, Settings

LARGE = 64 * 1024  # bytes of JSON, or numbers of a response: more need a thread
STUCK = 60.0  # seconds in one batch until the server is unhealthy


class Service:
    """The state of a server."""

    def __init__(
        self, model: ServedModel, settings: Settings, rate: float | None = None, searcher: Searcher | None = None
    ) -> None:
        self.model, self.settings, self.searcher, self.metrics = model, settings, searcher, Metrics()
        self.engine = Engine(model, settings, rate or model.measure_rate(), model.opened.backend.batch_tokens)
        self.engine.observe = self._observe
        self.active = 0
        self.bodies = 0  # bytes of unanswered requests
        self.draining = False

    def make_protocol(self) -> type[HttpToolsProtocol]:
        return make_protocol(self.settings, self.metrics, lambda: self.engine.queue.wait)

    @property
    def healthy(self) -> bool:
        return not (self.draining or self.engine.is_stuck(STUCK))

    async def read(self, request: Request) -> Any:
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused("media", "the body must be JSON: send the header Content-Type: application/json")
        body = bytearray()
        async for part in request.stream():
            self.bodies += len(part)
            body += part
            request.state.held = len(body)  # ``Guard`` subtracts it from ``bodies`` later
            self._check_body(len(body))
        return parse(body) if len(body) <= LARGE else await self.engine.run_in_thread(parse, body)

    def _check_body(self, length: int) -> None:
        if length > self.settings.max_body:
            message = f"the body is larger than {self.settings.max_body} bytes: send fewer texts at once"
            raise Refused("body", message, headers={"connection": "close"})
        if self.bodies > self.settings.max_bodies:
            seconds = max(1, math.ceil(self.engine.queue.wait))
            message = (
                f"the server holds {self.settings.max_bodies // MIB} MiB of other requests: try again in {seconds} s, "
                "or send fewer texts at once"
            )
            raise Refused("overloaded", message, headers={"retry-after": str(seconds), "connection": "close"})

    async def embed(
        self, request: Request, texts: Sequence[str], how: How, truncate: bool | None, batch: bool
    ) -> Embedded:
        """Compute the vectors of ``texts``; ``truncate`` None: the server's; ``batch``: whether they are a list."""
        start, method = time.monotonic(), "batch" if batch else "single"
        self.metrics.count("te_request_count", method=method)
        self.metrics.count("te_embed_count", len(texts))
        cut = self.settings.truncate if truncate is None else truncate

        def gone() -> asyncio.Future[Any]:
            return asyncio.ensure_future(request.receive())  # http.disconnect, as the body has been read

        try:
            done = await self.engine.embed(texts, how, cut, gone)
        except Gone:
            self.metrics.count("fastflow_cancelled_requests")
            raise
        self.metrics.count("te_request_success", method=method)
        self.metrics.count("te_embed_success", len(texts))
        if done.cut:
            self.metrics.count("fastflow_truncated_texts", done.cut)
        self.metrics.record_request(time.monotonic() - start, done.times, done.lengths.tolist())
        return done

    async def write(self, numbers: int, call: Any, *arguments: Any) -> bytes:
        if numbers <= LARGE:
            return bytes(call(*arguments))
        return bytes(await self.engine.run_in_thread(call, *arguments))

    def make_metrics_page(self) -> bytes:
        queue, metrics = self.engine.queue, self.metrics
        metrics.queue_size.set(queue.jobs)
        metrics.queue_seconds.set((queue.work + queue.running) / queue.rate)
        metrics.rate.set(queue.rate)
        return metrics.text()

    def _observe(self, texts: int, tokens: int, spent: float) -> None:
        self.metrics.count("fastflow_tokens", tokens)
        self.metrics.record_batch(texts, tokens, spent)


def make_response(body: bytes, done: Embedded, media: str) -> Response:
    """Make an answer with tokens, times and shape in its headers."""
    rows, dim = done.vectors.shape
    headers = {
        "x-compute-tokens": str(int(done.lengths.sum())),
        **{f"x-{name}-time": str(round(seconds * 1e3)) for name, seconds in done.times._asdict().items()},
        "x-truncated-texts": str(done.cut),
    }
    if media == OCTETS:
        headers["x-embedding-shape"] = f"{rows},{dim}"
    return Response(body, media_type=media, headers=headers)
