"""Windows of rows over several files: an error names the file and the line in it."""

from __future__ import annotations

import json

import pytest

from fastflow import Runtime, options
from fastflow.errors import FastflowError, UsageError
from fastflow.files import windows as module
from fastflow.files.read.records import Layout
from fastflow.files.read.sources import Sources
from fastflow.files.run import Settings
from fastflow.files.windows import Pace, windows


def listed(runtime, paths, settings, size=2):
    with Sources([str(path) for path in paths]) as sources:
        rows = sources.rows(settings.layout)
        return [window.texts for window in windows(rows, runtime, sources, settings, Pace(size))]


@pytest.fixture
def pair(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("one\ntwo\nthree\n")
    second.write_text("four\n" + "dog " * 70 + "\n")
    return first, second


def test_windows_go_over_the_end_of_a_file(model, pair):
    texts = listed(Runtime(model), pair, Settings())
    assert [[text[:5] for text in window] for window in texts] == [["one", "two"], ["three", "four"], ["dog d"]]


def test_too_long_a_text_is_named_by_its_file_and_line(model, pair):
    with pytest.raises(FastflowError, match=r"/b\.txt, line 2: longer than the model's 64 tokens"):
        listed(Runtime(model), pair, Settings(truncate="error"))
    pair[0].write_text("a\0" + "dog " * 70 + "\0")
    with pytest.raises(FastflowError, match=r"/a\.txt, text 2: longer than the model's 64 tokens"):
        listed(Runtime(model), pair[:1], Settings(Layout(null=True), truncate="error"))


def test_pairs_are_named_by_their_file(model, tmp_path):
    (tmp_path / "a.tsv").write_text("text\nok\n")
    (tmp_path / "b.tsv").write_text("sentence1\tsentence2\na\tb\n")
    with pytest.raises(UsageError, match=r"/b\.tsv holds pairs of texts"):
        listed(Runtime(model), [tmp_path / "a.tsv", tmp_path / "b.tsv"], Settings())


def test_long_rows_end_a_window(model, tmp_path, monkeypatch):
    monkeypatch.setattr(options, "CHARACTERS", 20)
    path = tmp_path / "a.jsonl"
    rows = [("a", ""), ("b" * 19, ""), ("c" * 25, ""), ("d", "e" * 18), ("f" * 4, ""), ("g", "")]
    path.write_text("".join(json.dumps({"text": text, "note": note}) + "\n" for text, note in rows))
    texts = listed(Runtime(model), [path], Settings(Layout(keep=("note",))), 4)
    assert [[text[0] for text in window] for window in texts] == [["a", "b"], ["c"], ["d", "f"], ["g"]]
    assert all(sum(len(text) for text in window[:-1]) < 20 for window in texts)


def test_the_size_of_a_window_follows_its_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    pace, sizes = Pace(1000, varies=True), []
    for seconds in (0.1, 0.1, 0.1, 0.9, 5.0, 0.1, 0.1, 0.1, 0.1):
        sizes.append(pace.size)
        now[0] += seconds
        pace.done(pace.size)
    assert sizes == [16, 32, 64, 128, 128, 64, 128, 256, 512]
    pace.done(3)  # the reader had no more for now
    assert pace.size == 1000
    assert (Pace(1000).size, Pace(10, varies=True).size) == (1000, 10)
