"""Names of methods and what they stand for."""

import pytest

from fastflow.errors import UsageError
from fastflow.train.methods.names import Method, parse_method


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("none", []),
        ("flow", [Method("flow")]),
        ("whiten:128,flow", [Method("whiten", 128), Method("flow")]),
        ("standardize, nullspace:3", [Method("standardize"), Method("nullspace", 3)]),
        ("nullspace", [Method("nullspace")]),
        ("components:2,whiten", [Method("components", 2), Method("whiten")]),
    ],
)
def test_methods(text, links):
    assert parse_method(text) == parse_method(text.replace(",", "+")) == links


@pytest.mark.parametrize("text", ["", "pca", "flow:3", "standardize:2", "whiten:", "whiten:-1", "flow,", "none,flow"])
def test_unknown_methods_are_wrong_usage(text):
    with pytest.raises(UsageError, match=r"unknown method '.*'; use flow, whiten\[:K\]"):
        parse_method(text)
