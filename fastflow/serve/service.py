"""``Service``, the object that routes call, and its metrics under TEI's names."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.requests import Request

from fastflow.errors import UsageError
from fastflow.serve import MIB, ServerSettings
from fastflow.serve.engine import BatchEngine, EmbedResult, Gone, Times
from fastflow.serve.model import BatchModel, EmbedOptions, PairScorer, ServedModel
from fastflow.serve.requests import Refused, parse_json, refuse_for_now
from fastflow.serve.searcher import Searcher

LARGE = 64 * 1024  # bytes of JSON, or numbers of a response: more need a thread
STUCK = 60.0  # seconds in one batch until the server is unhealthy

DURATIONS = [1e-5 * 1.5**i for i in range(1, 40)]  # 15 microseconds to 73 seconds
LENGTHS = [2.0**i for i in range(14)]
COUNTERS = {
    "fastflow_requests": "Answers by route and status",
    "te_request_count": "Requests that were read, single or batch",
    "te_request_success": "Requests that were answered, single or batch",
    "te_request_failure": "Requests that were refused, by reason",
    "te_embed_count": "Texts that were tokenized to be embedded",
    "te_embed_success": "Texts that were embedded",
    "te_rerank_count": "Pairs that were tokenized to be scored",
    "te_rerank_success": "Pairs that were scored",
    "fastflow_truncated_texts": "Texts that were cut at the model's length",
    "fastflow_tokens": "Tokens that were computed",
    "fastflow_cancelled_requests": "Requests whose client went away before the answer",
}


class Metrics:
    """The content of /metrics; several threads may use it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._counts: dict[str, Counter[tuple[tuple[str, str], ...]]] = {name: Counter() for name in COUNTERS}
        self.request = self._add("te_request_duration", "Seconds of a request in all")
        self.tokenization = self._add("te_request_tokenization_duration", "Seconds until its texts were tokens")
        self.queued = self._add("te_request_queue_duration", "Seconds until its first batch began")
        self.inference = self._add("te_request_inference_duration", "Seconds from its first batch to its last")
        self.input_length = self._add("te_request_input_length", "Tokens of a text", LENGTHS)
        self.batch_size = self._add("te_batch_next_size", "Texts of a batch", LENGTHS)
        self.batch_tokens = self._add("te_batch_next_tokens", "Tokens of a batch", LENGTHS)
        self.batch = self._add("te_embed_inference_duration", "Seconds that a batch was computed")
        self.queue_size = Gauge("te_queue_size", "Requests that wait or are computed", registry=self.registry)
        self.queue_seconds = Gauge("fastflow_queue_seconds", "Seconds of work that wait", registry=self.registry)
        self.rate = Gauge("fastflow_tokens_per_second", "Tokens computed in a second, lately", registry=self.registry)
        self.duration = Histogram(
            "fastflow_request_duration", "Seconds of an answer by route", ["route"], buckets=DURATIONS,
            registry=self.registry,
        )  # fmt: skip
        self.search = self._add("fastflow_search_duration", "Seconds that the file was searched for a query")

    def _add(self, name: str, help: str, buckets: Iterable[float] = DURATIONS) -> Histogram:
        return Histogram(name, help, buckets=list(buckets), registry=self.registry)

    def record_request(self, spent: float, times: Times, lengths: list[int]) -> None:
        self.request.observe(spent)
        self.tokenization.observe(times.tokenization)
        self.queued.observe(times.queue)
        self.inference.observe(times.inference)
        for length in lengths:
            self.input_length.observe(length)

    def record_batch(self, texts: int, tokens: int, spent: float) -> None:
        self.batch_size.observe(texts)
        self.batch_tokens.observe(tokens)
        self.batch.observe(spent)

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        self._counts[name][tuple(labels.items())] += by

    def value(self, name: str, **labels: str) -> int:
        return self._counts[name][tuple(labels.items())]

    def text(self) -> bytes:
        return "".join(self._format_counters()).encode() + generate_latest(self.registry)

    def _format_counters(self) -> Iterator[str]:
        for name, found in self._counts.items():
            yield f"# HELP {name} {COUNTERS[name]}\n# TYPE {name} counter\n"
            for labels, count in (found or {(): 0}).items():
                inner = ",".join(f'{key}="{value}"' for key, value in labels)
                yield f"{name}{{{inner}}} {count}\n" if inner else f"{name} {count}\n"


class Service:
    """The state of a server."""

    def __init__(
        self, model: ServedModel, settings: ServerSettings, rate: float | None = None,
        searcher: Searcher | None = None, scorer: PairScorer | None = None,
        others: Sequence[ServedModel] = (), main: Service | None = None,
    ) -> None:  # fmt: skip
        self.model, self.settings, self.searcher, self.scorer = model, settings, searcher, scorer
        self.metrics: Metrics = Metrics() if main is None else main.metrics
        self.engine: BatchEngine = self._make_engine(model, rate, None if main is None else main.engine.turn)
        self.engines = [self.engine, *([] if scorer is None else [self._make_engine(scorer, rate)])]
        self.active = 0
        self.bodies = 0  # bytes of unanswered requests
        self.draining = False
        self.every: tuple[Service, ...] = (self, *(Service(each, settings, rate, main=self) for each in others))
        self.names = tuple(name for each in self.every for name in each.model.names)
        if twice := [name for name, count in Counter(self.names).items() if count > 1]:
            raise UsageError(f"two models have the name {twice[0]}: rename a directory, or serve one of them")

    def _make_engine(self, model: BatchModel, rate: float | None, turn: Any = None) -> BatchEngine:
        engine = BatchEngine(model, self.settings, rate or model.measure_rate(), turn)
        engine.observe = self._observe
        return engine

    @property
    def healthy(self) -> bool:
        return not (self.draining or any(e.is_stuck(STUCK) for each in self.every for e in each.engines))

    def choose(self, name: Any) -> Service:
        """Return the service of the model ``name``, else of the first model."""
        return next((each for each in self.every if name in each.model.names), self)

    async def read(self, request: Request) -> Any:
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused("media", "the body must be JSON: send the header Content-Type: application/json")
        body = bytearray()
        async for part in request.stream():
            self.bodies += len(part)
            body += part
            request.state.held = len(body)  # ``Guard`` subtracts it from ``bodies`` later
            self.check_size(len(body))
            if self.bodies > self.settings.max_bodies:
                fault = f"the server holds {self.settings.max_bodies // MIB} MiB of other requests"
                wait, way_out = self.engine.queue.wait, ", or send fewer texts at once"
                raise refuse_for_now("overloaded", fault, wait, way_out, connection="close")
        return parse_json(body) if len(body) <= LARGE else await self.engine.run_in_thread(parse_json, body)

    def check_size(self, length: int) -> None:
        if length > self.settings.max_body:
            message = f"the body is larger than {self.settings.max_body} bytes: send fewer texts at once"
            raise Refused("body", message, headers={"connection": "close"})

    async def embed(
        self, request: Request, texts: Sequence[Any], batch: bool, options: EmbedOptions, truncate: bool,
        pairs: bool = False,
    ) -> EmbedResult:  # fmt: skip
        """Compute the vectors of ``texts``, from a list if ``batch``; with ``pairs`` the logits of pairs."""
        start, method = time.monotonic(), "batch" if batch else "single"
        engine, kind = self.engines[pairs], "te_rerank" if pairs else "te_embed"
        self.metrics.count("te_request_count", method=method)
        self.metrics.count(f"{kind}_count", len(texts))

        def gone() -> asyncio.Future[Any]:
            return asyncio.ensure_future(request.receive())  # http.disconnect, as the body has been read

        try:
            done = await engine.embed(texts, options, truncate, gone)
        except Gone:
            self.metrics.count("fastflow_cancelled_requests")
            raise
        self.metrics.count("te_request_success", method=method)
        self.metrics.count(f"{kind}_success", len(texts))
        if done.cut:
            self.metrics.count("fastflow_truncated_texts", done.cut)
        self.metrics.record_request(time.monotonic() - start, done.times, done.lengths.tolist())
        return done

    async def write(self, numbers: int, call: Any, *arguments: Any) -> bytes:
        if numbers <= LARGE:
            return bytes(call(*arguments))
        return bytes(await self.engine.run_in_thread(call, *arguments))

    def make_metrics_page(self) -> bytes:
        queues, metrics = [each.engine.queue for each in self.every], self.metrics
        metrics.queue_size.set(sum(queue.jobs for queue in queues))
        metrics.queue_seconds.set(sum((queue.work + queue.running) / queue.rate for queue in queues))
        metrics.rate.set(queues[0].rate)
        return metrics.text()

    def _observe(self, texts: int, tokens: int, spent: float) -> None:
        self.metrics.count("fastflow_tokens", tokens)
        self.metrics.record_batch(texts, tokens, spent)
