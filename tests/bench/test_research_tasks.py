"""The page of other tasks: made of the kept figures, and each figure is that of ``fastflow eval``."""

from pathlib import Path

import pytest

from fastflow import Runtime
from fastflow.bench.research import tasks
from fastflow.bench.research.study import read
from fastflow.evaluation.evaluate import measure, read_task

from support.places import ROOT

RESULTS = ROOT / "bench" / "results"
PAIRS = "split\tlabel\tsentence1\tsentence2\na\t1\tA dog runs.\tThe dog runs.\na\t0\tA dog runs.\tShares fell.\n"


def test_the_page_is_of_the_kept_figures():
    kept = read(RESULTS / "tasks.json")
    assert (RESULTS / "tasks.md").read_text(encoding="utf-8") == tasks.markdown(kept)
    assert {row["set"] for row in kept["rows"]} == {Path(name).stem for name in tasks.FILES}


def test_a_row_has_the_figure_of_each_model(tmp_path, monkeypatch):
    (tmp_path / "some.tsv").write_text(PAIRS)
    monkeypatch.setattr(tasks, "FILES", ("some.tsv",))
    (row,) = tasks.measured({"raw": None, "package": None}, tmp_path)
    task = read_task(tmp_path / "some.tsv")
    with Runtime() as runtime:
        assert row == {"set": "some", "measure": "ap"} | dict.fromkeys(
            ("raw", "package"), pytest.approx(measure(task, runtime.encode(task.texts))["ap"])
        )
    assert "| some, ap | 100.0 | 100.0 |  |  |  |" in tasks.markdown({"command": "c", "rows": [row]})
