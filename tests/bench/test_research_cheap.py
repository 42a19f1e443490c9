"""The cheap forms of recolour's matrix: with all directions but one the dense one, with fewer what they say."""

import numpy as np
import pytest

from fastflow.bench.research.cheap import cell, cheap, folding, mark
from fastflow.bench.suites.workloads import synthetic
from fastflow.plan.fold import fold
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


def test_a_row_says_how_it_is_folded_and_how_far_its_times_spread():
    """More hidden units than the flow's widen all of its couplings, and more directions are a dense product."""
    flow = synthetic(1, 1, 8, coupling="additive", rows=8, dim=128).stages[0]
    forms = {"flow alone": folding(fold([flow], 128))}
    for count in (8, 32, 40):
        directions = np.eye(128)[: count // 2]
        ending = Stage("nullspace", {}, {"mean": np.zeros(128), "directions": directions})
        forms[f"K = {count}"] = folding(fold([flow, ending], 128))
    assert [form["hidden"] for form in forms.values()] == [8, 8, 32, 8]
    assert [mark(name, forms) for name in forms] == ["", "", " \\*", " †"]
    forms["flow alone"]["median"], forms["K = 8"]["median"] = 2.0, 3.0
    assert cell("K = 8", forms) == "3.0 (1.5)"
    forms["K = 8"] |= {"p20": 2.5, "p80": 7.25}
    assert cell("K = 8", forms) == "3.0, 2.5 to 7.2 (1.5)"
