"""Texts end to end, weighted."""

from __future__ import annotations

import pytest
from benches import plain

from fastflow import Runtime
from fastflow.bench.measure.row import Results
from fastflow.bench.peers.encoder import open_peers
from fastflow.bench.suites import end_to_end, texts

pytestmark = pytest.mark.usefixtures("as_in_a_run")


def test_texts_end_to_end(weighted_subject, sentences, monkeypatch):
    runtime = Runtime(weighted_subject.model, backend="reference")
    ours = texts.of_texts("fastflow", "float32", "reference", runtime.encode, runtime.pool)
    liar = plain(weighted_subject)
    monkeypatch.setattr(end_to_end, "_ours", lambda *_: [ours])
    monkeypatch.setattr(end_to_end, "open_peers", lambda *args: [*open_peers(*args), liar])
    results = Results()
    end_to_end.run_subject(weighted_subject, sentences[:20], "texts", ["torch-eager"], 1, lambda message: None, results)
    rows = {(row["name"], row["dtype"]): row["max_abs_err"] for row in results.rows}
    assert set(rows) == {("fastflow", "float32"), ("torch-eager", "float32"), ("torch-eager", "bfloat16")}
    assert max(off for (_, dtype), off in rows.items() if dtype == "float32") <= 1e-5
    assert [entry["name"] for entry in results.skipped] == ["plain float32"]
