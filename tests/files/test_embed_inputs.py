"""``fastflow embed`` of several inputs, of texts that end with NUL, and with fields that are carried along."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.files import embed as module
from fastflow.files.embed import embed_file
from fastflow.files.read.records import Layout
from fastflow.files.run import Run
from fastflow.files.settings import Settings

from support.commands import assert_one_sentence, run
from support.interrupts import stopped


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
    assert np.array_equal(
        np.load("out.npy"), Runtime(model).encode(sentences[20:50] + sentences[:20] + sentences[50:60])
    )


def test_two_formats_are_refused(model, desk):
    (desk / "x.txt").write_text("a\n")
    assert_one_sentence(
        run("embed", "x.txt", "data/a.jsonl", "-m", model, "--quiet"), 2, "x.txt is txt and data/a.jsonl is"
    )


def test_the_output_is_none_of_the_inputs(model, desk):
    before = (desk / "data" / "c.jsonl").read_bytes()
    result = run("embed", "data/a.jsonl", "data/c.jsonl", "-m", model, "-o", "data/c.jsonl", "--quiet")
    assert_one_sentence(result, 2, "is the input; choose another output")
    assert (desk / "data" / "c.jsonl").read_bytes() == before


def test_a_fault_is_named_by_its_file_and_line(model, desk):
    (desk / "data" / "c.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    result = run("embed", "data/*.jsonl", "-m", model, "-o", "out.npy", "--quiet")
    assert_one_sentence(result, 1, "data/c.jsonl, line 2: field 'text' is not a string")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".safetensors", ".parquet", ".db"])
def test_a_run_over_files_is_continued_to_the_same_bytes(model, desk, monkeypatch, suffix):
    monkeypatch.setattr(module, "WINDOW", 16)
    paths, target = ["data/b.jsonl", "data/a.jsonl", "data/c.jsonl"], desk / f"out{suffix}"
    settings = Settings(
        Layout(keep=("url", "n"), id_field="id") if suffix in (".npz", ".jsonl", ".parquet", ".db") else Layout()
    )
    embed_file(Runtime(model), paths, target, settings, Run(quiet=True))
    whole = target.read_bytes()
    target.unlink()
    stopped(model, paths, target, settings)
    assert embed_file(Runtime(model), paths, target, settings, Run(resume=True, quiet=True)).resumed == 32
    assert target.read_bytes() == whole


def test_resume_names_the_file_that_changed(model, desk, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 16)
    paths, target = ["data/b.jsonl", "data/a.jsonl"], desk / "out.npy"
    stopped(model, paths, target, Settings())
    (desk / "data" / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(FastflowError, match=r"from a run with another input data/a\.jsonl; give the same"):
        embed_file(Runtime(model), paths, target, Settings(), Run(resume=True, quiet=True))
    with pytest.raises(FastflowError, match=r"from a run with another input; give the same"):
        embed_file(Runtime(model), paths[:1], target, Settings(), Run(resume=True, quiet=True))


def test_fields_are_carried_along(model, desk):
    result = run("embed", "data/b.jsonl", "-m", model, "--keep", "url,n", "--keep", "id", "--quiet")
    first = json.loads(result.stdout.splitlines()[0])
    assert list(first) == ["index", "text", "url", "n", "id", "embedding"]
    assert (first["url"], first["n"], first["id"]) == ("u0", [0], 0)
    run("embed", "data/b.jsonl", "-m", model, "--keep", "url,n", "-o", "out.npz", "--quiet")
    with np.load("out.npz") as found:
        assert found["url"].tolist() == [f"u{i}" for i in range(20)]
        assert found["n"].tolist()[:2] == ["[0]", "[1]"]
    (desk / "x.csv").write_text("text,a b\nhello,1\n")
    line = run("embed", "x.csv", "-m", model, "--keep", "a b", "--quiet").stdout
    assert json.loads(line)["a b"] == "1"


def test_a_field_that_later_lines_lack_is_null_and_one_that_the_first_lacks_an_error(model, desk):
    (desk / "x.jsonl").write_text('{"text": "a", "url": "u"}\n{"text": "b"}\n')
    found = run("embed", "x.jsonl", "-m", model, "--keep", "url", "--quiet").stdout.splitlines()
    assert [json.loads(line)["url"] for line in found] == ["u", None]
    result = run("embed", "x.jsonl", "-m", model, "--keep", "ulr", "--quiet")
    assert_one_sentence(result, 1, "x.jsonl, line 1: no field 'ulr' to keep; the fields are text, url")
    (desk / "x.jsonl").write_text('{"text": "a", "url": NaN}\n')
    assert_one_sentence(
        run("embed", "x.jsonl", "-m", model, "--keep", "url", "--quiet"), 1, "field 'url' is no JSON value"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "url", "-o", "out.npy"], "a .npy file has no place for fields"),
        (["--keep", "url", "-o", "out.safetensors"], "a .safetensors file has no place for fields"),
        (["--keep", "text"], "JSON Lines has a field 'text' of its own"),
        (
            ["--keep", "id", "--id-field", "id", "-o", "out.jsonl"],
            "out.jsonl: a .jsonl file has a field 'id' of its own",
        ),
        (["--keep", "index", "-o", "out.npz"], "out.npz: a .npz file has a field 'index' of its own"),
        (["--keep", "url,"], "--keep url,: must name fields, each once"),
        (["--keep", "url", "--keep", "url"], "--keep url,url: must name fields, each once"),
        (["--null"], "--null is for txt, and this file is read as jsonl"),
    ],
)
def test_what_cannot_be_kept_is_refused(model, desk, options, message):
    assert_one_sentence(run("embed", "data/b.jsonl", "-m", model, "--quiet", *options), 2, message)
    assert not list(desk.glob("out*"))


def test_a_txt_has_no_fields_to_keep(model, desk):
    (desk / "x.txt").write_text("a\n")
    result = run("embed", "x.txt", "-m", model, "--keep", "url", "--quiet")
    assert_one_sentence(result, 2, "x.txt: a txt file has no fields, so --keep url")


@pytest.mark.parametrize("option", ["-0", "--null"])
def test_texts_that_end_with_nul_hold_lines(model, option):
    result = run("embed", "-", "-m", model, option, "--quiet", stdin=b"two\nlines\r\n\0\0last\r")
    texts = [json.loads(line)["text"] for line in result.stdout.splitlines()]
    assert texts == ["two\nlines\r\n", "", "last\r"]
    result = run("embed", "-", "-m", model, option, "--quiet", stdin=b"a\0\xff\0")
    assert_one_sentence(result, 1, "-, text 2: byte 1 is not UTF-8")


@pytest.mark.slow
def test_fit_reads_all_files_twice(model, desk, sentences):
    result = run("embed", "data/b.jsonl", "data/a.jsonl", "-m", model, "--fit", "-o", "out.npy")
    assert result.exit_code == 0, result.stderr
    assert "50 distinct texts of b.jsonl and 1 more input" in result.stderr
    assert np.load("out.npy").shape[0] == 50
