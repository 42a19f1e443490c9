"""The regression against NumPy's solvers in float64, on problems small enough to write down."""

import numpy as np
import pytest
import scipy.sparse as sparse

from fastflow.train.distil import ridge
from fastflow.train.distil.sums import Sums

TOKENS, DIM = 40, 70  # more columns than are solved together


def problem(count=300, dead=()):
    """Bags (n, V), of which tokens 35 on are in none, and targets (n, D)."""
    rng = np.random.default_rng(0)
    x = rng.random((count, TOKENS)) * (rng.random((count, TOKENS)) < 0.15)
    x[:, 35:] = 0
    x[:, 0] += 0.01
    x /= x.sum(axis=1, keepdims=True)
    y = (x @ rng.normal(size=(TOKENS, DIM)) + 0.1 * rng.normal(size=(count, DIM)) + 0.3).astype(np.float32)
    y[:, list(dead)] = 0.25
    return x, y


def sums_of(x, y):
    return Sums.of(sparse.csr_array(x), y)


@pytest.mark.parametrize("penalty", [5.0, 0.05, 0.0015])
def test_it_is_the_least_squares_solution_about_the_prior(penalty):
    x, y = problem()
    start = np.random.default_rng(1).normal(size=(TOKENS, DIM))
    sums, wide = sums_of(x, y), y.astype(np.float64)
    found = start + ridge.solve(sums, ridge.compute_right_side(sums, start), penalty, tolerance=1e-5)
    rows = np.vstack([x, np.sqrt(penalty) * np.eye(TOKENS)])
    values = np.vstack([wide - wide.mean(axis=0), np.sqrt(penalty) * start])
    want = np.linalg.lstsq(rows, values, rcond=None)[0]
    np.testing.assert_allclose(found, want, atol=2e-4 * np.abs(want).max())


def test_every_column_reaches_the_tolerance():
    x, y = problem()
    sums = sums_of(x, y)
    right = sums.centre()
    found = ridge.solve(sums, right, 0.01, tolerance=1e-5)
    want = np.linalg.solve(x.T @ x + 0.01 * np.eye(TOKENS), right)
    np.testing.assert_allclose(found, want, atol=1e-4 * np.abs(want).max())
    again = ridge.solve(sums, right, 0.01, start=want.astype(np.float32), tolerance=1e-5)
    assert np.array_equal(again, want.astype(np.float32))  # a solution takes no step


def test_a_start_leads_to_the_same_solution():
    x, y = problem()
    sums = sums_of(x, y)
    right, far = sums.centre(), np.random.default_rng(2).normal(size=(TOKENS, DIM)).astype(np.float32)
    found = ridge.solve(sums, right, 0.05, far, tolerance=1e-5)
    np.testing.assert_allclose(found, ridge.solve(sums, right, 0.05, tolerance=1e-5), atol=1e-3)


def test_columns_that_never_vary_stay_at_zero():
    x, y = problem(dead=[3, 69])
    sums = sums_of(x, y)
    right = sums.centre()
    right[:, [3, 69]] = 0  # in exact arithmetic
    found = ridge.solve(sums, right, 0.05)
    assert np.isfinite(found).all()
    assert not found[:, [3, 69]].any()
    assert found[:35].any()


def test_a_token_of_no_sentence_keeps_its_prior():
    x, y = problem()
    sums, start = sums_of(x, y), np.random.default_rng(1).normal(size=(TOKENS, DIM))
    moved = ridge.solve(sums, ridge.compute_right_side(sums, start), 0.05)
    assert not moved[35:].any()
    assert moved[:35].any(axis=1).all()


def features(alone, counts, rares):
    """The copies that the map mixes: centred, special tokens zero, rare ones in full."""
    usable = alone.any(axis=1)
    centred = (alone - alone[usable].mean(axis=0, dtype=np.float64)) * usable[:, None]
    return np.hstack([centred * (a / (a + counts / counts.sum()))[:, None] for a in rares])


def test_the_prior_is_a_map_of_the_tokens_alone():
    x, y = problem(count=4000)
    sums, alone = sums_of(x, y), np.random.default_rng(3).normal(size=(TOKENS, DIM)).astype(np.float32)
    alone[7] = 0  # a special token
    counts = np.arange(TOKENS)
    copies, centred = features(alone, counts, ridge.RARE), y - y.mean(axis=0, dtype=np.float64)
    prior = ridge.Prior(alone, counts, sums, uniform=True)
    best = np.linalg.lstsq(x @ copies, centred, rcond=None)[0]
    loss = [np.square(centred - x @ table).sum() for table in (prior(1e-9), copies @ best)]
    assert loss[0] == pytest.approx(loss[1], rel=1e-3)
    assert not prior(1e-4)[7].any()


def test_a_firm_prior_is_scaled_alone():
    x, y = problem()
    sums, alone = sums_of(x, y), np.random.default_rng(3).normal(size=(TOKENS, DIM)).astype(np.float32)
    counts = np.arange(TOKENS)
    first, centred = features(alone, counts, ridge.RARE[:1]), y - y.mean(axis=0, dtype=np.float64)
    made = x @ first
    scale = (centred * made).sum() / (made * made).sum()
    found = ridge.Prior(alone, counts, sums, uniform=True)(1e9)
    np.testing.assert_allclose(found, scale * first, rtol=1e-5, atol=1e-6)
    assert scale != pytest.approx(1, rel=0.1)
    plain = ridge.Prior(alone, counts, sums, uniform=False)(1e9)
    assert np.linalg.matrix_rank(np.vstack([plain[0], alone[0] - alone.mean(axis=0)]), tol=1e-4) == 1


def test_the_principal_directions_are_those_of_the_sentences():
    x, y = problem()
    table = np.random.default_rng(4).normal(size=(TOKENS, 6)) * [1, 5, 2, 0.1, 3, 0.5]
    found = ridge.find_principal(sums_of(x, y), table, 3)
    values, vectors = np.linalg.eigh(np.cov((x @ table).T))
    assert found.shape == (6, 3)
    np.testing.assert_allclose(np.abs(np.sum(found * vectors[:, ::-1][:, :3], axis=0)), 1, atol=1e-6)
    assert values[-1] > 2 * values[-4]
