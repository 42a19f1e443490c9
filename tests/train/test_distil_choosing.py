"""The penalty is the one that follows the teacher best on held-out sentences."""

import numpy as np
import pytest
import scipy.sparse as sparse

from fastflow.train.distil import ridge
from fastflow.train.distil.choosing import FIRMNESS, PENALTIES, Held, choose_prior, climb, fit_table
from fastflow.train.distil.sums import Sums
from fastflow.train.distil.teacher import measure_following
from fastflow.train.progress import SILENT, Voice


@pytest.mark.parametrize("peak", range(6))
@pytest.mark.parametrize("at", [0, 3, 5])
def test_climbing_finds_the_top(peak, at):
    asked = []

    def height(place):
        asked.append(place)
        return -abs(place - peak)

    assert climb(height, at, 6) == peak
    assert min(asked, default=0) >= 0
    assert max(asked, default=0) < 6


def few(noise):
    """Sums of few noisy sentences, and held-out ones without noise."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(30, 8))
    x, h = (rng.random((n, 30)) * (rng.random((n, 30)) < 0.2) + 1e-3 for n in (60, 200))
    x, h = (a / a.sum(axis=1, keepdims=True) for a in (x, h))
    y = (x @ truth + noise * rng.normal(size=(60, 8))).astype(np.float32)
    return Sums.of(sparse.csr_array(x), y), Held(sparse.csr_array(h), (h @ truth).astype(np.float32), lambda z: z)


def test_noise_wants_a_larger_penalty():
    penalties = []
    for noise in (0.01, 1.0):
        sums, held = few(noise)
        table = fit_table("vectors", sums, np.zeros((30, 8)), held, None, SILENT)
        penalties.append(table.penalty)
        best = max(PENALTIES, key=lambda p: held.measure(ridge.solve(sums, sums.centre(), p) + sums.mean))
        assert PENALTIES.index(table.penalty) == pytest.approx(PENALTIES.index(best), abs=1)
        assert table.cosine == pytest.approx(held.measure(table.vectors))
    assert penalties[0] < penalties[1]


def test_a_named_penalty_is_taken():
    sums, held = few(0.1)
    table = fit_table("vectors", sums, np.zeros((30, 8)), held, 0.7, SILENT)
    assert (table.penalty, table.tried) == (0.7, {})
    np.testing.assert_allclose(
        table.vectors, ridge.solve(sums, sums.centre(), 0.7, tolerance=1e-5) + sums.mean, atol=2e-3
    )


def test_a_prior_that_is_right_is_kept():
    sums, held = few(0.0)
    exact = np.linalg.lstsq(sums.multiply(np.eye(30)), sums.centre(), rcond=None)[0]
    table = fit_table("vectors", sums, exact, held, 5.0, SILENT)
    assert table.prior > 0.98
    assert table.penalty == 5.0
    np.testing.assert_allclose(table.vectors, exact + sums.mean, atol=1e-3)


def test_a_prior_that_follows_better_is_kept():
    said, (sums, held) = [], few(3.0)
    truth = np.linalg.lstsq(held.bags.toarray(), held.vectors, rcond=None)[0]
    table = fit_table("vectors", sums, truth - sums.mean, held, None, Voice(said.append, bars=False))
    assert table.penalty is None
    assert table.cosine == table.prior == pytest.approx(1)
    assert table.prior > max(table.tried.values()) + 0.001
    np.testing.assert_array_equal(table.vectors, truth - sums.mean + sums.mean)
    assert said[-1] == f"table of the vectors: kept the prior, held-out cosine {table.prior:.4f}"
    assert fit_table("vectors", sums, truth - sums.mean, held, 0.05, SILENT).penalty == 0.05


def test_the_firmness_of_the_prior_is_the_one_that_follows_best():
    sums, held = few(0.1)
    prior = ridge.Prior(np.random.default_rng(5).normal(size=(30, 8)).astype(np.float32), np.ones(30), sums, True)
    found = choose_prior(prior, sums, held)
    cosines = [held.measure(prior(firmness) + sums.mean) for firmness in FIRMNESS]
    assert held.measure(found + sums.mean) == max(cosines) > min(cosines) + 0.01


def test_following():
    a = np.array([[1.0, 0], [0, 2]])
    assert measure_following(a, 3 * a) == pytest.approx(1)
    assert measure_following(a, a[::-1]) == pytest.approx(0)
    assert measure_following(a, np.array([[1.0, 0], [0, -1]])) == pytest.approx(0)
