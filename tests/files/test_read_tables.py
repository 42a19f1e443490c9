"""csv and tsv: the delimiter, the header, repeated columns; whatever can be read in two ways is refused."""

from __future__ import annotations

import pytest

from fastflow.errors import UsageError
from fastflow.files.read.records import Layout
from fastflow.files.read.texts import read_records
from fastflow.files.run import check_delimiter


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


def test_a_repeated_column_that_is_not_used_does_no_harm(tmp_path):
    assert texts(tmp_path, "text,,\na dog,1,2\n") == ["a dog"]


@pytest.mark.parametrize(("given", "want"), [(None, None), (";", ";"), ("\\t", "\t"), ("tab", "\t"), ("\t", "\t")])
def test_delimiters(given, want):
    assert check_delimiter(given) == want


@pytest.mark.parametrize("given", ["", ";;", '"', "\n", "\r"])
def test_what_is_no_delimiter(given):
    with pytest.raises(UsageError, match="must be one character"):
        check_delimiter(given)


def test_columns_without_a_header_are_numbered(tmp_path):
    content = "k1;the dog\nk2;a cat\n"
    assert texts(tmp_path, content, header=False, field="2") == ["the dog", "a cat"]
    found = list(read_records(str(tmp_path / "x.csv"), Layout(header=False, field="2", id_field="1")))
    assert [(record.id, record.line) for record in found] == [("k1", 1), ("k2", 2)]


def test_a_single_column_is_a_table_if_the_options_say_so(tmp_path):
    assert texts(tmp_path, "the dog runs\na cat\n", name="x.tsv", header=False) == ["the dog runs", "a cat"]
    assert texts(tmp_path, "body\na cat\n", name="x.tsv", field="body") == ["a cat"]
