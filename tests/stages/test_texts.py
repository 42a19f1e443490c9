"""The texts of encode: once, in an order, and nothing but str."""

import numpy as np
import pytest

from fastflow.errors import FastflowError, UsageError
from fastflow.stages.texts import check_text, in_order, one_of


def test_texts_are_given_once_under_either_name():
    assert one_of(["a"], None) == one_of(None, ["a"]) == ["a"]
    assert one_of([], None) == []
    for given in ((None, None), (["a"], ["b"])):
        with pytest.raises(UsageError, match="takes the texts once"):
            one_of(*given)


def test_anything_with_an_order_is_taken_in_it():
    for texts in (["b", "a"], ("b", "a"), iter(["b", "a"]), np.array(["b", "a"])):
        assert list(in_order(texts)) == ["b", "a"]


@pytest.mark.parametrize("texts", ["a", b"a", {"a"}, {"a": 1}, np.zeros((2, 2)), 7, None])
def test_an_argument_without_an_order_is_refused(texts):
    with pytest.raises(UsageError, match=f"not as {type(texts).__name__}; pooled vectors go to transform"):
        in_order(texts)


def test_a_text_that_is_none_is_named_by_its_place():
    assert check_text("", 3) == ""
    with pytest.raises(FastflowError, match="text 3 is float, not str"):
        check_text(1.5, 3)
