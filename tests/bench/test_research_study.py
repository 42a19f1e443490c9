"""What a study ends in: figures that read back as they were, names written once, and a page of the kept figures."""

from __future__ import annotations

import json

from fastflow.bench.research import study

RECORDS = [
    {"place": "news", "scores": {"none": 61.23456789, "flow of many words": 63.5}},
    {"place": "wiki", "scores": {"flow of many words": 62.25}},
]


def test_figures_read_back_as_they_were_at_six_digits(tmp_path):
    rows = [{"dim": 8, "ms": 1.5, "note": None}, {"dim": 16, "ms": 2.25, "note": "busy"}]
    result = {
        "machine": {"processor": "p"},
        "command": "c",
        "candidates": RECORDS,
        "runs": [{"rows": rows}],
        "none": [],
    }
    study.write(tmp_path / "out", result, lambda found: f"{found['candidates'][0]['scores']['none']}")
    kept = study.read(tmp_path / "out.json")
    assert kept["candidates"][0]["scores"] == {"none": 61.2346, "flow of many words": 63.5}
    assert kept["candidates"][1]["scores"] == {"flow of many words": 62.25}, "what was not measured is absent"
    assert kept["runs"] == [{"rows": rows}]
    assert (kept["none"], kept["machine"]) == ([], {"processor": "p"})
    assert (tmp_path / "out.md").read_text() == "61.2346", "the page is of the figures that are kept"
    text = (tmp_path / "out.json").read_text()
    assert text.count("flow of many words") == 1
    assert text.count('"note"') == 1


def test_records_of_other_names_stay_as_they_are(tmp_path):
    rows = [{"a": 1}, {"b": [2, {"rows": [{"a": 1.0}]}]}]
    study.write(tmp_path / "out", {"rows": rows}, lambda found: "")
    assert study.read(tmp_path / "out.json")["rows"] == rows
    assert "processor" in json.loads((tmp_path / "out.json").read_text())["machine"]


def test_a_table():
    assert study.table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
