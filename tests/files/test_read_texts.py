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

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.records import Layout, Record
from fastflow.files.read.texts import format_of, read_records


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
        Record(('a "b", c',), "7", 2), Record(("two\nlines",), "8", 4), Record(("",), "9", 5),
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


def test_blank_lines_of_a_jsonl_file_are_errors_except_at_its_end(tmp_path):
    assert texts(write(tmp_path, "x.jsonl", '"a"\n"b"\n\n \n')) == ["a", "b"]
    with pytest.raises(FastflowError, match="line 2: is not JSON"):
        texts(write(tmp_path, "y.jsonl", '"a"\n\n"b"\n'))


@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_blank_lines_of_a_table_are_errors_except_at_its_end(tmp_path, name):
    content = "text,n\na,1\n\nb,2\n\n\n".replace(",", "," if name == "x.csv" else "\t")
    with pytest.raises(FastflowError, match="line 3: is empty, the header has 2 fields"):
        texts(write(tmp_path, name, content))
    assert texts(write(tmp_path, name, content.replace("\n\nb", "\nb"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("path", "given_format", "want"),
    [
        ("a.txt", None, "txt"), ("a.b.JSONL", None, "jsonl"), ("a.csv.gz", None, "csv"), ("a.gz", None, "txt"),
        ("dir.csv/a", None, "txt"), ("-", None, "txt"), ("a.dat", "tsv", "tsv"), ("a.txt", "csv", "csv"),
    ],
)  # fmt: skip
def test_formats_by_suffix(path, given_format, want):
    assert format_of(path, given_format) == want


@pytest.mark.parametrize(("path", "given_format"), [("a.docx", None), ("a.txt", "xml")])
def test_unknown_formats_are_wrong_usage(path, given_format):
    with pytest.raises(UsageError, match="unknown"):
        format_of(path, given_format)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a.npy", "a.npy holds vectors, not texts"), ("b.npz", "holds vectors"), ("c.safetensors", "holds vectors"),
    ],
)  # fmt: skip
def test_files_without_lines_of_text_are_told_what_to_do_that_works(path, message):
    with pytest.raises(UsageError, match=message) as caught:
        format_of(path)
    assert "--format" not in str(caught.value)


BAD = [
    ("x.txt", b"fine\nb\xffd\n", {}, r"x\.txt, line 2: byte 2 is not UTF-8; .*--errors replace"),
    ("x.csv", b"text\nok\n\xe9\n", {}, r"line 3: byte 1 is not UTF-8"),
    ("x.txt", "é".encode("utf-16"), {}, "line 1: byte 1 is not UTF-8"),
    ("x.jsonl", '"a"\n{"text": \n', {}, r"x\.jsonl, line 2: is not JSON"),
    ("x.jsonl", "[" * 100_000, {}, "line 1: is not JSON"),
    ("x.jsonl", "[1]\n", {}, "line 1: must be a JSON object or string"),
    ("x.jsonl", '{"text": 3}\n', {}, "line 1: field 'text' is not a string"),
    ("x.jsonl", '{"text": null}\n', {}, "line 1: field 'text' is null, not a text; fill it or remove the line"),
    ("x.jsonl", '{"text": "a"}\n{"text": "b\\ud800"}\n', {}, "line 2: field 'text' holds half a surrogate pair"),
    ("x.jsonl", '{"text": "a", "id": "\\udfff"}\n', {"id_field": "id"}, "line 1: field 'id' holds half a surrogate"),
    ("x.jsonl", '{"a": "x", "b": "y"}\n', {}, "line 1: which field is the text.* a, b"),
    ("x.jsonl", "{}\n", {}, "line 1: which field is the text"),
    ("x.jsonl", '{"text": "a"}\n', {"field": "body"}, "line 1: no field 'body'; the fields are text"),
    ("x.jsonl", '{"text": "a"}\n', {"id_field": "id"}, "line 1: no field 'id'"),
    ("x.jsonl", '{"text": "a", "text": "b"}\n', {}, "line 1: is not JSON: the key 'text' comes twice in one object"),
    ("x.jsonl", '{"text": "a", "id": [1]}\n', {"id_field": "id"}, "line 1: field 'id' must be a string, number"),
    ("x.jsonl", '{"text": "a", "id": NaN}\n', {"id_field": "id"}, "line 1: field 'id' must be a string, number"),
    ("x.csv", "a,text\n1\n", {}, "line 2: has 1 fields, the header 2"),
    ("x.csv", "a,text\n1,2,3\n", {}, "line 2: has 3 fields, the header 2"),
    ("x.csv", 'text\n"never closed\nx\n', {}, r"x\.csv, line 3: unexpected end of data"),
    ("x.csv", 'text\n"a"b\n', {}, "line 2: "),
    ("x.csv", "text\na\n", {"field": "body"}, "line 1: no field 'body'; the fields are text"),
    ("x.csv", "text\na\n", {"id_field": "id"}, "no field 'id'"),
    ("x.tsv", "a\ttext\n1\tb\tc\n", {}, "line 2: has 3 fields, the header 2"),
]


@pytest.mark.parametrize(("name", "content", "options", "message"), BAD)
def test_bad_content_names_file_and_line(tmp_path, name, content, options, message):
    path = write(tmp_path, name, content)
    with pytest.raises(FastflowError, match=message) as caught:
        list(read_records(path, Layout(**options)))
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


def test_errors_replace_reads_on(tmp_path):
    path = write(tmp_path, "x.txt", b"fine\nb\xffd\n")
    assert texts(path, errors="replace") == ["fine", "b\ufffdd"]
    path = write(tmp_path, "x.jsonl", b'{"text": "a\\ud800b\xff"}\n')
    assert texts(path, errors="replace") == ["a\ufffdb\ufffd"]


def test_lines_before_a_bad_one_are_given(tmp_path):
    records = read_records(write(tmp_path, "x.txt", b"fine\n\xff\n"))
    assert next(records).texts == ("fine",)
    with pytest.raises(FastflowError, match="line 2"):
        next(records)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "not gzip", "checksum"])
def test_damaged_gzip(tmp_path, damage):
    whole = gzip.compress("".join(f"line {i * 7919}\n" for i in range(20_000)).encode())
    data = {
        "truncated": whole[: len(whole) // 2],
        "flipped": whole[:10] + b"\xff" + whole[11:],
        "not gzip": b"plain text\n",
        "checksum": whole[:-8] + b"\0" * 8,
    }[damage]
    (tmp_path / "x.txt.gz").write_bytes(data)
    with pytest.raises(FastflowError, match=r"x\.txt\.gz, line \d+: cannot be read"):
        list(read_records(str(tmp_path / "x.txt.gz")))


@pytest.mark.parametrize("name", ["absent.txt", "absent.txt.gz"])
def test_a_missing_file(tmp_path, name):
    with pytest.raises(FastflowError, match=f"{name} cannot be opened: No such file"):
        list(read_records(str(tmp_path / name)))


def test_a_directory_as_input(tmp_path):
    with pytest.raises(FastflowError, match="cannot be opened: Is a directory"):
        list(read_records(str(tmp_path)))


def test_a_txt_file_has_no_fields(tmp_path):
    path = write(tmp_path, "x.txt", "a\n")
    for option in ("id_field", "field"):
        with pytest.raises(UsageError, match="a txt file has no fields"):
            list(read_records(path, Layout(**{option: "id"})))


@pytest.mark.parametrize("option", [{"delimiter": ";"}, {"header": False}])
@pytest.mark.parametrize("name", ["x.txt", "x.jsonl"])
def test_options_of_tables_are_refused_elsewhere(tmp_path, name, option):
    with pytest.raises(UsageError, match=r"--(delimiter|no-header) is for csv and tsv, and this file is read as"):
        list(read_records(write(tmp_path, name, '"a"\n'), Layout(**option)))
