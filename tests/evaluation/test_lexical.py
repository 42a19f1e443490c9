"""The analyses of a report, against values worked out by hand, by brute force or by SciPy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.evaluation.evaluate import Pairs
from fastflow.evaluation.lexical import SMALL, bias, distances, levenshtein

words = st.lists(st.sampled_from("abc"), max_size=6).map(tuple)


@cache
def by_definition(a: tuple, b: tuple) -> int:
    if not a or not b:
        return len(a) + len(b)
    change = by_definition(a[1:], b[1:]) + (a[0] != b[0])
    return min(by_definition(a[1:], b) + 1, by_definition(a, b[1:]) + 1, change)


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(words, words)
def test_levenshtein_is_its_definition(a, b):
    assert levenshtein(a, b) == by_definition(a, b)


def made(first: list[str], second: list[str], scores: list[float]) -> Pairs:
    return Pairs("x", ["s"] * len(first), np.array(scores), first, second)


def test_edit_distance_counts_lower_cased_words_and_marks():
    pairs = made(["A dog runs.", "Yes", "it's red"], ["a cat runs", "yes", "It is red"], [1, 2, 3])
    # dog/cat and the full stop; case aside the same; it ' s red -> it is red: one deletion, one substitution
    assert distances(pairs).tolist() == [2, 0, 2]


def test_bias_is_spearman_of_distance_and_cosine_and_of_gold_among_the_close():
    rng = np.random.default_rng(0)
    edits, cosines, gold = rng.integers(0, 9, 60), rng.normal(size=60), rng.normal(size=60)
    found, close = bias(made(["a"] * 60, ["b"] * 60, gold), edits, cosines), edits <= SMALL
    assert abs(found["edit"] - 100 * scipy.stats.spearmanr(edits, cosines).statistic) <= 1e-10
    assert abs(found["small_gold"] - 100 * scipy.stats.spearmanr(cosines[close], gold[close]).statistic) <= 1e-10
    assert found["small_pairs"] == close.sum()


def test_bias_without_close_pairs_is_not_a_number():
    assert np.isnan(bias(made(["a"] * 3, ["b"] * 3, [1, 2, 3]), np.array([7, 8, 9]), np.arange(3.0))["small_gold"])
