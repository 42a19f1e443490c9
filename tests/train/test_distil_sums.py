"""The sums of shards add up to those of the corpus."""

import numpy as np
import scipy.sparse as sparse

from fastflow.train.distil.sums import COLUMNS, Sums


def drawn(count=120):
    rng = np.random.default_rng(0)
    x = rng.random((count, 12)) * (rng.random((count, 12)) < 0.3)
    return sparse.csr_array(x), rng.normal(size=(count, 5)).astype(np.float32)


def test_they_are_what_they_are_called():
    x, y = drawn()
    sums, dense = Sums.of(x, y), x.toarray()
    np.testing.assert_allclose(sums.multiply(np.eye(12)), dense.T @ dense, rtol=1e-5)
    np.testing.assert_allclose(sums.diagonal(), np.diag(dense.T @ dense), rtol=1e-5)
    np.testing.assert_allclose(sums.cross, dense.T @ y.astype(np.float64))
    np.testing.assert_allclose(sums.bag, dense.sum(axis=0), rtol=1e-6)
    ones = dense.sum(axis=1, keepdims=True)
    mean = np.linalg.lstsq(ones, y.astype(np.float64), rcond=None)[0]
    np.testing.assert_allclose(sums.mean, mean[0], rtol=1e-5)
    np.testing.assert_allclose(sums.centre(), dense.T @ (y - ones * mean), atol=1e-4)


def test_the_mean_of_bags_that_sum_to_one_is_that_of_the_targets():
    x, y = drawn()
    full = np.asarray(x.sum(axis=1)) > 0
    sums = Sums.of(sparse.diags_array(1 / np.maximum(x.sum(axis=1), 1e-9)) @ x, y)
    np.testing.assert_allclose(sums.mean, y[full].mean(axis=0, dtype=np.float64), rtol=1e-5)


def test_merged_shards_are_the_whole():
    x, y = drawn()
    whole, merged = Sums.of(x, y), Sums.of(x[:50], y[:50]).merge(Sums.of(x[50:51], y[50:51]))
    merged = merged.merge(Sums.of(x[51:], y[51:]))
    assert merged.count == whole.count == 120
    for name in ("cross", "bag"):
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(merged.multiply(np.eye(12)), whole.multiply(np.eye(12)), rtol=1e-6)


def test_a_shard_that_comes_late_counts():
    x, y = drawn()
    sums = Sums.of(x[:50], y[:50])
    sums.multiply(np.eye(12))
    sums.merge(Sums.of(x[50:], y[50:]))
    np.testing.assert_allclose(sums.multiply(np.eye(12)), (x.T @ x).toarray(), rtol=1e-5)


def test_many_columns_are_those_one_by_one():
    x, y = drawn()
    sums, table = Sums.of(x, y), np.random.default_rng(1).normal(size=(12, 2 * COLUMNS + 3))
    np.testing.assert_allclose(sums.multiply(table), (x.T @ x) @ table, atol=1e-4)


def test_arrays_give_the_same_bits_back():
    """Of every number that a table is made of: a sum over one piece is not, to the bit, that over two."""
    x, y = drawn(4000)
    sums = Sums.of(x[:1500], y[:1500]).merge(Sums.of(x[1500:1501], y[1500:1501])).merge(Sums.of(x[1501:], y[1501:]))
    again = Sums.read({name: array.copy() for name, array in sums.arrays().items()})
    assert again.count == sums.count
    for name in ("bag", "mean", "cross"):
        assert np.array_equal(getattr(again, name), getattr(sums, name)), name
    assert np.array_equal(again.diagonal(), sums.diagonal())
    assert np.array_equal(again.centre(), sums.centre())
    assert np.array_equal(again.multiply(np.eye(12)), sums.multiply(np.eye(12)))
    for name, array in sums.arrays().items():
        assert np.array_equal(again.arrays()[name], array)
    one = Sums.of(x, y)
    assert not np.array_equal(one.diagonal(), sums.diagonal())
