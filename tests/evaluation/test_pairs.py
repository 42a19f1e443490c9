"""Average precision of labelled pairs, and their file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from fastflow.errors import FastflowError
from fastflow.evaluation.evaluate import measure
from fastflow.evaluation.pairs import average_precision, read_labelled_pairs

from support.tasks import write

HEADER = "split\tlabel\tsentence1\tsentence2"


def test_average_precision_by_hand():
    # ranks of the positive pairs 1, 3 and 4: (1/1 + 2/3 + 3/4) / 3
    positive, similarity = np.array([True, False, True, True, False]), np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    assert average_precision(positive, similarity).value == pytest.approx(100 * (1 + 2 / 3 + 3 / 4) / 3)
    # a tie of one positive and one negative pair is one step, whatever their order
    assert average_precision(np.array([True, False]), np.array([0.5, 0.5])).value == 50


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_average_precision_of_a_draw_is_scikit_learns(rows):
    positive, counts = np.array([row[0] for row in rows]), np.array([row[2] for row in rows])
    similarity = np.array([float(row[1]) for row in rows])
    assume(counts[positive].sum())
    want = average_precision_score(np.repeat(positive, counts), np.repeat(similarity, counts))
    assert average_precision(positive, similarity).at(counts) == pytest.approx(100 * want)


def test_a_draw_without_a_positive_pair_is_undefined():
    assert np.isnan(average_precision(np.array([True, False]), np.array([0.1, 0.2])).at(np.array([0, 2])))


@pytest.mark.parametrize(("header", "votes"), [(HEADER, ""), ("split\tlabel\tvotes\tsentence1\tsentence2", "(2, 3)\t")])
def test_pairs_are_read_and_measured(tmp_path, header, votes):
    lines = [f"train\t1\t{votes}a\tb", f"val\t0\t{votes}a\tc"]
    pairs = read_labelled_pairs(write(tmp_path / "x.tsv", header, *lines))
    assert (pairs.name, pairs.texts, pairs.positive.tolist()) == ("x", ["a", "b", "c"], [True, False])
    assert measure(pairs, np.array([[1.0, 0], [1, 1], [0, 1]])) == {"ap": 100}
    assert measure(pairs, np.array([[1.0, 0], [0, 1], [1, 1]])) == {"ap": 50}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["s\t1\ta\tb", "s\t0\ta"], "line 3: must be split, label, sentence1, sentence2, with label 0 or 1"),
        (["s\tyes\ta\tb"], "line 2: must be"),
        (["s\t1\ta\tb"], "holds 1 pairs of label 1 and 0 of label 0; average precision needs both"),
        ([], "holds 0 pairs of label 1 and 0 of label 0"),
    ],
)
def test_malformed_pairs_name_file_and_line(tmp_path, lines, message):
    with pytest.raises(FastflowError, match=message) as caught:
        read_labelled_pairs(write(tmp_path / "x.tsv", HEADER, *lines))
    assert str(caught.value).startswith(str(tmp_path / "x.tsv"))
