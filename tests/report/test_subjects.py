"""The subjects of a report: which one is the baseline, and what they are called."""

from __future__ import annotations

from fastflow.report.subjects import baseline, shown_name


def test_baseline_is_raw_else_the_first_named():
    assert baseline(["model", "whiten", "raw"]) == "raw"
    assert baseline(["model", "whiten", "flow"]) == "whiten"
    assert baseline(["model"]) is None


def test_shown_name_is_a_name_whatever_the_path(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert [shown_name(path) for path in (".", "..", tmp_path / "a", "b/", "default")] == [
        "b",
        "a",
        "a",
        "b",
        "default",
    ]
