"""The fields of a request: whatever is wrong is one sentence that names the field."""

from __future__ import annotations

import pytest

from fastflow.serve.fields import Fields, parse
from fastflow.serve.refusals import Refused


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'{"a": NaN}', b"[Infinity]", b"[" * 100_000, b'{"a": 1e}', b"1" * 5000]
)
def test_what_is_no_json_is_refused(body):
    with pytest.raises(Refused) as refused:
        parse(body)
    assert refused.value.kind == "malformed"


def test_a_field_that_is_not_known_is_named():
    with pytest.raises(Refused, match=r"x\.colour is no field of this request; known are a, b"):
        Fields({"a": 1, "colour": 2}, ("a", "b"), "x.")


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda f: f.flag("a", True), 1),
        (lambda f: f.flag("a", True), "true"),
        (lambda f: f.text("a"), 1),
        (lambda f: f.choice("a", ("x", "y")), "z"),
        (lambda f: f.choice("a", {"x": 1}), []),
        (lambda f: f.count("a"), 0),
        (lambda f: f.count("a"), True),
        (lambda f: f.count("a"), 1.5),
        (lambda f: f.texts("a", 3), {}),
        (lambda f: f.texts("a", 3), []),
        (lambda f: f.texts("a", 3), ["b"] * 4),
        (lambda f: f.texts("a", 3), ["b", 1]),
        (lambda f: f.texts("a", 3), ["b", None]),
        (lambda f: f.required("a"), None),
    ],
)
def test_a_wrong_value_names_its_field(read, value):
    with pytest.raises(Refused) as refused:
        read(Fields({"a": value}, ("a",), "in."))
    assert refused.value.param.startswith("in.a")
    assert refused.value.message.startswith("in.a")


def test_absent_and_null_are_the_default():
    for fields in (Fields({}, ("a",)), Fields({"a": None}, ("a",))):
        assert fields.flag("a", True) is True
        assert fields.text("a") is fields.count("a") is None
        assert fields.choice("a", ("x", "y"), "y") == "y"


def test_texts_say_whether_they_were_a_list():
    assert Fields({"a": "b"}, ("a",)).texts("a", 1) == (["b"], False)
    assert Fields({"a": ["b"]}, ("a",)).texts("a", 1) == (["b"], True)


def test_a_long_value_is_shown_in_short():
    with pytest.raises(Refused) as refused:
        Fields({"a": "x" * 10_000}, ("a",)).flag("a", True)
    assert len(refused.value.message) < 200
