"""The analyses of the paper, against values worked out by hand, by brute force or by SciPy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fastflow.evaluation import analyses

numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6))  # integers make ties
samples = arrays.arrays(np.float64, st.shared(st.integers(2, 40), key="n"), elements=numbers)
words = st.lists(st.sampled_from("abc"), max_size=6).map(tuple)


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(samples, samples)
def test_spearman_is_scipys(a, b):
    assume(np.ptp(a) > 0 and np.ptp(b) > 0)
    assert np.array_equal(analyses.ranks(a), scipy.stats.rankdata(a))
    assert abs(analyses.spearman(a, b) - scipy.stats.spearmanr(a, b).statistic) <= 1e-12


def test_spearman_of_a_constant_is_not_a_number():
    assert np.isnan(analyses.spearman(np.ones(4), np.arange(4)))
    assert analyses.spearman(np.arange(5), np.arange(5) ** 3) == 1
    assert analyses.spearman(np.arange(5), -np.arange(5)) == -1


# ---- intervals


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=30))
def test_auc_is_the_share_of_pairs_ranked_right(rows):
    positive, scores = np.array([r[0] for r in rows]), np.array([float(r[1]) for r in rows])
    good, bad = scores[positive], scores[~positive]
    found = analyses.auc_of(positive, scores).value
    if not len(good) or not len(bad):
        assert np.isnan(found)
        return
    wins = (good[:, None] > bad).mean() + (good[:, None] == bad).mean() / 2
    assert found == pytest.approx(100 * wins, abs=1e-10)


def test_an_interval_is_around_its_value():
    rng = np.random.default_rng(0)
    values = rng.random(400)
    found = analyses.mean_of(values)
    low, high = found.interval()
    assert found.value == pytest.approx(100 * values.mean())
    half = 1.96 * 100 * values.std() / np.sqrt(len(values))  # of a normal mean
    assert [low, high] == pytest.approx([found.value - half, found.value + half], abs=half / 8)
    assert found.interval() == (low, high) != found.interval(seed=1)
    repeats = analyses.Measure(50, lambda counts: 40 + (counts > 1).sum())  # every draw has repeated texts
    low, high = repeats.interval()
    assert low < repeats.value == 40 < high
    auc = analyses.auc_of(rng.random(200) < 0.4, rng.integers(0, 9, 200) / 8)
    assert auc.interval()[0] < auc.value < auc.interval()[1]
    assert np.isnan(analyses.Measure(3, lambda counts: float("nan")).interval()).all()


@pytest.mark.parametrize(("right", "ends"), [(0.0, (0, 27.75)), (1.0, (72.25, 100))])
def test_the_interval_of_an_accuracy_of_0_or_100_is_wilsons(right, ends):
    assert analyses.mean_of(np.full(10, right)).interval() == pytest.approx(ends, abs=0.01)


def test_draws_of_a_rank_correlation_are_about_its_value():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    y = x + rng.normal(size=400)
    value, groups = 100 * analyses.spearman(x, y), [(analyses.ranks(x[:n]), analyses.ranks(y[:n])) for n in (400, 40)]
    low, high = analyses.interval_of(analyses.spearman_draws(groups[:1]), value)
    assert low < value < high
    standard_error = 100 * (1 - (value / 100) ** 2) / np.sqrt(400)  # of a correlation of normal numbers
    assert 3 * standard_error < high - low < 5 * standard_error
    assert np.array_equal(analyses.spearman_draws(groups), analyses.spearman_draws(groups))
    assert np.isnan(analyses.spearman_draws([(analyses.ranks(np.ones(9)), analyses.ranks(x[:9]))])).all()


# ---- isotropy


def normal(rows=4000, dim=12):
    return np.random.default_rng(0).normal(size=(rows, dim))


@pytest.mark.parametrize("used", [1, 2, 4, 8, 12])
def test_isoscore_counts_the_dimensions_used_evenly(used):
    """k of n dimensions used evenly score (k - 1)/(n - 1), up to the covariance's rounding (section 4)."""
    corners = np.vstack([np.eye(used), -np.eye(used)])
    x = np.hstack([corners, np.zeros((2 * used, 12 - used))])
    for moved in (x, x @ np.linalg.qr(normal(12))[0], x + 100):
        assert analyses.isoscore(moved) == pytest.approx((used - 1) / 11, abs=1e-10)
    assert analyses.isoscore(normal(40_000)) == pytest.approx(1, abs=5e-3)
    assert analyses.isoscore(normal(50, 1)) == 1.0


def test_mean_cosine():
    assert analyses.mean_cosine(normal()) == analyses.mean_cosine(normal()) == pytest.approx(0, abs=0.02)
    assert analyses.mean_cosine(np.ones((5, 3)) * np.arange(1, 6)[:, None]) == pytest.approx(1)
    assert analyses.mean_cosine(normal() + 3) == pytest.approx(9 / 10, abs=0.02)  # |mean|^2 / (|mean|^2 + variance)
    assert analyses.mean_cosine(np.array([[1.0, 0.0], [-1.0, 0.0]])) == pytest.approx(-1)  # never a row with itself


@pytest.mark.parametrize("rows", [3, 12, 500])
def test_singular_values_are_numpys(rows):
    x = normal(rows) + 1
    expected = np.zeros(12)
    expected[: min(rows, 12)] = np.linalg.svd(x / np.sqrt(rows), compute_uv=False)
    off = np.abs(analyses.singular_values(x) - expected)
    assert off.max() <= 1e-7  # squared and rooted: half the digits near zero
    assert off[: min(rows, 12)].max() <= 1e-10 * expected.max()


def test_measure_isotropy():
    found = analyses.measure_isotropy(normal() * np.array([10] + [1] * 11))
    assert list(found) == ["mean_cosine", "isoscore", "top_share"]
    assert found["top_share"] == pytest.approx(100 / 111, abs=0.01)
    assert found["isoscore"] < analyses.measure_isotropy(normal())["isoscore"]


def test_less_isotropic_is_less_even_or_more_alike():
    before, nan = {"isoscore": 0.5, "mean_cosine": 0.2}, float("nan")
    for isotropy, cosine, worse in (
        (0.5, 0.2, False), (0.9, 0.0, False), (0.3, 0.2, True), (0.5, 0.4, True), (0.5, -0.4, True),
        (0.495, 0.205, False), (nan, 0.0, True), (0.9, nan, True),
    ):  # fmt: skip
        after = {"isoscore": isotropy, "mean_cosine": cosine}
        assert analyses.is_less_isotropic(before, after) == worse, after
        assert analyses.is_less_isotropic(before, after, mean_kept=True) == (not isotropy >= 0.49), after


# ---- edit distance


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
    assert analyses.levenshtein(a, b) == by_definition(a, b)


def test_edit_distance_counts_lower_cased_words_and_marks():
    # dog/cat and the full stop; case aside the same; it ' s red -> it is red: one deletion, one substitution
    found = analyses.edit_distances(["A dog runs.", "Yes", "it's red"], ["a cat runs", "yes", "It is red"])
    assert found.tolist() == [2, 0, 2]


def test_lexical_bias_is_spearman_of_distance_and_cosine_and_of_gold_among_the_close():
    rng = np.random.default_rng(0)
    edits, cosines, gold = rng.integers(0, 9, 60), rng.normal(size=60), rng.normal(size=60)
    found, close = analyses.lexical_bias(edits, cosines, gold), edits <= analyses.SMALL
    assert abs(found["edit"] - 100 * scipy.stats.spearmanr(edits, cosines).statistic) <= 1e-10
    assert abs(found["small_gold"] - 100 * scipy.stats.spearmanr(cosines[close], gold[close]).statistic) <= 1e-10
    assert found["small_pairs"] == close.sum()
    assert np.isnan(analyses.lexical_bias(edits + analyses.SMALL + 1, cosines, gold)["small_gold"])


# ---- word frequency


def test_the_nearest_words_are_brute_force():
    table, rows = np.random.default_rng(1).normal(size=(300, 7)).astype(np.float32), np.arange(300)
    distance, dot = analyses.find_nearest(table, rows, 5)
    every = np.linalg.norm(table[:, None].astype(np.float64) - table[None], axis=2)
    np.fill_diagonal(every, np.inf)
    order = np.argsort(every, axis=1)[:, :5]
    assert np.abs(distance - np.take_along_axis(every, order, 1)).max() <= 1e-12
    assert np.abs(dot - np.take_along_axis(table.astype(np.float64) @ table.T, order, 1)).max() <= 1e-5


def test_word_bands():
    # by frequency: word 2 at 0, word 0 at 3, word 3 at 4; word 1 never occurs and is no neighbour
    (row,) = analyses.word_bands(np.array([[3.0], [0.1], [0.0], [4.0]]), np.array([5, 0, 9, 2]))
    assert (row["ranks"], row["words"], row["sampled"]) == ("0-100", 3, 3)
    assert abs(row["norm"] - 7 / 3) <= 1e-6
    assert row["l2"] == dict.fromkeys(analyses.NEIGHBOURS)  # there are two others, and the least k is three
    table = np.random.default_rng(3).normal(size=(700, 8)) * np.linspace(0.2, 2, 700)[:, None]
    bands = analyses.word_bands(table, np.arange(700, 0, -1), sample=50)
    assert [(b["words"], b["sampled"]) for b in bands] == [(100, 50), (400, 50), (200, 50)]
    assert all(b["l2"][3] <= b["l2"][5] <= b["l2"][7] for b in bands)
    first, second, third = bands
    assert first["norm"] < second["norm"] < third["norm"]
    assert first["l2"][3] < second["l2"][3] < third["l2"][3]
