"""Couplings that update the state in place: the same map in fewer products, if it can be had."""

import numpy as np
import pytest
from hypothesis import given, settings

from fastflow.kernels.flow.plan import execute, execute_with_log_det
from fastflow.plan.fold import fold
from fastflow.plan.in_place import products
from fastflow.stages.calibration import apply

from support import stages as make
from support.tolerances import FOLDED


def run(plans, x):
    for plan in plans:
        x = execute(plan, x)
    return x


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=60)
@given(make.chains())
def test_the_sparse_plans_are_the_chain(chain):
    merged, sparse = fold(chain.stages, chain.dim), fold(chain.stages, chain.dim, sparse=True)
    x = chain.rng().normal(size=(7, chain.dim)) * 2 + 1
    expected = apply(chain.stages, x)
    assert np.abs(run(sparse, x) - expected).max() <= FOLDED * np.abs(expected).max()
    assert sum(map(products, sparse)) <= sum(map(products, merged))


def test_additive_couplings_update_in_place_without_gates():
    rng = np.random.default_rng(0)
    flow = make.flow(rng, 48, 3, 2, 12)
    (hidden,), (turned,) = fold([flow], 48), fold([flow], 48, sparse=True)
    x = rng.normal(size=(5, 48))
    (z, log_det), (expected, same) = execute_with_log_det(turned, x), execute_with_log_det(hidden, x)
    assert (turned.form, turned.R, turned.q, turned.G) == ("state", None, None, None)
    assert products(turned) < products(hidden)
    assert np.abs(z - expected).max() <= FOLDED * np.abs(expected).max()
    assert np.array_equal(log_det, same)
    assert not turned.p.any()
    for k, (low, high) in enumerate(turned.writes):
        outside = np.r_[0:low, high:48]
        assert not turned.V[outside, k * 12 : (k + 1) * 12].any()


def test_a_matrix_behind_the_couplings_is_a_plan_of_its_own():
    rng = np.random.default_rng(1)
    flow, after = make.flow(rng, 48, 2, 2, 8), make.whiten(rng, 48, 20)
    assert [plan.form for plan in fold([flow, after], 48)] == ["hidden"]
    first, second = fold([flow, after], 48, sparse=True)
    assert (first.form, second.form, second.steps) == ("state", "hidden", 0)
    assert second.S.shape == (20, 48)


def assert_same(stages, dim):
    """The sparse plan of ``stages``, which has to be the merged one to the last bits."""
    (merged,), (sparse,) = fold(stages, dim), fold(stages, dim, sparse=True)
    assert sparse.form == merged.form
    for name, array in merged.arrays().items():
        found = sparse.arrays()[name]
        assert np.abs(found - array).max(initial=0) <= 1e-14 * np.abs(array).max(initial=0)


def test_what_gains_nothing_is_the_merged_plan():
    rng = np.random.default_rng(2)
    assert_same([make.whiten(rng, 24, 24), make.flow(rng, 24, 2, 2, 8, permutation="lu")], 24)
    assert_same([make.flow(rng, 24, coupling="affine")], 24)
    assert_same([make.standardize(rng, 24)], 24)
    assert_same([make.flow(rng, 24, 1, 1, 8)], 24)  # nothing links its steps
    assert_same([make.flow(rng, 48, 3, 2, 12, permutation="random")], 48)  # every step would write all channels


@pytest.mark.parametrize("logscale", [-25, -13])  # no float32 divides by exp(-75); by exp(-39) weights leave its range
@pytest.mark.parametrize("step", [1, 2])
def test_what_float32_cannot_divide_by_is_the_merged_plan(logscale, step):
    stage = make.flow(np.random.default_rng(3), 24, 1, 4, 8)
    assert fold([stage], 24, sparse=True)[0].form == "state"
    stage.params[f"levels.0.{step}.actnorm.logscale"][5] = logscale
    assert_same([stage], 24)
