"""Batches of several requests: every text gets its own vector, and a failing one fails alone."""

from __future__ import annotations

import numpy as np

from fastflow.model.tokenizer.encode import Tokens
from fastflow.serve.batch import How, Part, compute, join_tokens, take_texts


def make_tokens(*lengths: int, first: int = 0, cut: tuple[int, ...] = (), skip: int = 0) -> Tokens:
    """Texts of these lengths, whose ids count from ``first``."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.arange(first, first + int(offsets[-1]), dtype=np.int32)
    return Tokens(ids, offsets, np.array(cut, np.int64), skip)


class Sums:
    """The vector of a text is the sum of its ids, and how it was asked for; 13 is unlucky."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def embed(self, tokens, how):
        self.calls.append(len(tokens.offsets) - 1)
        if 13 in tokens.ids:
            raise ValueError("13")
        rows = [tokens.ids[a:b].sum() for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]
        return np.array([[row, how.normalize, tokens.skip] for row in rows], np.float32)


def test_parts_are_computed_together_and_given_back():
    model = Sums()
    a, b = compute(model, [Part(make_tokens(2, 1), How()), Part(make_tokens(3, first=20), How(prompt="p: "))])
    assert a[:, 0].tolist() == [1, 2]
    assert b[:, 0].tolist() == [63]
    assert model.calls == [3]


def test_parts_that_are_made_in_another_way_are_computed_apart():
    model = Sums()
    parts = [
        Part(make_tokens(1, first=1), How()),
        Part(make_tokens(1, first=2), How(normalize=False)),
        Part(make_tokens(1, first=3, skip=4), How()),
        Part(make_tokens(1, first=4), How(dim=2)),
        Part(make_tokens(1, first=5), How()),
    ]
    found = compute(model, parts)
    assert [z[0].tolist() for z in found] == [[1, 1, 0], [2, 0, 0], [3, 1, 4], [4, 1, 0], [5, 1, 0]]
    assert model.calls == [2, 1, 1, 1]


def test_a_part_that_fails_fails_alone():
    parts = [Part(make_tokens(1, first=i), How()) for i in (12, 13, 14)]
    good, bad, other = compute(Sums(), parts)
    assert isinstance(bad, ValueError)
    assert (good[0, 0], other[0, 0]) == (12, 14)


def test_joined_is_the_texts_in_order_with_those_that_were_cut():
    both = join_tokens([make_tokens(2, 1, cut=(1,)), make_tokens(1, 3, first=10, cut=(0,))])
    assert both.ids.tolist() == [0, 1, 2, 10, 11, 12, 13]
    assert both.offsets.tolist() == [0, 2, 3, 4, 7]
    assert both.cut.tolist() == [1, 2]


def test_some_are_the_texts_between():
    found = take_texts(make_tokens(2, 1, 3, 2, skip=1), 1, 3)
    assert (found.ids.tolist(), found.offsets.tolist(), found.skip) == ([2, 3, 4, 5], [0, 1, 4], 1)
