"""Texts from txt, csv, tsv and JSON Lines in any encoding, and the inputs that are refused."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.errors import FastflowError, UsageError
from fastflow.files import check_delimiter
from fastflow.files.read import InputFormat, Record, find_text_fields, list_names, text_fields
from fastflow.files.read.inputs import Input, parse_encoding
from fastflow.files.read.sources import Sources
from fastflow.files.read.texts import format_of, read_records, rows_so_far
from fastflow.files.write.outputs import write_list

from support.refusals import refuses


def put(path: Path, content: object) -> Path:
    if isinstance(content, dict | pa.Table):
        pq.write_table(content if isinstance(content, pa.Table) else pa.table(content), path)
    else:
        data = content if isinstance(content, bytes) else str(content).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" and isinstance(content, str) else data)
    return path


def texts(path: object, **options: object) -> list[str]:
    records = list(read_records(str(path), InputFormat(**options)))
    assert all(len(record.texts) == 1 for record in records)
    return [record.texts[0] for record in records]


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz", "x", "x.TXT"])
def test_txt_is_one_text_a_line(tmp_path, name):
    for content, want in (
        ("one\ntwo\n", ["one", "two"]), ("one\ntwo", ["one", "two"]), ("one\r\ntwo\r\n", ["one", "two"]),
        ("\none\n\n\n", ["", "one", "", ""]), ("\ufeffone\n\ufefftwo\n", ["one", "\ufefftwo"]), ("", []),
        (" kept \n", [" kept "]), ('"quoted, not csv"\n', ['"quoted, not csv"']), ("a\x00b\n", ["a\x00b"]),
        ("\n", [""]), ("a\u2028b\x0bc\x0cd\x85e\rf\n", ["a\u2028b\x0bc\x0cd\x85e\rf"]),
    ):  # fmt: skip
        path = put(tmp_path / name, content)
        assert texts(path) == want, content
        assert [record.line for record in read_records(str(path))] == list(range(1, len(want) + 1))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.text(st.characters(blacklist_characters="\n\r\ufeff", blacklist_categories=["Cs"]), max_size=12)))
def test_any_text_survives_txt_and_jsonl(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("any")
    assert texts(put(folder / "x.txt", "".join(line + "\n" for line in lines))) == lines
    assert texts(put(folder / "x.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in lines))) == lines


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\n\ntwo")))
    assert texts("-") == ["one", "", "two"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"text": "one"}\n')))
    assert texts("-", format="jsonl") == ["one"]
    monkeypatch.setattr(sys, "stdin", None)  # as under a service manager
    refuses(texts, "-", "standard input is closed")


PAIRS = [(("a", "b"), None, 2), (("", "d"), None, 3)]
RECORDS = [  # a file, the options that read it, and its texts with ids and lines, or its texts
    ("x.csv", 'id,text,n\r\n7,"a ""b"", c",1\r\n8,"two\r\nlines",2\r\n9,,3\r\n', {"id_field": "id"},
     [('a "b", c', "7", 2), ("two\r\nlines", "8", 4), ("", "9", 5)]),
    ("x.csv", "id,text,n\n7,a,1\n8,b,2\n", {"field": "n"}, ["1", "2"]),
    ("x.csv", "text\na\n\nb\n", {}, ["a", "", "b"]),
    ("x.csv", '"id";"text"\n"1";"a, dog"\n', {}, ["a, dog"]),
    ("x.csv", '"an, id","text"\n1,a dog\n', {}, ["a dog"]),
    ("x.csv", "a;b,text\n1;2,a dog\n", {}, ["a dog"]),  # a known column decides between two delimiters
    ("x.csv", "a;b,c\n1;2,x\n", {"field": "b,c"}, ["2,x"]),
    ("x.csv", "text,,\na dog,1,2\n", {}, ["a dog"]),  # a repeated column that is not used does no harm
    ("x.csv", "k1;the dog\nk2;a cat\n", {"header": False, "field": "2", "id_field": "1"},
     [("the dog", "k1", 1), ("a cat", "k2", 2)]),
    ("x.tsv", "the dog runs\na cat\n", {"header": False}, ["the dog runs", "a cat"]),
    ("x.tsv", "body\na cat\n", {"field": "body"}, ["a cat"]),
    ("x.tsv.gz", 'label\tsentence\n0\t"stray\n1\tin"side\n0\t5" disk\\\n', {}, ['"stray', 'in"side', '5" disk\\']),
    ("x.json", '\ufeff [\n {"id": 1, "text": "a]\\n,"} , {"text":"b","id":null}\n]\n', {"id_field": "id"},
     [("a]\n,", 1, 1), ("b", None, 2)]),
    ("x.json.gz", '["a", "b"]', {}, ["a", "b"]),
    ("x.tsv", '"id"\t"text"\n1\t"a ""b"", \tc\nd"\n', {"id_field": "id"}, [('a "b", \tc\nd', "1", 3)]),
    ("x.tsv", 'text\tn\n"a ""b"""\t1\n', {"quoting": "csv"}, ['a "b"']),
    ("x.tsv", '"text"\tn\n"a"\t1\n', {"quoting": "none", "field": '"text"'}, ['"a"']),
    ("x.csv", 'text,n\n"a,1\n', {"quoting": "none"}, ['"a']),
    ("x.csv", "sep=;\r\nid;text\r\n7;a, b\r\n", {"id_field": "id"}, [("a, b", "7", 3)]),
    ("x.csv", '"SEP=\t"\n"text"\t"n"\na;b\t1,2\n', {}, ["a;b"]),
    ("x.csv", "sep=,\ntext;n\na,b;1\n", {"delimiter": ";"}, ["a,b"]),
    ("x.csv", "subject,n,body\nHi,1,there\n,2,\n", {"field": "subject,body"}, ["Hi\nthere", "\n"]),
    ("x.csv", 'a,b,"a,b"\n1,2,3\n', {"field": "a,b"}, ["3"]),  # the whole name first
    ("x.csv", "a;b;c,\n1;2;3\n", {"field": "a,b"}, ["1\n2"]),  # the columns decide between two delimiters
    ("x.jsonl", '{"body": "b", "subject": "a"}\n', {"field": "subject,body"}, ["a\nb"]),
    ("x.parquet", {"b": ["2"], "a": ["1"]}, {"field": "a,b"}, ["1\n2"]),
    ("x.jsonl", '{"text": "a", "id": 3}\n{"id": "k", "text": "b\\nc"}\r\n', {"id_field": "id"},
     [("a", 3, 1), ("b\nc", "k", 2)]),
    ("x.jsonl", '"a"\n{"text": "b"}\n', {}, ["a", "b"]),
    ("x.jsonl", '{"only": "a"}\n{"text": "x", "only": "b"}\n', {}, ["a", "b"]),  # line 1 decides
    ("x.txt", b"fine\nb\xffd\n", {"errors": "replace"}, ["fine", "b\ufffdd"]),
    ("x.jsonl", b'{"text": "a\\ud800b\xff"}\n', {"errors": "replace"}, ["a\ufffdb\ufffd"]),
    ("x.tsv", "score\tsentence1\tsentence2\n1\ta\tb\n0\t\td\n", {}, PAIRS),
    ("x.csv", "sentence2,sentence1,text\nb,a,x\nd,,y\n", {}, PAIRS),
    ("x.csv", "sentence2,sentence1,text\nb,a,x\nd,,y\n", {"field": "sentence2"}, ["b", "d"]),
    ("x.jsonl", '{"sentence1": "a", "sentence2": "b"}\n{"sentence2": "d", "sentence1": "", "text": "z"}\n', {},
     [(("a", "b"), None, 1), (("", "d"), None, 2)]),
    *(("x.csv", f'id{mark}text\n1{mark}"two; words, or\tmore | of them"\n', options, ["two; words, or\tmore | of them"])
      for mark in ",;\t|" for options in ({}, {"delimiter": mark})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "options", "want"), RECORDS)
def test_texts_ids_and_lines(tmp_path, name, content, options, want):
    path = put(tmp_path / name, content)
    if isinstance(want[0], str):
        assert texts(path, **options) == want
    else:
        records = [Record((text,) if isinstance(text, str) else text, *more) for text, *more in want]
        assert list(read_records(str(path), InputFormat(**options))) == records


def test_quotes_that_stay_in_a_tsv_are_said_once_and_how_they_are_read(tmp_path, capsys):
    path = put(tmp_path / "x.tsv", 'text\tn\na"b\t"1\n"a ""b"""\t1\n"c"\t1\n')
    for _ in range(2):  # a count may read them before
        assert texts(path) == ['a"b', '"a ""b"""', '"c"']
    said = "line 3: a field begins and ends with a quote, which stays; --quoting csv reads quotes as pandas and Excel"
    assert capsys.readouterr().err == f"fastflow: {path}, {said} write them\n"
    put(path, 'text\tn\n"a ""b"""\t1\n')
    assert [*texts(path, quoting="csv"), *texts(path, quoting="none")] == ['a "b"', '"a ""b"""']
    assert capsys.readouterr().err == ""


@pytest.mark.data
@pytest.mark.parametrize("name", ["tasks/pairs/msrp.tsv", "sts/STS12.tsv"])
def test_quotes_of_scored_pairs_stay(shared_data, name):
    path = shared_data / name
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")[1:]
    found = [record.texts for record in read_records(str(path))]
    assert len(found) == len(lines)
    assert all("\t".join(pair) in line for pair, line in zip(found, lines, strict=True))
    assert any('"' in line for line in lines)


def test_formats_by_suffix():
    for path, given_format, want in (
        ("a.txt", None, "txt"), ("a.b.JSONL", None, "jsonl"), ("a.csv.gz", None, "csv"), ("a.csv.zst", None, "csv"),
        ("a.gz", None, "txt"), ("a.gz.txt", None, "txt"), ("dir.csv/a", None, "txt"), ("-", None, "txt"),
        ("a.dat", "tsv", "tsv"), ("a.txt", "csv", "csv"),
    ):  # fmt: skip
        assert format_of(path, given_format) == want, path
    for path, given_format, sentence in (
        ("a.docx", None, "unknown"), ("a.txt", "xml", "unknown"), ("a.npy", None, "a.npy holds vectors, not texts"),
        ("b.npz", None, "b.npz holds vectors"), ("c.safetensors", None, "c.safetensors holds vectors"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=sentence) as caught:
            format_of(path, given_format)
        assert "vectors" not in sentence or "--format" not in str(caught.value)


def test_options_that_are_read():
    for mark, want in {None: None, ";": ";", "\\t": "\t", "tab": "\t", "\t": "\t"}.items():
        assert check_delimiter(mark) == want
    for mark in ("", ";;", '"', "\n", "\r"):
        refuses(check_delimiter, mark, "must be one character")
    assert {parse_encoding(name) for name in ("latin1", "latin-1", "ISO_8859-1")} == {"iso8859-1"}
    assert {parse_encoding(name) for name in (None, "UTF-8", "utf8", "U8")} == {None}
    for name in ("cp12520", "base64", "rot13", "idna", "", "a\0b", "undefined"):
        refuses(parse_encoding, name, "Python knows no such encoding; name one such as cp1252")


def test_the_text_is_found():
    for names, field, chosen in (
        (["id", "text"], None, ("text",)), (["sentence", "id"], None, ("sentence",)), (["body"], None, ("body",)),
        (["sentence", "text"], None, ("text",)), (["id", "sentence2", "sentence1"], None, ("sentence1", "sentence2")),
        (["sentence1", "sentence2", "body"], "body", ("body",)), (["text", "body"], "body", ("body",)),
    ):  # fmt: skip
        assert text_fields(names, "in.csv", 1, field) == chosen
    assert find_text_fields(["body"]) == find_text_fields([]) == ()


UTF8, LONG = "byte {} is not UTF-8", "is longer than 16 MB, which no model can use"
BROKEN = pa.array([b"a", b"\xff", b"c"])
BAD = pa.Array.from_buffers(pa.string(), 3, BROKEN.buffers())
NO_UTF8, NO_CP1252 = "holds bytes that are not UTF-8", "holds bytes that are not cp1252"
QUOTE, OBJECT = "',' expected after '\"'", "must be a JSON object or string"
LINES_OF_JSON = rb"""
"a"

{"text": "b", "x": "BAD"}
{"text": "\ud800"}
{"text": 3}
{"text": ""}
{"url": "u"}
{"text"
7
""".replace(b"BAD", b"\xff")
IDS = '7\n{"text": null, "id": 1}\n{"text": "b", "id": [2]}\n{"text": "c"}\n{"text": "d", "id": 4}\n'
TABLE = b'text,n\na,1\n\n"two\n\xfflines",2\nc,3,4\n"d"x,5\n"open\nend"x,6\ne,7\n\n'
ODD = {"text": ["a", None, "", "d"], "id": [1.0, 2, 3, float("nan")]}
SKIPPED = [  # an input, its layout, its rows that are read by number, and the place and fault of each other row
    ("x.txt", b"a\n\nc\xff\nd\n\xe9", {}, {0: "a", 1: "", 3: "d"},
     {2: ("line 3", UTF8.format(2)), 4: ("line 5", UTF8.format(1))}),
    ("x.txt", b"a\0b\xff\nb\0c", {"null": True}, {0: "a", 2: "c"}, {1: ("text 2", UTF8.format(2))}),
    ("x.txt", b"a\nb\x81\nc\n", {"encoding": "cp1252"}, {0: "a", 2: "c"}, {1: ("line 2", NO_CP1252)}),
    ("x.txt", "a\nb\nc\n".encode("utf-16-le")[:-3] + b"\xd8", {"encoding": "utf-16-le"}, {0: "a", 1: "b"},
     {2: ("line 3", "holds bytes that are not utf-16-le")}),
    ("x.txt.gz", "a\n" + "é" * (9 << 20) + "\nc\n", {}, {0: "a", 2: "c"}, {1: ("line 2", LONG)}),
    ("x.jsonl", LINES_OF_JSON, {}, {0: "a", 4: ""},
     {1: ("line 4", UTF8.format(21)), 2: ("line 5", "field 'text' holds half a surrogate pair"),
      3: ("line 6", "field 'text' is not a string"),
      5: ("line 8", "no field 'text', the text of earlier rows; the fields are url"),
      6: ("line 9", "is not JSON: Expecting ':' delimiter: line 1 column 8 (char 7)"), 7: ("line 10", OBJECT)}),
    ("x.jsonl", IDS, {"id_field": "id"}, {4: "d"},
     {0: ("line 1", OBJECT), 1: ("line 2", "field 'text' is null, not a text"),
      2: ("line 3", "field 'id' must be a string, number, true, false or null"),
      3: ("line 4", "no field 'id' to take the id from")}),
    ("x.csv", TABLE, {}, {0: "a", 5: "e"},
     {1: ("line 5", UTF8.format(1)), 2: ("line 6", "has 3 fields, the header 2"), 3: ("line 7", QUOTE),
      4: ("the 2 lines to 9", QUOTE)}),
    ("x.csv", b"text\na\n\nc\n", {}, {0: "a", 1: "", 2: "c"}, {}),  # an empty text of the only column
    ("x.csv", b"\xff,1\na,2\n", {"header": False, "field": "1"}, {1: "a"}, {0: ("line 1", UTF8.format(1))}),
    ("x.csv.gz", 'text,n\n"a' + "b" * (17 << 20) + '\nb",1\nc,2\n', {}, {1: "c"}, {0: ("line 2", LONG)}),
    ("x.tsv", b"text\tn\na\t\xff\nc\t1\n\nd\n", {}, {1: "c"},
     {0: ("line 2", UTF8.format(3)), 2: ("line 5", "has 1 fields, the header 2")}),
    ("x.json", b'["a", null, {"text": "\xff"}, {"text": 1}, {"x": ""}, "", 12, "\\ud800"]', {}, {0: "a", 5: ""},
     {1: ("record 2", OBJECT), 2: ("record 3", "holds bytes that cannot be read"),
      3: ("record 4", "field 'text' is not a string"),
      4: ("record 5", "no field 'text', the text of earlier rows; the fields are x"),
      6: ("record 7", OBJECT), 7: ("record 8", "field 'text' holds half a surrogate pair")}),
    ("x.json.gz", '["a", "' + "é" * (17 << 20) + '", "c"]', {}, {0: "a", 2: "c"}, {1: ("record 2", LONG)}),
    ("x.parquet", ODD, {"id_field": "id", "field": "text"}, {0: "a", 2: ""},
     {1: ("row 1", "field 'text' is null, not a text"), 3: ("row 3", "field 'id' must be a finite number")}),
    ("x.parquet", {"text": BAD}, {}, {0: "a", 2: "c"}, {1: ("row 1", NO_UTF8)}),
    ("x.parquet", {"text": ["a", "b", "c"], "n": BAD}, {"keep": ("n",)}, {0: "a", 2: "c"}, {1: ("row 1", NO_UTF8)}),
    ("x.parquet", {"text": ["a", "b" * (17 << 20)]}, {}, {0: "a"}, {1: ("row 1", LONG)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "layout", "rows", "faults"), SKIPPED)
def test_a_row_that_cannot_be_used_is_left_out_with_number_and_reason(tmp_path, name, content, layout, rows, faults):
    path, count = str(put(tmp_path / name, content)), len(rows) + len(faults)
    layout = InputFormat(**layout, errors="skip")
    with Sources([path]) as source:
        assert {row.number: row.record.texts[0] for row in source.rows(layout)} == rows
        assert source.skipped.places == [f"{path}, {place}" for place, _ in faults.values()]
        write_list(source.skipped, tmp_path / "out")
    listed = (tmp_path / "out.skipped").read_text().splitlines() if faults else []
    assert [tuple(json.loads(line).values()) for line in listed] == [
        (row, f"{path}, {place}: {fault}") for row, (place, fault) in faults.items()
    ]
    with Input(path) as again:
        assert max(rows_so_far(again, layout)) == count
    for at in range(count + 1):  # a part reads its rows, and names the faults of no others
        with Sources([path]) as source:
            part = [row.number for row in source.rows(layout, at, [count], at + 2)]
            assert part == [row for row in rows if at <= row < at + 2]
            assert source.skipped.count == sum(at <= row < at + 2 for row in faults)
    for place, fault in [*faults.values()][:1]:
        refuses(lambda how: list(read_records(path, how)), layout._replace(errors="strict"), f"{place}: {fault}")


def test_the_first_places_are_named_and_all_are_counted(tmp_path):
    with Sources([str(put(tmp_path / "x.txt", b"\xff\n" * 50))]) as source:
        assert list(source.rows(InputFormat(errors="skip"))) == []
        said = source.skipped.describe(tmp_path / "out.npy")
    assert said.startswith(f"50 rows are left out ({tmp_path / 'out.npy.skipped'} has the reasons): ")
    assert (said.count("x.txt, line "), said.endswith("; …")) == (20, True)


@pytest.mark.parametrize("chunk", [1, 3, 1 << 16])
def test_a_json_list_is_read_in_pieces(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("fastflow.files.read.inputs.CHUNK", chunk)
    want = ["a", "[1, {", 'é"\\', "", "x" * 50]
    for indent in (None, 2):
        path = put(tmp_path / "x.json", json.dumps([{"n": [12, {}], "text": text} for text in want], indent=indent))
        assert texts(path) == want
    assert texts(put(tmp_path / "x.json", "[ ]\n")) == []


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("counts", [None, [1, 0, 1]])
def test_the_first_record_chooses_the_text_of_every_input(tmp_path, suffix, counts):
    """Also for a part that begins in a later input, which has another field to choose."""

    def write(name: str, field: str, value: str) -> str:
        content = {"jsonl": json.dumps({field: value}), "csv": f"{field},n\n{value},1\n", "parquet": {field: [value]}}
        return str(put(tmp_path / f"{name}.{suffix}", content[suffix]))

    paths = [write("a", "text", "one"), write("c", "sentence", "two")]
    empty = {"jsonl": "", "csv": "", "parquet": {"text": pa.array([], pa.string())}}
    paths.insert(1, str(put(tmp_path / f"b.{suffix}", empty[suffix])))
    with Sources(paths) as source:
        assert source.fields == ()
        said = "no field 'text', the text of earlier rows; the fields are sentence"
        refuses(lambda rows: list(rows), source.rows(InputFormat(), 1 if counts else 0, counts), said)
        assert source.fields == ("text",)


def test_a_message_holds_no_endless_list():
    said = list_names(["x" * 99, *(f"c{i}" for i in range(30))])
    assert said.startswith("x" * 39 + "…, c0, c1")
    assert said.endswith("c18, …")
    assert len(said) < 200
    assert list_names(["a\nb", "é c", "\x1b[1m"]) == "a\\nb, é c, \\x1b[1m"


HEADLESS = {"header": False}
NULL = "field 'text' is null, not a text; fill it or remove the row"
TWICE = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
REFUSED = [  # a file, the options that read it, and the sentence
    ("x.txt", b"fine\nb\xffd\n", {}, "x.txt, line 2: byte 2 is not UTF-8; …--errors replace"),
    ("x.txt", b"a\nb\x81\n", {"encoding": "cp1252"}, "line 2: holds bytes that are not cp1252; convert the file, name"),
    ("x.parquet", {"text": ["x"]}, {"encoding": "cp1252"}, "--encoding is for lines of text, and this file is read as"),
    ("x.txt", "a\n", {"id_field": "id"}, "a txt file has no fields"),
    ("x.txt", '"a"\n', {"delimiter": ";"}, "--delimiter is for csv and tsv, and this file is read as"),
    ("x.json", '["a", "b"', {"errors": "skip"}, "x.json, record 3: the list is not closed; is the file whole?"),
    ("x.json", '["a", {"text": ]', {"errors": "skip"}, "x.json, record 2: is not JSON: Expecting value"),
    ("x.json", '["a" "b"]', {}, "x.json, record 2: is no JSON list: , or ] should come before '\"'"),
    ("x.json", '["a"] 1', {}, "x.json, record 2: is no JSON list: its end should come before '1'"),
    ("x.json", '{"text": "a"}', {}, "x.json, record 1: is no JSON list: [ should come before '{'"),
    ("x.jsonl", '"a"\n', {"quoting": "csv"}, "--quoting is for csv and tsv, and this file is read as"),
    ("x.jsonl", '{"a": "x", "b": null}\n', {"field": "a,b"}, "line 1: field 'b' is null, not a text"),
    ("x.csv", "a,b\n1,2\n", {"field": "a,c"}, "line 1: no field 'a,c'; the fields are a, b"),
    ("x.txt", '"a"\n', HEADLESS, "--no-header is for csv and tsv, and this file is read as"),
    ("x.jsonl", '\n"a"\n{', {"errors": "replace"}, "line 3: is not JSON"),
    ("x.jsonl", '\n{"text": "a"}\n', {"keep": ("url",)}, "line 2: no field 'url' to keep"),
    ("x.jsonl", "[" * 100_000, {}, "line 1: is not JSON"),
    ("x.jsonl", '{"text": null}\n', {}, f"line 1: {NULL}"),
    ("x.jsonl", '{"text": "a", "id": "\\udfff"}\n', {"id_field": "id"}, "line 1: field 'id' holds half a surrogate"),
    ("x.jsonl", '{"a": "x", "b": "y"}\n', {}, "line 1: which field is the text…a, b"),
    ("x.jsonl", "{}\n", {}, "line 1: which field is the text"),
    ("x.jsonl", '{"text": "a"}\n', {"field": "body"}, "line 1: no field 'body'; the fields are text"),
    ("x.jsonl", '{"text": "a"}\n', {"id_field": "id"}, "line 1: no field 'id'"),
    ("x.jsonl", '{"text": "a", "text": "b"}\n', {}, "line 1: is not JSON: the key 'text' comes twice in one object"),
    ("x.jsonl", '{"text": "a", "id": NaN}\n', {"id_field": "id"}, "line 1: field 'id' must be a string, number"),
    ("x.tsv", 'a\ttext\n1\t"b\tc"\n', {}, "line 2: has 3 fields, the header 2; read its quotes with --quoting csv"),
    ("x.csv", "a;b\nc\n", HEADLESS | {"field": "1"}, "line 2: has 1 fields, line 1 2; quote a text that holds the del"),
    ("x.csv", b"tex\xfft\na\n", {"errors": "skip"}, "x.csv, line 1: byte 4 is not UTF-8"),
    ("x.csv", 'text\n"never closed\nx\n', {"errors": "skip"}, "line 3: unexpected end of data; is a quote not closed?"),
    ("x.csv", "text,n\na,1\n\nb\n", {"errors": "replace"}, "line 4: has 1 fields, the header 2"),
    ("x.csv", "text\na\n", {"field": "body"}, "line 1: no field 'body'; the fields are text"),
    ("x.csv", "text\na\n", {"id_field": "id"}, "no field 'id'"),
    ("x.csv", "k1;the dog\n", HEADLESS | {"field": "3"}, "no field '3'; the fields are 1, 2"),
    # what could be read in two ways
    ("x.csv", "a;b,c\n1;2,x\n", {}, "line 1: is ',' or ';' the delimiter? …2 columns: 'a;b', 'c'; or 2 columns: 'a', "),
    ("x.csv", "A man, a plan; a dog\n", HEADLESS, "line 1: is ',' or ';' the delimiter?"),
    ("x.csv", "the dog\na cat\n", {}, "line 1: is this the header or the first text? …--text-field 'the dog', for a t"),
    ("x.csv", "body\na\n", {}, "line 1: is this the header or the first text…--text-field 'body'"),
    ("x.csv", "dog\t1\na\t2\n", {}, "line 1: which column is the text? …--no-header --text-field NUMBER; found the"),
    ("x.csv", "a,b\n1,2\n", {}, "line 1: which column is the text… the columns 'a', 'b'"),
    ("x.csv", "the dog,1\na cat,2\n", HEADLESS, "which column is the text? … 1 (the dog), 2 (1)"),
    ("x.csv", "text,n,text\na,1,b\n", {}, "line 1: the column 'text' comes 2 times: text, n, text"),
    ("x.csv", "id,text,id\na,1,b\n", {"id_field": "id"}, "line 1: the column 'id' comes 2 times"),
    ("x.csv", "x,y,x\na,1,b\n", {"field": "x"}, "the column 'x' comes 2 times"),
    ("x.parquet", {"a": ["x"], "b": ["y"]}, {}, "x.parquet: which field is the text? Use --text-field; the fields are"),
    ("x.parquet", {"text": ["x"]}, {"field": "b"}, "x.parquet: no field 'b'; the fields are text"),
    ("x.parquet", {"text": [1]}, {}, "x.parquet: the column 'text' is int64, not text"),
    ("x.parquet", {"text": ["x", None]}, {}, f"x.parquet, row 1: {NULL}"),
    ("x.parquet", {"text": ["x"]}, {"keep": ("b",)}, "x.parquet: no column 'b' to keep; the columns are text"),
    ("x.parquet", {"text": ["x"]}, {"id_field": "b"}, "x.parquet: no column 'b' to take the id from"),
    ("x.parquet", {"text": ["x"], "b": [[1]]}, {"id_field": "b"}, "the column 'b' is list<…>; an id must be text, a"),
    ("x.parquet", TWICE, {}, "the column 'text' comes 2 times: text, text"),
    ("x.parquet", b"plain text, no table", {}, "x.parquet is no Parquet file, or damaged: "),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "layout", "sentence"), REFUSED)
def test_it_is_refused_in_one_sentence(tmp_path, name, content, layout, sentence):
    refuses(texts, put(tmp_path / name, content), sentence, **layout)


def test_long_rows_end_before_memory_does_and_are_cut_in_messages(tmp_path, monkeypatch):
    path = put(tmp_path / "x.csv", ",".join("x" * 1000 for _ in range(1000)) + "\n")
    with pytest.raises(FastflowError) as caught:
        texts(path)
    assert len(str(caught.value)) < 1500
    monkeypatch.setattr("fastflow.files.read.tables.LONGEST", 1000)
    put(path, "text,n\n" + "a fine row,1\n" * 200 + '"open,2\n' + "more,3\n" * 400)
    refuses(texts, path, "x.csv, line 344: the row is longer than …is a quote not closed?")


def test_files_that_cannot_be_opened_or_are_damaged_inside(tmp_path, monkeypatch):
    for name in ("absent.txt", "absent.txt.gz", "a\0b", "x" * 300):
        refuses(texts, tmp_path / name, "cannot be opened: ")
    refuses(texts, tmp_path, "cannot be opened: Is a directory")
    path = put(tmp_path / "x.parquet", {"text": [f"text {i}" for i in range(1000)]})
    data = bytearray(path.read_bytes())
    data[200:2000] = bytes(1800)
    refuses(texts, put(path, bytes(data)), "x.parquet, row …: cannot be read: ")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"PAR1")))
    refuses(texts, "-", "Parquet is read from its end", format="parquet")
