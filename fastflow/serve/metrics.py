"""Counts and times of the server, under TEI's names for its dashboards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest

if TYPE_CHECKING:
    from fastflow.serve.engine import Times

DURATIONS = [1e-5 * 1.5**i for i in range(1, 40)]  # 15 microseconds to 73 seconds
LENGTHS = [2.0**i for i in range(14)]
COUNTERS = {
    "te_request_count": "Requests that were read, single or batch",
    "te_request_success": "Requests that were answered, single or batch",
    "te_request_failure": "Requests that were refused, by reason",
    "te_embed_count": "Texts that were tokenized to be embedded",
    "te_embed_success": "Texts that were embedded",
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
