"""Which field of a file is the text: by name, by being the only one, or the one asked for."""

import pytest

from fastflow.files.read.records import Layout, known_fields, listed, text_fields


@pytest.mark.parametrize(
    ("names", "field", "chosen"),
    [
        (["id", "text"], None, ("text",)),
        (["sentence", "id"], None, ("sentence",)),
        (["sentence", "text"], None, ("text",)),
        (["id", "sentence2", "sentence1"], None, ("sentence1", "sentence2")),
        (["body"], None, ("body",)),
        (["sentence1", "sentence2", "body"], "body", ("body",)),
        (["text", "body"], "body", ("body",)),
    ],
)
def test_the_text_is_found(names, field, chosen):
    assert text_fields(names, "in.csv", 1, field) == chosen


def test_one_name_alone_is_no_known_field():
    assert known_fields(["body"]) == ()
    assert known_fields([]) == ()


def test_a_message_holds_no_endless_list():
    said = listed(["x" * 99, *(f"c{i}" for i in range(30))])
    assert said.startswith("x" * 39 + "…, c0, c1")
    assert said.endswith("c18, …")
    assert len(said) < 200
    assert listed(["a\nb", "é c", "\x1b[1m"]) == "a\\nb, é c, \\x1b[1m"


def test_a_layout_takes_everything_as_it_is_unless_told():
    assert Layout() == Layout(None, None, None, "strict", None, True)
