"""The work of a batch: products counted by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from fastflow.bench.measure.subject import BYTES, Subject

from support.packed import random_encoder


@pytest.fixture
def subject():
    _, shape = random_encoder(0, 2, 8, 2, 20)
    return Subject("x", None, Path("e"), (1, 2), 64, shape, Path("f"))


def test_matrices_are_four_squares_and_two_rectangles_a_layer(subject):
    assert subject.depth == 2
    assert subject.matrix_weights() == 2 * (4 * 8 * 8 + 2 * 8 * 20)


def test_a_gate_is_one_more_rectangle(subject):
    gated = replace(subject, shape=subject.shape._replace(gated=True))
    assert gated.matrix_weights() == 2 * (4 * 8 * 8 + 3 * 8 * 20)


def test_a_pass_multiplies_every_weight_by_every_token_and_every_token_by_every_other(subject):
    for batch, tokens in ((1, 1), (3, 5)):
        products = batch * tokens * subject.matrix_weights()
        attention = batch * 2 * (tokens * tokens * 8) * subject.depth  # scores, and their weighted sums
        assert subject.flop(batch, tokens) == 2 * (products + attention)


def test_weights_of_tokens_are_no_part_of_what_a_subject_is(subject):
    assert replace(subject, weights=[1.0]) == subject
    assert "weights" not in repr(replace(subject, weights=[1.0]))


def test_every_dtype_has_its_bytes():
    assert BYTES["float32"] == 2 * BYTES["bfloat16"] == 4 * BYTES["int8"]
