"""Studies: figures that read back, and pages that are made of the kept figures."""

import json
from pathlib import Path

import pytest

from fastflow import Runtime
from fastflow.bench.research import quality, study, tasks
from fastflow.evaluation.evaluate import SEVEN, measure, read_task

from support.places import ROOT

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
    assert study.make_table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_records_of_other_names_stay_as_they_are(tmp_path):
    rows = [{"a": 1}, {"b": [2, {"rows": [{"a": 1.0}]}]}]
    study.write(tmp_path / "out", {"rows": rows}, lambda found: "")
    assert study.read(tmp_path / "out.json")["rows"] == rows
    assert "processor" in json.loads((tmp_path / "out.json").read_text())["machine"]


def test_the_default_stands_in_the_quality_table():
    runs = [
        {"corpus": c, "candidate": k, "seed": seed, "set": name, "scores": [start + i, start + 10 + i]}
        for c in ("own texts", "snli", "news")
        for k, seed, start in (("weights", 0, 40), ("all texts", 0, 50), ("all texts", 1, 52))
        for i, name in enumerate(SEVEN)
    ]
    rows = quality.make_weighted_rows({"seven": runs})
    names = ("token weights alone", "the default of fastflow-train, but fitted to all texts")
    assert [row["name"] for row in rows] == [f"{name}, {place}" for place in ("target", "corpus") for name in names]
    assert [len(row["runs"]) for row in rows] == [1, 2, 1, 2]
    assert quality.summarise(rows[0], "mean", "all") == "43.0"
    assert quality.summarise(rows[1], "mean", "all") == "54.0±1.4"
    assert quality.summarise(rows[3], SEVEN[6], "wmean") == "67.0±1.4"


RESULTS = ROOT / "bench" / "results"
PAIRS = "split\tlabel\tsentence1\tsentence2\na\t1\tA dog runs.\tThe dog runs.\na\t0\tA dog runs.\tShares fell.\n"


def test_the_page_is_of_the_kept_figures():
    kept = study.read(RESULTS / "tasks.json")
    assert (RESULTS / "tasks.md").read_text(encoding="utf-8") == tasks.make_page(kept)
    assert {row["set"] for row in kept["rows"]} == {Path(name).stem for name in tasks.FILES}


def test_a_row_has_the_figure_of_each_model(tmp_path, monkeypatch):
    (tmp_path / "some.tsv").write_text(PAIRS)
    monkeypatch.setattr(tasks, "FILES", ("some.tsv",))
    (row,) = tasks.measure_models({"raw": None, "package": None}, tmp_path)
    task = read_task(tmp_path / "some.tsv")
    with Runtime() as runtime:
        assert row == {"set": "some", "measure": "ap"} | dict.fromkeys(
            ("raw", "package"), pytest.approx(measure(task, runtime.encode(task.texts))["ap"])
        )
    assert "| some, ap | 100.0 | 100.0 |  |  |  |" in tasks.make_page({"command": "c", "rows": [row]})
