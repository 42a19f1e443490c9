"""Couplings that update the state in place: the same map in fewer products, where it can be had."""

from dataclasses import replace

import numpy as np
import stages as make
from hypothesis import given, settings
from tolerances import FOLDED

from fastflow.kernels.flow.plan import execute, execute_with_log_det
from fastflow.plan.fold import fold
from fastflow.plan.in_place import in_place, products
from fastflow.stages.calibration import apply


def run(plans, x):
    for plan in plans:
        x = execute(plan, x)
    return x


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
    (hidden,) = fold([make.flow(rng, 48, 3, 2, 12)], 48)
    turned = in_place(hidden)
    x = rng.normal(size=(5, 48))
    (z, log_det), (expected, same) = execute_with_log_det(turned, x), execute_with_log_det(hidden, x)
    assert (turned.form, turned.R, turned.q, turned.G) == ("state", None, None, None)
    assert products(turned) < products(hidden)
    assert np.abs(z - expected).max() <= FOLDED * np.abs(expected).max()
    assert np.array_equal(log_det, same)
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


def test_what_cannot_be_had_stays_as_it_is():
    rng = np.random.default_rng(2)
    (dense,) = fold([make.whiten(rng, 24, 24), make.flow(rng, 24, 2, 2, 8, permutation="lu")], 24)
    (affine,) = fold([make.flow(rng, 24, coupling="affine")], 24)
    (linear,) = fold([make.standardize(rng, 24)], 24)
    (one_step,) = fold([make.flow(rng, 24, 1, 1, 8)], 24)  # nothing links its steps, so nothing is gained
    (scattered,) = fold([make.flow(rng, 48, 3, 2, 12, permutation="random")], 48)  # every step would write all channels
    (flow,) = fold([make.flow(rng, 24)], 24)
    vanishing = replace(flow, S=np.where(np.arange(24) == 3, 1e-31, flow.S))
    steep = replace(flow, S=np.where(np.arange(24) == 3, 1e-20, flow.S))
    repeated = replace(flow, gather=np.where(np.arange(24) == 3, flow.gather[4], flow.gather))
    for plan in (dense, affine, linear, one_step, scattered, vanishing, steep, repeated):
        assert in_place(plan) is plan
