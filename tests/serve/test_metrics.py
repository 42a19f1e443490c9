"""The page of /metrics: TEI's names, in Prometheus' text format."""

from __future__ import annotations

import re

from fastflow.serve.engine import Times
from fastflow.serve.metrics import COUNTERS, Metrics, format_seconds

TEI = {
    *("te_request_count", "te_request_success", "te_request_failure", "te_request_duration", "te_embed_count"),
    *("te_request_tokenization_duration", "te_request_queue_duration", "te_request_inference_duration"),
    *("te_request_input_length", "te_queue_size", "te_batch_next_size", "te_batch_next_tokens", "te_embed_success"),
}


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    """(name, value of the label) -> number; every line must be one of the text format."""
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("# ")]
    found = [re.fullmatch(r'([a-z_]+)(?:\{[a-z]+="([^"]*)"\})? ([-+.\deinfINF]+)', line) for line in lines]
    assert all(found), lines
    return {(match[1], match[2] or ""): float(match[3]) for match in found if match}


def test_counters_keep_teis_names():
    metrics = Metrics()
    metrics.count("te_request_count", method="single")
    metrics.count("te_request_count", 2, method="batch")
    assert metrics.value("te_request_count", method="batch") == 2
    found = samples(metrics)
    assert found["te_request_count", "single"] == 1
    assert found["te_request_count", "batch"] == 2
    assert found["te_embed_count", ""] == 0


def test_every_name_of_tei_is_there():
    text = Metrics().text().decode()
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert named >= TEI
    assert named >= set(COUNTERS)


def test_a_request_and_a_batch_are_observed():
    metrics = Metrics()
    metrics.record_request(0.5, Times(0.1, 0.2, 0.2), [3, 5])
    metrics.record_batch(2, 8, 0.2)
    found = samples(metrics)
    assert found["te_request_duration_sum", ""] == 0.5
    assert found["te_request_queue_duration_sum", ""] == 0.2
    assert (found["te_request_input_length_count", ""], found["te_request_input_length_sum", ""]) == (2, 8)
    assert (found["te_batch_next_size_sum", ""], found["te_batch_next_tokens_sum", ""]) == (2, 8)


def test_two_servers_in_a_process_count_apart():
    first, second = Metrics(), Metrics()
    first.count("te_embed_count")
    assert second.value("te_embed_count") == 0


def test_headers_hold_milliseconds():
    assert (format_seconds(0.0123), format_seconds(12.3456)) == ("12", "12346")
