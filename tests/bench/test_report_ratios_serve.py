"""The figures of the serve suite: its table, and what is asked of it."""

from __future__ import annotations

import pytest

from fastflow.bench.measure.row import Row
from fastflow.bench.report.ratios_serve import serve_ratios
from fastflow.bench.report.table import _ratio_line, _tables


def make_row(name: str, batch: int, **fields) -> dict:
    given = {"median_ms": 10.0, "p20_ms": 9.0, "p80_ms": 11.0, "p99_ms": 90.0, "runs": 100, "texts_per_s": 95.0}
    return Row(
        suite="serve", subject="a model", name=name, backend="cpu", dtype="float32", threads=2, tokens=None,
        batch=batch, **{**given, **fields},
    ).as_dict()  # fmt: skip


def make_rows(**fields) -> list[dict]:
    load = {"refused": 0, "failed": 0, "lag_p99_ms": 1.0, "generator_cpu": 0.1, "batch_ms": 100.0, **fields}
    return [
        make_row("Runtime alone", 256, texts_per_s=100.0),
        make_row("Runtime alone", 1),
        make_row("fastflow", 1, share=0.5, **load),
        make_row("fastflow", 1, share=3.0, **load | {"refused": 7, "refused_p99_ms": 20.0}),
        make_row("fastflow", 32, share=1.3, **load),
        make_row("a peer", 1, share=0.5, **load),
    ]


@pytest.mark.parametrize(("texts", "p99", "refusal", "reached"), [(95.0, 90.0, 20.0, True), (80.0, 301.0, 51.0, False)])
def test_what_is_asked(texts, p99, refusal, reached):
    rows = make_rows()
    rows[4]["texts_per_s"], rows[3]["refused_p99_ms"] = texts, refusal
    rows[2]["p99_ms"] = rows[3]["p99_ms"] = p99
    ratios = serve_ratios(rows)
    assert [ratio["value"] for ratio in ratios] == [p99 / 100, refusal, p99 / 100, texts / 100]
    assert [ratio["reached"] for ratio in ratios] == [reached] * 4
    assert {"name", "threads", "value", "unit", "must", "aim", "reached"} == set(ratios[0])


@pytest.mark.parametrize(("usual", "reached"), [(90.0, True), (89.0, False)])
def test_the_admitted_keep_their_p99(usual, reached):
    rows = make_rows()
    rows.insert(3, rows[2] | {"share": 0.9, "p99_ms": usual})
    found = [ratio for ratio in serve_ratios(rows) if "over that at 90%" in ratio["name"]]
    assert [(ratio["value"], ratio["aim"], ratio["reached"]) for ratio in found] == [(90.0 / usual, 1.0, reached)]
    assert f"(aim <= 1: {'reached' if reached else 'NOT REACHED'})" in _ratio_line(found[0], targets=True)


def test_the_table_has_a_line_for_every_row():
    text = "\n".join(_tables(make_rows()))
    assert text.count("\n  fastflow float32") == 3
    assert "130%, lists of 32" in text
    assert "256 at a time" in text
    assert _tables([]) == []
