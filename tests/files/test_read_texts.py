"""Reading texts: every format, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.errors import FastflowError
from fastflow.files.read.inputs import Input
from fastflow.files.read.records import Layout, Record
from fastflow.files.read.sources import Sources
from fastflow.files.read.texts import format_of, read_records, rows_so_far


def write(directory: Path, name: str, content: str | bytes) -> str:
    data = content.encode("utf-8") if isinstance(content, str) else content
    path = directory / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(path)


def texts(path: str, **options: str) -> list[str]:
    records = list(read_records(path, Layout(**options)))
    assert all(len(record.texts) == 1 for record in records)
    return [record.texts[0] for record in records]


@pytest.mark.parametrize(
    ("content", "want"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("one\ntwo", ["one", "two"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("\none\n\n\n", ["", "one", "", ""]),
        ("\ufeffone\n\ufefftwo\n", ["one", "\ufefftwo"]),
        ("", []),
        ("\n", [""]),
        (" kept \n", [" kept "]),
        ("a\u2028b\x0bc\x0cd\x85e\rf\n", ["a\u2028b\x0bc\x0cd\x85e\rf"]),
        ('"quoted, not csv"\n', ['"quoted, not csv"']),
        ("a\x00b\n", ["a\x00b"]),
    ],
)
@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz", "x", "x.TXT"])
def test_txt_is_one_text_a_line(tmp_path, name, content, want):
    path = write(tmp_path, name, content)
    assert texts(path) == want
    assert [record.line for record in read_records(path)] == list(range(1, len(want) + 1))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.text(st.characters(blacklist_characters="\n\r\ufeff", blacklist_categories=["Cs"]), max_size=12)))
def test_any_text_survives_txt_and_jsonl(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("any")
    assert texts(write(folder, "x.txt", "".join(line + "\n" for line in lines))) == lines
    assert texts(write(folder, "x.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in lines))) == lines


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\n\ntwo")))
    assert texts("-") == ["one", "", "two"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"text": "one"}\n')))
    assert texts("-", format="jsonl") == ["one"]
    monkeypatch.setattr(sys, "stdin", None)  # as under a service manager
    with pytest.raises(FastflowError, match="standard input is closed"):
        texts("-")


def test_csv_with_quotes_newlines_and_ids(tmp_path):
    path = write(tmp_path, "x.csv", 'id,text,n\r\n7,"a ""b"", c",1\r\n8,"two\r\nlines",2\r\n9,,3\r\n')
    assert list(read_records(path, Layout(id_field="id"))) == [
        Record(('a "b", c',), "7", 2), Record(("two\r\nlines",), "8", 4), Record(("",), "9", 5),
    ]  # fmt: skip
    assert texts(path, field="n") == ["1", "2", "3"]


def test_one_column_csv_keeps_empty_lines(tmp_path):
    assert texts(write(tmp_path, "x.csv", "text\na\n\nb\n")) == ["a", "", "b"]


def test_tsv_has_no_quoting(tmp_path):
    path = write(tmp_path, "x.tsv.gz", 'label\tsentence\n0\t"stray\n1\tin"side\n0\t5" disk\\\n')
    assert texts(path) == ['"stray', 'in"side', '5" disk\\']


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.tsv", "score\tsentence1\tsentence2\n1\ta\tb\n0\t\td\n"),
        ("x.csv", "sentence2,sentence1,text\nb,a,x\nd,,y\n"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": "b"}\n{"sentence2": "d", "sentence1": "", "text": "z"}\n'),
    ],
)
def test_pairs_give_two_texts(tmp_path, name, content):
    path = write(tmp_path, name, content)
    assert [record.texts for record in read_records(path)] == [("a", "b"), ("", "d")]
    assert texts(path, field="sentence2") == ["b", "d"]


def test_jsonl_objects_strings_and_ids(tmp_path):
    path = write(tmp_path, "x.jsonl", '{"text": "a", "id": 3}\n{"id": "k", "sentence": "b\\nc"}\r\n')
    assert list(read_records(path, Layout(id_field="id"))) == [Record(("a",), 3, 1), Record(("b\nc",), "k", 2)]
    assert texts(write(tmp_path, "z.jsonl", '"a"\n{"only": "b"}\n')) == ["a", "b"]


@pytest.mark.parametrize(
    ("path", "given_format", "want"),
    [
        ("a.txt", None, "txt"), ("a.b.JSONL", None, "jsonl"), ("a.csv.gz", None, "csv"), ("a.gz", None, "txt"),
        ("dir.csv/a", None, "txt"), ("-", None, "txt"), ("a.dat", "tsv", "tsv"), ("a.txt", "csv", "csv"),
    ],
)  # fmt: skip
def test_formats_by_suffix(path, given_format, want):
    assert format_of(path, given_format) == want


def test_errors_replace_reads_on(tmp_path):
    path = write(tmp_path, "x.txt", b"fine\nb\xffd\n")
    assert texts(path, errors="replace") == ["fine", "b\ufffdd"]
    path = write(tmp_path, "x.jsonl", b'{"text": "a\\ud800b\xff"}\n')
    assert texts(path, errors="replace") == ["a\ufffdb\ufffd"]


SKIPPED = [  # an input, its layout, the rows that are read, and the lines that are left out
    ("x.txt", b"a\nb\xff\nc\n\xe9", {}, ["a", "c"], [2, 4]),
    ("x.txt", b"a\0b\xff\nb\0c", {"null": True}, ["a", "c"], [2]),
    ("x.txt", b"a\nb\x81\nc\n", {"encoding": "cp1252"}, ["a", "c"], [2]),
    ("x.txt", "a\nb\nc\n".encode("utf-16-le")[:-3] + b"\xd8", {"encoding": "utf-16-le"}, ["a", "b"], [3]),
    ("x.jsonl", b'"a"\n{"text": "b", "x": "\xff"}\n{"text": "\\ud800"}\n"c"\n', {}, ["a", "c"], [2, 3]),
    ("x.csv", b'text,n\na,1\n"two\n\xfflines",2\nc,3\n', {}, ["a", "c"], [4]),
    ("x.csv", b"\xff,1\na,2\n", {"header": False, "field": "1"}, ["a"], [1]),
    ("x.tsv", b"text\tn\na\t\xff\nc\t1\n", {}, ["c"], [2]),
]


@pytest.mark.parametrize(("name", "content", "layout", "rows", "lines"), SKIPPED)
def test_rows_that_cannot_be_decoded_are_left_out_and_named(tmp_path, name, content, layout, rows, lines):
    path, layout = write(tmp_path, name, content), Layout(**layout, errors="skip")
    unit = "text" if layout.null else "line"
    with Sources([path]) as source:
        assert [row.record.texts[0] for row in source.rows(layout)] == rows
        assert (source.skipped.count, source.skipped.places) == (len(lines), [f"{path}, {unit} {at}" for at in lines])
    with Input(path) as again:
        assert max(rows_so_far(again, layout)) == len(rows)
    with pytest.raises(FastflowError, match="errors replace"):
        list(read_records(path, layout._replace(errors="strict")))


def test_the_first_places_are_named_and_all_are_counted(tmp_path):
    with Sources([write(tmp_path, "x.txt", b"\xff\n" * 50)]) as source:
        assert list(source.rows(Layout(errors="skip"))) == []
        said = source.skipped.describe()
    assert said.startswith("50 rows are left out, with bytes that cannot be read: ")
    assert (said.count("x.txt, line "), said.endswith("; …")) == (20, True)
