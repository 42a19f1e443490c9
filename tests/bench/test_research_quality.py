"""The quality page: published figures apart, the default next to the closed forms."""

from __future__ import annotations

from fastflow.bench.research import published, quality
from fastflow.evaluation.evaluate import SEVEN


def test_published_figures_stand_apart_and_have_their_own_means():
    lines = published.section([*SEVEN, "mean"])
    assert "Not measured here" in lines[2]
    row = next(line for line in lines if line.startswith("| BERT-base, flow, target (a)"))
    assert row.endswith("| 63.1 | 69.6 |")
    assert {mark for _, mark, _ in published.ROWS} == set(published.SOURCES)


def test_the_default_stands_in_the_quality_table():
    def scores(start: float) -> dict:
        return {name: [start + i, start + 10 + i] for i, name in enumerate(SEVEN)}

    runs = [{"place": w, "seed": 0, "scores": {"raw": scores(0), "weights": scores(40), "default": scores(50)}}
            for w in ("target", "snli", "news")]  # fmt: skip
    runs += [{"place": w, "seed": 1, "scores": {"default": scores(52)}} for w in ("target", "snli", "news")]
    rows = quality.weighted_rows({"runs": runs})
    assert [row["name"] for row in rows] == [
        f"{name}, {where}" for where in ("target", "corpus")
        for name in ("token weights alone", "the default of fastflow-train")
    ]  # fmt: skip
    assert [len(row["runs"]) for row in rows] == [1, 2, 1, 2]
    assert quality.summary(rows[0], "mean", "all") == "43.0"
    assert quality.summary(rows[1], "mean", "all") == "54.0±1.4"
    assert quality.summary(rows[3], SEVEN[6], "wmean") == "67.0±1.4"
