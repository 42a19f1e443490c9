"""Studies: figures that read back, and pages that are made of the kept figures."""

import json

import numpy as np

from fastflow import Runtime
from fastflow.bench.research import published, quality, study, truncation_default
from fastflow.evaluation.evaluate import SEVEN

RECORDS = [
    {"place": "news", "scores": {"none": 61.23456789, "flow of many words": 63.5}},
    {"place": "wiki", "scores": {"flow of many words": 62.25}},
]


def test_figures_read_back_as_they_were_at_six_digits(tmp_path):
    rows = [{"dim": 8, "ms": 1.5, "note": None}, {"dim": 16, "ms": 2.25, "note": "busy"}]
    given = {"machine": {"processor": "p"}, "command": "c", "runs": [{"rows": rows}], "none": []}
    study.write(tmp_path / "out", given | {"candidates": RECORDS}, lambda found: f"{found['candidates'][0]['scores']}")
    kept = study.read(tmp_path / "out.json")
    assert kept["candidates"][0]["scores"] == {"none": 61.2346, "flow of many words": 63.5}
    assert kept["candidates"][1]["scores"] == {"flow of many words": 62.25}, "what was not measured is absent"
    assert {name: kept[name] for name in given} == given
    page, text = (tmp_path / "out.md").read_text(), (tmp_path / "out.json").read_text()
    assert page == str(kept["candidates"][0]["scores"]), "the page is of the figures that are kept"
    assert (text.count("flow of many words"), text.count('"note"')) == (1, 1)
    assert study.table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_records_of_other_names_stay_as_they_are(tmp_path):
    rows = [{"a": 1}, {"b": [2, {"rows": [{"a": 1.0}]}]}]
    study.write(tmp_path / "out", {"rows": rows}, lambda found: "")
    assert study.read(tmp_path / "out.json")["rows"] == rows
    assert "processor" in json.loads((tmp_path / "out.json").read_text())["machine"]


def test_published_figures_stand_apart_and_have_their_own_means():
    lines = published.section([*SEVEN, "mean"])
    assert "Not measured here" in lines[2]
    row = next(line for line in lines if line.startswith("| BERT-base, flow, target (a)"))
    assert row.endswith("| 63.1 | 69.6 |")
    assert {mark for _, mark, _ in published.ROWS} == set(published.SOURCES)


def test_the_default_stands_in_the_quality_table():
    runs = [
        {"corpus": c, "candidate": k, "seed": seed, "set": name, "scores": [start + i, start + 10 + i]}
        for c in ("own texts", "snli", "news")
        for k, seed, start in (("weights", 0, 40), ("all texts", 0, 50), ("all texts", 1, 52))
        for i, name in enumerate(SEVEN)
    ]
    rows = quality.weighted_rows({"seven": runs})
    names = ("token weights alone", "the default of fastflow-train, but fitted to all texts")
    assert [row["name"] for row in rows] == [f"{name}, {place}" for place in ("target", "corpus") for name in names]
    assert [len(row["runs"]) for row in rows] == [1, 2, 1, 2]
    assert quality.summary(rows[0], "mean", "all") == "43.0"
    assert quality.summary(rows[1], "mean", "all") == "54.0±1.4"
    assert quality.summary(rows[3], SEVEN[6], "wmean") == "67.0±1.4"


HEADER = "subset\tscore\tsentence1\tsentence2\n"
PAIRS = (
    ("A dog runs.", "The dog runs.", 5),
    ("A dog runs.", "Shares fell.", 0),
    ("Rain fell.", "The rain fell hard.", 4),
)


def test_rows_have_the_bytes_and_scores_of_their_codes(tmp_path):
    for name in SEVEN:
        lines = "".join(f"x\t{score}\t{a}\t{b}\n" for a, b, score in PAIRS)
        (tmp_path / f"{name}.tsv").write_text(HEADER + lines)
    with Runtime(dtype="float32", device="cpu") as runtime:
        rows = [truncation_default.scored(runtime, tmp_path, 60, precision) for precision in ("float32", "binary")]
    assert [row["bytes"] for row in rows] == [240, 8]
    assert all(np.isfinite(row["all"]) for row in rows)
    assert rows[0]["all"] == 100.0
    page = truncation_default.markdown({"command": "c", "fingerprint": "f", "rows": rows})
    assert "| 60 | float32 | 240 | 100.0 | 100.0 |" in page
