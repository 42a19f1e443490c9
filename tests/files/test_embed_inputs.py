"""``fastflow embed`` of several inputs, of texts that end with NUL, and with fields that are carried along."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastflow import Runtime

from support.commands import run


@pytest.fixture
def desk(tmp_path, monkeypatch, sentences):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    rows = [{"id": i, "text": text, "url": f"u{i}", "n": [i]} for i, text in enumerate(sentences[:60])]
    for name, part in {"b.jsonl": rows[:20], "a.jsonl": rows[20:50], "c.jsonl": rows[50:]}.items():
        (tmp_path / "data" / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    return tmp_path


def test_files_and_patterns_in_the_order_given(model, desk, sentences):
    result = run("embed", "data/b.jsonl", "data/[ac].jsonl", "-m", model, "-o", "out.npy", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert np.array_equal(np.load("out.npy"), Runtime(model).encode(sentences[:60]))
    run("embed", "data/*.jsonl", "-m", model, "-o", "out.npy", "--quiet")
    sorted_by_name = sentences[20:50] + sentences[:20] + sentences[50:60]
    assert np.array_equal(np.load("out.npy"), Runtime(model).encode(sorted_by_name))


def test_fields_are_carried_along(model, desk):
    result = run("embed", "data/b.jsonl", "-m", model, "--keep", "url,n", "--keep", "id", "--quiet")
    first = json.loads(result.stdout.splitlines()[0])
    assert list(first) == ["index", "text", "url", "n", "id", "embedding"]
    assert (first["url"], first["n"], first["id"]) == ("u0", [0], 0)
    (desk / "x.csv").write_text("text,a b\nhello,1\n")
    line = run("embed", "x.csv", "-m", model, "--keep", "a b", "--quiet").stdout
    assert json.loads(line)["a b"] == "1"


def test_a_field_that_later_lines_lack_is_null(model, desk):
    (desk / "x.jsonl").write_text('{"text": "a", "url": "u"}\n{"text": "b"}\n')
    found = run("embed", "x.jsonl", "-m", model, "--keep", "url", "--quiet").stdout.splitlines()
    assert [json.loads(line)["url"] for line in found] == ["u", None]


@pytest.mark.parametrize("option", ["-0", "--null"])
def test_texts_that_end_with_nul_hold_lines(model, option):
    result = run("embed", "-", "-m", model, option, "--quiet", stdin=b"two\nlines\r\n\0\0last\r")
    texts = [json.loads(line)["text"] for line in result.stdout.splitlines()]
    assert texts == ["two\nlines\r\n", "", "last\r"]


@pytest.mark.slow
def test_fit_reads_all_files_twice(model, desk):
    result = run("embed", "data/b.jsonl", "data/a.jsonl", "-m", model, "--fit", "-o", "out.npy")
    assert result.exit_code == 0, result.stderr
    assert "50 distinct texts of b.jsonl and 1 more input" in result.stderr
    assert np.load("out.npy").shape[0] == 50
