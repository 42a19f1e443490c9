"""The cheap forms of recolour's matrix: with all directions but one the dense one, with fewer what they say."""

import numpy as np
import pytest

from fastflow.bench.research.cheap import cheap
from fastflow.stages.calibration import Stage, apply
from fastflow.stages.vectors import cosine


@pytest.fixture
def dense():
    rng = np.random.default_rng(0)
    params = {"mean": rng.normal(size=6), "matrix": rng.normal(size=(6, 6)), "shift": rng.normal(size=6)}
    return Stage("recolour", {"spectrum": 0.4, "mean_share": 0.2, "demoted": 2}, params)


def test_with_every_direction_but_one_cosines_are_those_of_the_dense_matrix(dense):
    z = np.random.default_rng(1).normal(size=(20, 6))
    exact, found = (np.asarray(apply([stage], z)) for stage in (dense, cheap(dense, 5)))
    assert np.abs(cosine(found, found) - cosine(exact, exact)).max() < 1e-12


@pytest.mark.parametrize("most", [0, 2])
def test_the_matrix_is_a_multiple_of_one_but_for_the_directions_kept(dense, most):
    values = np.linalg.eigvalsh(cheap(dense, most).params["matrix"])
    common = np.median(values)
    assert np.isclose(values, common).sum() == 6 - most
