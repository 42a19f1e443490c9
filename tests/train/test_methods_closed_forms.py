"""The closed-form calibrations and their streaming statistics, and the methods and chains that name them."""

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.stages.calibration import apply
from fastflow.train.data.moments import measure_moments
from fastflow.train.methods.closed_forms import fit_components, fit_nullspace, fit_standardize, fit_whiten

from support.rows import data


def test_standardize_has_mean_zero_and_deviation_one():
    x = data()
    z = apply([fit_standardize(measure_moments(x))], x)
    assert np.abs(z.mean(axis=0)).max() <= 1e-12
    assert np.abs(z.std(axis=0) - 1).max() <= 1e-12


@pytest.mark.parametrize("dims", [None, 16, 5, 1])
def test_whitening_makes_the_covariance_the_identity(dims):
    x = data()
    z = apply([fit_whiten(measure_moments(x), dims)], x)
    assert z.shape == (300, dims or 16)
    assert np.abs(z.mean(axis=0)).max() <= 1e-10
    assert np.abs(np.cov(z, rowvar=False, bias=True) - np.eye(dims or 16)).max() <= 1e-10


def test_whitening_orders_directions_by_variance():
    x = data()
    values = np.linalg.eigvalsh(np.cov(x, rowvar=False, bias=True))[::-1]
    stage = fit_whiten(measure_moments(x))
    norms = np.linalg.norm(stage.params["matrix"], axis=0)
    assert np.abs(norms * np.sqrt(values) - 1).max() <= 1e-9  # each column is an eigenvector over its deviation
    few = fit_whiten(measure_moments(x), 5)
    assert np.array_equal(few.params["matrix"], stage.params["matrix"][:, :5])


@pytest.mark.parametrize("remove", [1, 4, 15])
def test_nullspace_removes_the_leading_directions(remove):
    x = data()
    stage = fit_nullspace(measure_moments(x), remove)
    directions = stage.params["directions"]
    assert np.abs(directions @ directions.T - np.eye(remove)).max() <= 1e-12
    z = apply([stage], x)
    assert np.abs(z.mean(axis=0)).max() <= 1e-10
    assert np.abs(z @ directions.T).max() <= 1e-10 * np.abs(x).max()
    left = np.linalg.svd(z, compute_uv=False)[: 16 - remove]
    expected = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)[remove:]
    assert np.abs(left - expected).max() <= 1e-8 * expected.max()


@pytest.mark.parametrize("remove", [1, 4])
def test_components_are_removed_and_the_mean_is_kept(remove):
    """Nothing lies along the directions, and all else of a text is as it was, what it shares with all others too."""
    x = data() + 3
    stage = fit_components(measure_moments(x), remove)
    directions = stage.params["directions"]
    assert np.array_equal(directions, fit_nullspace(measure_moments(x), remove).params["directions"])
    z = apply([stage], x)
    assert np.abs(z @ directions.T).max() <= 1e-10 * np.abs(x).max()
    rest = np.linalg.svd(directions)[2][remove:]
    assert np.abs((z - x) @ rest.T).max() <= 1e-10 * np.abs(x).max()
    assert np.linalg.norm(z.mean(axis=0)) > 1


def test_signs_do_not_depend_on_the_solver():
    for matrix in (
        fit_whiten(measure_moments(data())).params["matrix"],
        fit_nullspace(measure_moments(data()), 5).params["directions"].T,
    ):
        largest = np.abs(matrix).argmax(axis=0)
        assert (matrix[largest, np.arange(matrix.shape[1])] > 0).all()


def test_too_few_texts_are_errors():
    few = data(5)
    with pytest.raises(FastflowError, match="whiten: 5 texts span 4 of the 16 dimensions; use whiten:4 or more texts"):
        fit_whiten(measure_moments(few))
    with pytest.raises(FastflowError, match="nullspace: 5 texts span 4 dimensions, and removing 4 leaves nothing"):
        fit_nullspace(measure_moments(few), 4)
    with pytest.raises(FastflowError, match="components: 5 texts span 4 dimensions, and removing 4 leaves nothing"):
        fit_components(measure_moments(few), 4)
    for count in (9, 99):
        same = np.ones((count, 16))
        with pytest.raises(FastflowError, match=f"whiten: {count} texts span 0 of the 16 dimensions; give more texts"):
            fit_whiten(measure_moments(same))
        with pytest.raises(FastflowError, match=f"standardize: every channel is constant over the {count} texts; give"):
            fit_standardize(measure_moments(same))


def test_as_many_texts_as_dimensions_are_too_few_and_one_more_shows_what_is_constant():
    x = data(17)
    x[:, 7] = 5.0
    with pytest.raises(FastflowError, match="whiten: 16 texts span 15 of the 16 dimensions; use whiten:15 or more"):
        fit_whiten(measure_moments(x[:16]))
    assert not fit_whiten(measure_moments(x)).params["matrix"][:, 15].any()
    asked = "whiten: 1 of the 16 directions are constant over the 17 texts, and 16 of them are asked for; use whiten:15"
    with pytest.raises(FastflowError, match=asked):
        fit_whiten(measure_moments(x), 16)
    assert np.array_equal(
        fit_whiten(measure_moments(x), 15).params["matrix"], fit_whiten(measure_moments(x)).params["matrix"][:, :15]
    )
