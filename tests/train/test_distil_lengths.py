"""Bags are divided by the lengths that a first table gives their vectors."""

import numpy as np
import scipy.sparse as sparse

from fastflow.train.distil.lengths import LIMIT, Lengths, fit_lengths


def drawn(count=400):
    rng = np.random.default_rng(0)
    x = rng.random((count, 30)) * (rng.random((count, 30)) < 0.2)
    x[:, 0] += 0.01
    return sparse.csr_array(x / x.sum(axis=1, keepdims=True)), rng.normal(size=(30, 8))


def test_vectors_become_of_one_length():
    x, truth = drawn()
    y = x @ truth
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    found = fit_lengths(truth.astype(np.float32), np.ones(30, np.int64), x, y.astype(np.float32))
    made = np.linalg.norm(x @ found.table, axis=1)
    assert abs(made.mean() - 1) < 1e-5
    divided = np.linalg.norm(found.divide(x) @ found.table, axis=1)
    assert made.std() > 0.2
    np.testing.assert_allclose(divided, 1, rtol=1e-5)


def test_a_factor_has_a_limit_and_an_empty_bag_stays():
    x = sparse.csr_array(np.eye(3) * [[0.0], [1.0], [1.0]])
    divided = Lengths(np.array([[1.0], [1e-6], [1e6]], np.float32)).divide(x)
    np.testing.assert_allclose(divided.toarray(), np.diag([0, LIMIT, 1 / LIMIT]))
