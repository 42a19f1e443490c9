"""Isotropy of embeddings whose isotropy is known."""

import numpy as np
import pytest

from fastflow.evaluation.isotropy import is_worse, isoscore, mean_cosine, measure, singular_values


def normal(rows=4000, dim=12, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dim))


def test_isoscore_of_isotropic_vectors_is_one():
    assert isoscore(normal(40_000)) == pytest.approx(1, abs=5e-3)
    assert isoscore(normal(40_000) + 100) == pytest.approx(1, abs=5e-3)  # it does not see the mean
    corners = np.vstack([np.eye(5), -np.eye(5)])
    assert isoscore(corners) == pytest.approx(1, abs=1e-12)


def test_isoscore_of_one_axis_is_zero():
    x = np.zeros((100, 12))
    x[:, 4] = np.random.default_rng(0).normal(size=100)
    assert isoscore(x) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("used", [2, 4, 8])
def test_isoscore_counts_the_dimensions_used_evenly(used):
    """k of n dimensions used evenly score (k - 1)/(n - 1), up to the covariance's rounding (section 4)."""
    corners = np.vstack([np.eye(used), -np.eye(used)])
    x = np.hstack([corners, np.zeros((2 * used, 12 - used))])
    assert isoscore(x) == pytest.approx((used - 1) / 11, abs=1e-12)
    rotation = np.linalg.qr(normal(12))[0]
    assert isoscore(x @ rotation) == pytest.approx((used - 1) / 11, abs=1e-12)


def test_isoscore_of_one_dimension():
    assert isoscore(normal(50, 1)) == 1.0


def test_mean_cosine():
    assert mean_cosine(normal()) == pytest.approx(0, abs=0.02)
    assert mean_cosine(np.ones((5, 3)) * np.arange(1, 6)[:, None]) == pytest.approx(1)
    assert mean_cosine(normal() + 3) == pytest.approx(9 / 10, abs=0.02)  # |mean|^2 / (|mean|^2 + variance)
    pair = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert mean_cosine(pair) == pytest.approx(-1)  # a row is never paired with itself
    assert mean_cosine(normal()) == mean_cosine(normal())


@pytest.mark.parametrize("rows", [3, 12, 500])
def test_singular_values_are_those_of_numpy(rows):
    x = normal(rows) + 1
    expected = np.zeros(12)
    expected[: min(rows, 12)] = np.linalg.svd(x / np.sqrt(rows), compute_uv=False)
    assert np.abs(singular_values(x) - expected).max() <= 1e-7  # squared and rooted: half the digits near zero
    assert np.abs(singular_values(x) - expected)[: min(rows, 12)].max() <= 1e-12 * expected.max() * 100


def test_measure():
    x = normal() * np.array([10] + [1] * 11)
    found = measure(x)
    assert list(found) == ["mean_cosine", "isoscore", "top_share"]
    assert found["top_share"] == pytest.approx(100 / 111, abs=0.01)
    assert found["isoscore"] < measure(normal())["isoscore"]


@pytest.mark.parametrize(
    ("isotropy", "cosine", "worse"),
    [(0.5, 0.2, False), (0.9, 0.0, False), (0.3, 0.2, True), (0.5, 0.4, True), (0.5, -0.4, True), (0.495, 0.205, False),
     (float("nan"), 0.0, True), (0.9, float("nan"), True)],
)  # fmt: skip
def test_worse_is_less_even_or_more_alike(isotropy, cosine, worse):
    before = {"isoscore": 0.5, "mean_cosine": 0.2}
    assert is_worse(before, {"isoscore": isotropy, "mean_cosine": cosine}) == worse
    assert is_worse(before, {"isoscore": isotropy, "mean_cosine": cosine}, mean_kept=True) == (not isotropy >= 0.49)
