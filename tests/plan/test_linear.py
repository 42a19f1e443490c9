"""A matrix as a diagonal with a gather index, and dense: both are the same matrix after the same steps."""

import numpy as np
import pytest

from fastflow.plan.linear import Linear, hull, magnitude, width


@pytest.mark.parametrize("dense", [False, True])
def test_steps_are_those_of_the_matrix(dense):
    rng = np.random.default_rng(0)
    linear, matrix = Linear(6), np.eye(6)
    if dense:
        linear.dense = matrix = rng.normal(size=(6, 6))
    order, scale = rng.permutation(6), rng.normal(size=6)
    linear.take(order)
    linear.times(scale)
    matrix = scale[:, None] * matrix[order]
    assert len(linear) == 6
    assert np.array_equal(linear.matrix(), matrix)
    weight, rows = rng.normal(size=(2, 3)), slice(1, 4)
    found, (low, high) = linear.read(weight, rows)
    assert np.abs(found - weight @ matrix[rows]).max() <= 1e-15
    assert not np.delete(found, np.arange(low, high), axis=1).any()
    assert (dense and (low, high) == (0, 6)) or (low, high) == hull(order[rows])


def test_extents():
    assert hull(np.array([4, 2, 7])) == (2, 8)
    assert width(np.array([False, True, False, True, False])) == 3
    assert magnitude(np.array([[1.0, -3.0], [2.0, 0.0]])) == 3.0
    assert magnitude(np.zeros((0, 3))) == 0.0
    assert np.isnan(magnitude(np.array([1.0, np.nan])))
