"""The contract of an input that cannot be read: one sentence that names file, line and fault.

A row is (name, content, options of the layout, sentence), in which … stands for any text. Content is text, bytes, or
the columns of a Parquet file.
"""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.inputs import Input
from fastflow.files.read.records import Layout
from fastflow.files.read.texts import format_of, read_records

from support.refusals import refuses

HEADLESS = {"header": False}
NULL = "field 'text' is null, not a text; fill it or remove the"
LINES = [
    ("x.txt", b"fine\nb\xffd\n", {}, "x.txt, line 2: byte 2 is not UTF-8; …--errors replace"),
    ("x.csv", b"text\nok\n\xe9\n", {}, "line 3: byte 1 is not UTF-8"),
    ("x.txt", "é".encode("utf-16"), {}, "line 1: byte 1 is not UTF-8"),
    ("x.txt", b"a\nb\x81\n", {"encoding": "cp1252"}, "line 2: holds bytes that are not cp1252; convert the file, name"),
    ("x.parquet", {"text": ["x"]}, {"encoding": "cp1252"}, "--encoding is for lines of text, and this file is read as"),
    ("x.parquet", {"text": ["x"]}, {"errors": "skip"}, "--errors skip is for lines of text, and this file is read as"),
    ("x.txt", "a\n", {"id_field": "id"}, "a txt file has no fields"),
    ("x.txt", "a\n", {"field": "id"}, "a txt file has no fields"),
    ("x.txt", '"a"\n', {"delimiter": ";"}, "--delimiter is for csv and tsv, and this file is read as"),
    ("x.jsonl", '"a"\n', {"delimiter": ";"}, "--delimiter is for csv and tsv, and this file is read as"),
    ("x.txt", '"a"\n', HEADLESS, "--no-header is for csv and tsv, and this file is read as"),
    ("x.jsonl", '"a"\n', HEADLESS, "--no-header is for csv and tsv, and this file is read as"),
    ("x.jsonl", '"a"\n{"text": \n', {}, "x.jsonl, line 2: is not JSON"),
    ("x.jsonl", '"a"\n\n"b"\n', {}, "line 2: is not JSON"),
    ("x.jsonl", "[" * 100_000, {}, "line 1: is not JSON"),
    ("x.jsonl", "[1]\n", {}, "line 1: must be a JSON object or string"),
    ("x.jsonl", '{"text": 3}\n', {}, "line 1: field 'text' is not a string"),
    ("x.jsonl", '{"text": null}\n', {}, f"line 1: {NULL} line"),
    ("x.jsonl", '{"text": "a"}\n{"text": "b\\ud800"}\n', {}, "line 2: field 'text' holds half a surrogate pair"),
    ("x.jsonl", '{"text": "a", "id": "\\udfff"}\n', {"id_field": "id"}, "line 1: field 'id' holds half a surrogate"),
    ("x.jsonl", '{"a": "x", "b": "y"}\n', {}, "line 1: which field is the text…a, b"),
    ("x.jsonl", "{}\n", {}, "line 1: which field is the text"),
    ("x.jsonl", '{"text": "a"}\n', {"field": "body"}, "line 1: no field 'body'; the fields are text"),
    ("x.jsonl", '{"text": "a"}\n', {"id_field": "id"}, "line 1: no field 'id'"),
    ("x.jsonl", '{"text": "a", "text": "b"}\n', {}, "line 1: is not JSON: the key 'text' comes twice in one object"),
    ("x.jsonl", '{"text": "a", "id": [1]}\n', {"id_field": "id"}, "line 1: field 'id' must be a string, number"),
    ("x.jsonl", '{"text": "a", "id": NaN}\n', {"id_field": "id"}, "line 1: field 'id' must be a string, number"),
]
TABLES = [
    ("x.csv", "a,text\n1\n", {}, "line 2: has 1 fields, the header 2"),
    ("x.csv", "a,text\n1,2,3\n", {}, "line 2: has 3 fields, the header 2"),
    ("x.tsv", "a\ttext\n1\tb\tc\n", {}, "line 2: has 3 fields, the header 2"),
    ("x.csv", "a;b\nc\n", HEADLESS | {"field": "1"}, "line 2: has 1 fields, line 1 2; quote a text that holds the del"),
    ("x.csv", 'text\n"never closed\nx\n', {}, "x.csv, line 3: unexpected end of data"),
    ("x.csv", 'text\n"a"b\n', {}, "line 2: "),
    ("x.csv", "text,n\na,1\n\nb,2\n", {}, "line 3: is empty, the header has 2 fields"),
    ("x.tsv", "text\tn\na\t1\n\nb\t2\n", {}, "line 3: is empty, the header has 2 fields"),
    ("x.csv", "text\na\n", {"field": "body"}, "line 1: no field 'body'; the fields are text"),
    ("x.csv", "text\na\n", {"id_field": "id"}, "no field 'id'"),
    ("x.csv", "k1;the dog\n", HEADLESS | {"field": "3"}, "no field '3'; the fields are 1, 2"),
    # what could be read in two ways
    ("x.csv", "a;b,c\n1;2,x\n", {}, "line 1: is ',' or ';' the delimiter? …2 columns: 'a;b', 'c'; or 2 columns: 'a', "),
    ("x.csv", "A man, a plan; a dog\n", HEADLESS, "line 1: is ',' or ';' the delimiter?"),
    ("x.csv", "the dog\na cat\n", {}, "line 1: is this the header or the first text? …--text-field 'the dog', for a t"),
    ("x.tsv", "the dog\na cat\n", {}, "line 1: is this the header or the first text?"),
    ("x.csv", "body\na\n", {}, "line 1: is this the header or the first text…--text-field 'body'"),
    ("x.csv", "dog\t1\na\t2\n", {}, "line 1: which column is the text? …--no-header --text-field NUMBER; found the"),
    ("x.csv", "a,b\n1,2\n", {}, "line 1: which column is the text… the columns 'a', 'b'"),
    ("x.csv", "the dog,1\na cat,2\n", HEADLESS, "which column is the text? … 1 (the dog), 2 (1)"),
    ("x.csv", "text,n,text\na,1,b\n", {}, "line 1: the column 'text' comes 2 times: text, n, text"),
    ("x.csv", "id,text,id\na,1,b\n", {"id_field": "id"}, "line 1: the column 'id' comes 2 times"),
    ("x.csv", "sentence1,sentence2,sentence2\na,1,b\n", {}, "the column 'sentence2' comes 2 times"),
    ("x.csv", "x,y,x\na,1,b\n", {"field": "x"}, "the column 'x' comes 2 times"),
]
TWICE = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
PARQUET = [
    ("x.parquet", {"a": ["x"], "b": ["y"]}, {}, "x.parquet: which field is the text? Use --text-field; the fields are"),
    ("x.parquet", {"text": ["x"]}, {"field": "b"}, "x.parquet: no field 'b'; the fields are text"),
    ("x.parquet", {"text": [1]}, {}, "x.parquet: the column 'text' is int64, not text"),
    ("x.parquet", {"text": ["x", None]}, {}, f"x.parquet, row 1: {NULL} row"),
    ("x.parquet", {"text": ["x"]}, {"keep": ("b",)}, "x.parquet: no column 'b' to keep; the columns are text"),
    ("x.parquet", {"text": ["x"]}, {"id_field": "b"}, "x.parquet: no column 'b' to take the id from"),
    ("x.parquet", {"text": ["x"], "b": [[1]]}, {"id_field": "b"}, "the column 'b' is list<…>; an id must be text, a"),
    ("x.parquet", {"text": ["x"], "b": [float("inf")]}, {"id_field": "b"}, "row 0: field 'b' must be a finite number"),
    ("x.parquet", TWICE, {}, "the column 'text' comes 2 times: text, text"),
    ("x.parquet", b"plain text, no table", {}, "x.parquet is no Parquet file, or damaged: "),
]
MANY = "".join(f"line {i} of a file\n" for i in range(20_000)).encode()
GZ, ZST = gzip.compress(MANY, mtime=0), zstandard.compress(MANY)
CUT, DAMAGED = "cannot be read: the file is cut short; fetch it again", "is damaged; fetch it again"
PACKED = [
    ("x.txt.gz", GZ[:-50], {}, f"x.txt.gz, line …: {CUT}"),
    ("x.txt.gz", GZ[:6], {}, f"x.txt.gz, line 1: {CUT}"),
    ("x.txt.gz", GZ[:2000] + b"\xff" * 2000 + GZ[4000:], {}, f"x.txt.gz, line …its .gz {DAMAGED}"),
    ("x.txt.gz", GZ[:10] + b"\xff" + GZ[11:], {}, "x.txt.gz, line 1: cannot be read"),
    ("x.txt.gz", GZ[:-8] + b"\0" * 8, {}, "x.txt.gz, line 20001: cannot be read"),
    ("x.txt.gz", b"plain text\n", {}, "it is not packed as .gz; rename it without .gz"),
    ("x.txt.gz", ZST, {}, "it is packed as .zst, not as .gz; rename it to end in .zst"),
    ("x.txt.zst", ZST[:-50], {}, f"x.txt.zst, line …: {CUT}"),
    ("x.txt.zst", ZST[:6], {}, f"x.txt.zst, line 1: {CUT}"),
    ("x.txt.zst", ZST[:2000] + b"\xff" * 2000 + ZST[4000:], {}, f"x.txt.zst, line …its .zst {DAMAGED}"),
    ("x.txt.zst", b"plain text\n", {}, "it is not packed as .zst; rename it without .zst"),
    ("x.txt.zst", GZ, {}, "it is packed as .gz, not as .zst; rename it to end in .gz"),
]  # fmt: skip


def read(path: object, **layout: object) -> None:
    assert all(record.texts for record in read_records(str(path), Layout(**layout)))


def write(path: Path, content: object) -> Path:
    if isinstance(content, dict | pa.Table):
        pq.write_table(content if isinstance(content, pa.Table) else pa.table(content), path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
    return path


@pytest.mark.parametrize(("name", "content", "layout", "sentence"), [*LINES, *TABLES, *PARQUET, *PACKED])
def test_it_is_refused_in_one_sentence(tmp_path, name, content, layout, sentence):
    path = write(tmp_path / name, content)
    refuses(read, path, sentence, **layout)


@pytest.mark.parametrize("name", ["absent.txt", "absent.txt.gz", "a\0b"])
def test_a_name_that_cannot_be_opened(tmp_path, name):
    refuses(read, tmp_path / name, "cannot be opened: ")
    refuses(read, tmp_path, "cannot be opened: Is a directory")


@pytest.mark.parametrize(
    ("path", "given", "sentence"),
    [
        ("a.docx", None, "unknown"), ("a.txt", "xml", "unknown"), ("a.npy", None, "a.npy holds vectors, not texts"),
        ("b.npz", None, "b.npz holds vectors"), ("c.safetensors", None, "c.safetensors holds vectors"),
    ],
)  # fmt: skip
def test_formats_that_hold_no_texts_are_told_what_to_do_that_works(path, given, sentence):
    with pytest.raises(UsageError) as caught:
        format_of(path, given)
    assert sentence in str(caught.value)
    assert "vectors" not in sentence or "--format" not in str(caught.value)


def test_many_and_long_columns_are_cut_in_messages(tmp_path):
    path = write(tmp_path / "x.csv", ",".join("x" * 1000 for _ in range(1000)) + "\n")
    with pytest.raises(FastflowError) as caught:
        read(path)
    assert len(str(caught.value)) < 1500


def test_a_quote_that_is_never_closed_ends_before_memory_does(tmp_path, monkeypatch):
    monkeypatch.setattr("fastflow.files.read.tables.LONGEST", 1000)
    content = "text,n\n" + "a fine row,1\n" * 200 + '"open,2\n' + "more,3\n" * 400
    sentence = "x.csv, line 344: the row is longer than …is a quote not closed?"
    refuses(read, write(tmp_path / "x.csv", content), sentence)


def test_a_parquet_that_is_damaged_inside(tmp_path):
    path = write(tmp_path / "x.parquet", {"text": [f"text {i}" for i in range(1000)]})
    data = bytearray(path.read_bytes())
    data[200:2000] = bytes(1800)
    refuses(
        lambda found: list(read_records(str(found))), write(path, bytes(data)), "x.parquet, row …: cannot be read: "
    )


def test_a_pipe_of_parquet(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"PAR1")))
    refuses(read, "-", "Parquet is read from its end", format="parquet")


@pytest.mark.parametrize(("name", "extra"), [("x.txt.zst", "zstandard"), ("x.parquet", "pyarrow")])
def test_without_its_library_the_command_to_install_it_is_said(tmp_path, monkeypatch, name, extra):
    path = write(tmp_path / name, zstandard.compress(b"a\n"))
    monkeypatch.setitem(sys.modules, extra, None)
    sentence = f"reading …needs {extra}, which is not installed: run pip install {extra}"
    refuses(read, path, sentence)


def test_lines_before_a_bad_one_are_given(tmp_path):
    with Input(str(write(tmp_path / "x.txt", b"fine\n\xff\n"))) as source:
        lines = source.lines()
        assert next(lines) == "fine"
        refuses(next, lines, "line 2")
