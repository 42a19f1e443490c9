"""The tokens of a text for a person to read: ids, pieces and places, uncut."""

from __future__ import annotations

import pytest

from fastflow.errors import FastflowError
from fastflow.model.tokens import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(bert):
    return Tokenizer(bert, 8)


def test_ids_are_those_that_are_computed(tokenizer):
    (pieces,) = tokenizer.describe(["the dog sees"])
    assert [piece.id for piece in pieces] == tokenizer(["the dog sees"]).ids.tolist()
    assert [piece.text for piece in pieces] == ["[CLS]", "the", "dog", "sees", "[SEP]"]
    assert [piece.special for piece in pieces] == [True, False, False, False, True]
    assert [(piece.start, piece.stop) for piece in pieces[1:-1]] == [(0, 3), (4, 7), (8, 12)]


def test_nothing_is_cut_and_the_tokenizer_cuts_as_before(tokenizer):
    text = "the dog " * 20
    assert len(tokenizer.describe([text])[0]) == 42
    assert len(tokenizer([text]).ids) == 8


def test_without_special_tokens(tokenizer):
    assert [piece.text for piece in tokenizer.describe(["the dog"], special=False)[0]] == ["the", "dog"]


def test_a_text_without_a_utf8_form_is_refused(tokenizer):
    with pytest.raises(FastflowError, match="surrogate"):
        tokenizer.describe(["\ud800"])
