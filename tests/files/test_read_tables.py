"""csv and tsv: the delimiter, the header, repeated columns; whatever can be read in two ways is refused."""

from __future__ import annotations

import pytest

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.records import Layout
from fastflow.files.read.texts import read_records
from fastflow.files.settings import check_delimiter


def texts(tmp_path, content: str, name: str = "x.csv", **options: object) -> list[str]:
    (tmp_path / name).write_text(content, encoding="utf-8")
    return [record.texts[0] for record in read_records(str(tmp_path / name), Layout(**options))]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_is_read_off_the_header(tmp_path, mark):
    lines = [("id", "text"), ("1", "a dog"), ("2", '"two; words, or\tmore | of them"')]
    content = "".join(mark.join(line) + "\n" for line in lines)
    assert texts(tmp_path, content) == ["a dog", "two; words, or\tmore | of them"]
    assert texts(tmp_path, content, delimiter=mark) == ["a dog", "two; words, or\tmore | of them"]


def test_quoted_headers(tmp_path):
    assert texts(tmp_path, '"id";"text"\n"1";"a, dog"\n') == ["a, dog"]
    assert texts(tmp_path, '"an, id","text"\n1,a dog\n') == ["a dog"]


def test_a_known_column_decides_between_two_delimiters(tmp_path):
    assert texts(tmp_path, "a;b,text\n1;2,a dog\n") == ["a dog"]
    assert texts(tmp_path, "a;b,c\n1;2,x\n", field="b,c") == ["2,x"]


AMBIGUOUS = [
    ("a;b,c\n1;2,x\n", {}, r"line 1: is ',' or ';' the delimiter\? .*2 columns: 'a;b', 'c'; or 2 columns: 'a', 'b,c'"),
    ("A man, a plan; a dog\n", {"header": False}, r"line 1: is ',' or ';' the delimiter\?"),
    (
        "the dog runs\na cat sleeps\n",
        {},
        r"line 1: is this the header or the first text\? .*--text-field 'the dog runs', for a text --no-header",
    ),
    ("body\na\n", {}, "line 1: is this the header or the first text.*--text-field 'body'"),
    (
        "the dog\t1\na cat\t2\n",
        {},
        r"line 1: which column is the text\? .*--no-header --text-field NUMBER; found the columns 'the dog', '1'",
    ),
    ("a,b\n1,2\n", {}, "line 1: which column is the text.* the columns 'a', 'b'"),
    ("the dog,1\na cat,2\n", {"header": False}, r"which column is the text\? .* 1 \(the dog\), 2 \(1\)"),
    ("text,n,text\na,1,b\n", {}, "line 1: the column 'text' comes 2 times: text, n, text"),
    ("id,text,id\na,1,b\n", {"id_field": "id"}, "line 1: the column 'id' comes 2 times"),
    ("sentence1,sentence2,sentence2\na,1,b\n", {}, "the column 'sentence2' comes 2 times"),
    ("x,y,x\na,1,b\n", {"field": "x"}, "the column 'x' comes 2 times"),
]


@pytest.mark.parametrize(("content", "options", "message"), AMBIGUOUS)
def test_whatever_can_be_read_in_two_ways_is_refused(tmp_path, content, options, message):
    with pytest.raises(FastflowError, match=message) as caught:
        texts(tmp_path, content, **options)
    assert "\n" not in str(caught.value)


def test_the_first_line_of_a_single_column_tsv_is_no_header_by_itself(tmp_path):
    with pytest.raises(FastflowError, match="is this the header or the first text"):
        texts(tmp_path, "the dog runs\na cat sleeps\n", name="x.tsv")
    assert texts(tmp_path, "the dog runs\na cat\n", name="x.tsv", header=False) == ["the dog runs", "a cat"]
    assert texts(tmp_path, "body\na cat\n", name="x.tsv", field="body") == ["a cat"]


def test_columns_without_a_header_are_numbered(tmp_path):
    content = "k1;the dog\nk2;a cat\n"
    assert texts(tmp_path, content, header=False, field="2") == ["the dog", "a cat"]
    (tmp_path / "x.csv").write_text(content)
    found = list(read_records(str(tmp_path / "x.csv"), Layout(header=False, field="2", id_field="1")))
    assert [(record.id, record.line) for record in found] == [("k1", 1), ("k2", 2)]
    with pytest.raises(FastflowError, match="no field '3'; the fields are 1, 2"):
        texts(tmp_path, content, header=False, field="3")
    with pytest.raises(FastflowError, match="line 2: has 1 fields, line 1 2; quote a text that holds the delimiter"):
        texts(tmp_path, "a;b\nc\n", header=False, field="1")


def test_a_repeated_column_that_is_not_used_does_no_harm(tmp_path):
    assert texts(tmp_path, "text,,\na dog,1,2\n") == ["a dog"]


def test_many_and_long_columns_are_cut_in_messages(tmp_path):
    with pytest.raises(FastflowError) as caught:
        texts(tmp_path, ",".join("x" * 1000 for _ in range(1000)) + "\n")
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(("given", "want"), [(None, None), (";", ";"), ("\\t", "\t"), ("tab", "\t"), ("\t", "\t")])
def test_delimiters(given, want):
    assert check_delimiter(given) == want


@pytest.mark.parametrize("given", ["", ";;", '"', "\n", "\r"])
def test_what_is_no_delimiter(given):
    with pytest.raises(UsageError, match="must be one character"):
        check_delimiter(given)


def test_a_quote_that_is_never_closed_ends_before_memory_does(tmp_path, monkeypatch):
    monkeypatch.setattr("fastflow.files.read.tables.LONGEST", 1000)
    (tmp_path / "x.csv").write_text("text,n\n" + "a fine row,1\n" * 200 + '"open,2\n' + "more,3\n" * 400)
    with pytest.raises(FastflowError, match=r"x\.csv, line 344: the row is longer than .* is a quote not closed\?"):
        list(read_records(str(tmp_path / "x.csv")))
