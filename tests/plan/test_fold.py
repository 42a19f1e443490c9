"""Folding: the plan is the unfolded calibration, in float64, with ranges that are the supports of its arrays."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings

from fastflow import Runtime
from fastflow.kernels.flow import UNTOUCHED, execute, stack
from fastflow.model.artifact import load_model
from fastflow.plan import fold
from fastflow.plan.builder import hull, magnitude, products
from fastflow.transforms.calibration import apply

from support import stages as make
from support.builders import fitted
from support.places import ROOT
from support.tolerances import FLOW_FLOOR, FOLDED, FUSED_FACTOR


def run(plans, x):
    for plan in plans:
        x = execute(plan, x)
    return x


def assert_close(z, expected, bound=FOLDED):
    assert z.shape == expected.shape
    assert np.isfinite(z).all()
    assert np.std(expected) > 0.1  # the data vary, so that agreeing means something
    assert np.abs(z - expected).max() <= bound * np.abs(expected).max()


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=60)
@given(make.chains())
def test_folded_is_unfolded(chain):
    """As stacked, too, in float64; in float32 with at most twice the error of the unfolded float32."""
    x = chain.rng().normal(size=(16, chain.dim)).astype(np.float32) * 2 + 1
    exact = apply(chain.stages, x.astype(np.float64))
    unfused = apply([stage.astype(np.float32) for stage in chain.stages], x)
    plans = fold(chain.stages, chain.dim)
    assert_close(run(plans, x.astype(np.float64)), exact)
    if not any(plan.R is not None for plan in plans):
        assert_close(execute(stack(plans), x.astype(np.float64)), exact)
        assert sum(map(products, plans)) <= 1.25 * products(stack(plans))
    folded = run([plan.astype(np.float32) for plan in plans], x)
    assert folded.dtype == np.float32
    error, allowed = (np.linalg.norm(z - exact) / np.linalg.norm(exact) for z in (folded, unfused))
    assert error <= FUSED_FACTOR * allowed + FLOW_FLOOR


def test_what_comes_first_becomes_the_prologue():
    rng = np.random.default_rng(5)
    standard, flow = make.standardize(rng, 48), make.flow(rng, 48)
    (plan,) = fold([standard, flow], 48)
    assert np.array_equal(plan.m, standard.params["mean"])
    assert np.array_equal(plan.s, 1 / standard.params["deviation"])
    (plan,) = fold([flow], 48)
    assert np.array_equal(plan.m, -flow.params["levels.0.0.actnorm.shift"])
    assert np.array_equal(plan.s, np.exp(3 * flow.params["levels.0.0.actnorm.logscale"]))
    (plan,) = fold([make.whiten(rng, 96, 48), make.flow(rng, 48, 2, 2, 8)], 96)
    assert (plan.L.shape, plan.S.shape) == ((48, 96), (48,)), "a dense one"
    assert max(high - low for low, high in plan.reads) == 24, "couplings still read halves"


def test_folding_changes_nothing_it_was_given():
    rng = np.random.default_rng(7)
    stages = [make.whiten(rng, 64, 48), make.flow(rng, 48, permutation="lu"), make.flow(rng, 48, coupling="affine")]
    before = copy.deepcopy(stages)
    plans = fold(stages, 64)
    x = rng.normal(size=(3, 64))
    kept = [{name: array.copy() for name, array in plan.arrays().items()} for plan in plans]
    run(plans, x.copy())
    for stage, old in zip(stages, before, strict=True):
        assert all(np.array_equal(stage.params[name], old.params[name]) for name in old.params)
    for plan, arrays in zip(plans, kept, strict=True):
        assert all(np.array_equal(plan.arrays()[name], array) for name, array in arrays.items())


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=25)
@given(make.chains())
def test_ranges_are_the_supports(chain):
    for plan in fold(chain.stages, chain.dim):
        w = plan.width
        for k in range(plan.steps):
            own = slice(k * w, (k + 1) * w)
            for matrix, axis, table in ((plan.U[own], 0, plan.reads), (plan.V[:, own], 1, plan.writes)):
                support = np.flatnonzero((matrix != 0).any(axis=axis))
                assert (support[0], support[-1] + 1) == tuple(table[k])
            outside = np.ones(plan.state, bool)
            outside[slice(*plan.writes[k])] = False
            assert not plan.p[k, outside].any()
            if plan.R is not None:
                assert not plan.R[outside, own].any()
                assert (plan.q[k, outside] == UNTOUCHED).all()


RANGES = [  # of the paper's flow, by level: the next step reads what a step writes
    [(384, 768), (0, 384), (384, 768), (0, 384)],
    [(384, 576), (576, 768), (384, 576), (576, 768)],
    [(480, 576), (384, 480), (480, 576), (384, 480)],
]
GATHERS = {2: [*range(383, -1, -1), *range(384, 768)], 3: [*range(383, -1, -1), *range(576, 768), *range(575, 383, -1)]}


@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize("levels", GATHERS)
def test_the_ranges_of_the_papers_flow(levels, coupling):
    (plan,) = fold([make.flow(np.random.default_rng(0), 768, levels, coupling=coupling)], 768)
    assert plan.reads.tolist() == [list(r) for level in RANGES[:levels] for r in level[:3]]
    assert plan.writes.tolist() == [list(r) for level in RANGES[:levels] for r in level[1:]]
    assert plan.gather.tolist() == GATHERS[levels]
    assert (plan.R is None, plan.q is None, plan.p.any()) == (
        (True, True, False) if coupling == "additive" else (False, False, True)
    )


def test_a_matrix_after_couplings_and_a_scattered_level_are_plans_of_their_own():
    rng = np.random.default_rng(0)
    first, second = fold([make.flow(rng, 48, 3, 2, 12), make.whiten(rng, 48, 20)], 48)
    assert (first.steps, second.steps, second.S.shape) == (6, 0, (20, 48))
    plans = fold([make.flow(rng, 768, permutation="random")], 768)
    assert [min(plan.reads.min(), plan.writes.min()) // 192 for plan in plans] == [0, 2, 3]


def test_stacked_plans_are_one():
    rng = np.random.default_rng(1)
    stages = [
        make.standardize(rng, 24),
        make.flow(rng, 24, 2, 2, 8),
        make.flow(rng, 24, 1, 1, 12),
        make.whiten(rng, 24, 9),
    ]
    plans, x = [plan for stage in stages for plan in fold([stage], 24)], rng.normal(size=(5, 24))
    assert_close(execute(stack(plans), x), apply(stages, x))
    with pytest.raises(ValueError, match="gates"):
        stack(fold([make.flow(rng, 24, coupling="affine")], 24))


@pytest.mark.parametrize(("width", "plans"), [(4, 1), (48, 5)])
def test_maps_among_couplings_are_stacked_if_that_takes_fewer_products(width, plans):
    rng = np.random.default_rng(2)
    stages = [make.whiten(rng, 24, 24), make.flow(rng, 24, 2, 2, width, permutation="lu"), make.recolour(rng, 24)]
    found, x = fold(stages, 24), rng.normal(size=(5, 24))
    assert len(found) == plans
    assert sum(map(products, found)) <= min(products(stack(found)), 5 * 24 * 24 + 4 * width * (24 + width))
    assert_close(run(found, x), apply(stages, x))


# no float32 divides by exp(-75); divided by exp(-39), weights leave its range
@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize("logscale", [-25, -13])
@pytest.mark.parametrize("step", [1, 2])
def test_a_channel_too_small_to_be_scaled_back_begins_a_plan(logscale, step, coupling):
    stage = make.flow(np.random.default_rng(3), 24, 1, 4, 8, coupling)
    assert len(fold([stage], 24)) == 1
    stage.params[f"levels.0.{step}.actnorm.logscale"][5] = logscale
    plans, x = fold([stage], 24), np.random.default_rng(4).normal(size=(5, 24)).astype(np.float32)
    assert len(plans) == 2
    exact = apply([stage], x.astype(np.float64))
    assert_close(run(plans, x.astype(np.float64)), exact)
    assert_close(run([plan.astype(np.float32) for plan in plans], x), exact, 1e-6)


def test_extents():
    assert hull(np.array([4, 2, 7])) == (2, 8)
    assert magnitude(np.array([[1.0, -3.0], [2.0, 0.0]])) == 3.0
    assert magnitude(np.zeros((0, 3))) == 0.0
    assert np.isnan(magnitude(np.array([1.0, np.nan])))


# ---- on real pooled embeddings, as they are and with outlier dimensions such as BERT's

TEXTS = (ROOT / "examples" / "novels.txt").read_text(encoding="utf-8").split("\n")[:300]
FITTED = ["flow", "nullspace:10", "nullspace:10,flow", "components:3", "components:3,flow", "flow,nullspace:5"]
FITTED += ["flow,recolour", "whiten,recolour", "whiten:64"]


@pytest.fixture(scope="module")
def pooled():
    return Runtime().pool(TEXTS)  # means of word embeddings, which span 255 of 256 dimensions


@pytest.fixture(scope="module")
def calibrations(pooled):
    return {name: fitted(name, pooled) for name in FITTED} | {"in the package": load_model().calibration}


@pytest.mark.parametrize("outlier", [1.0, 30.0], ids=["as pooled", "outlier dimensions"])
@pytest.mark.parametrize("name", ["in the package", *FITTED])
def test_no_more_than_twice_the_unfused_error(pooled, calibrations, name, float_isa, outlier):
    from fastflow.kernels.flow import cpu

    x = pooled.copy()
    x[:, [7, 100]] = x[:, [7, 100]] * outlier  # two dominant channels, as BERT-base has
    stages = calibrations[name]
    wide = apply([s.astype(np.float64) for s in stages], x.astype(np.float64))
    allowed = np.linalg.norm(apply([s.astype(np.float32) for s in stages], x) - wide) / np.linalg.norm(wide)
    fused = cpu.CpuFlow(fold(stages, x.shape[1]), isa=float_isa)(x)
    assert np.isfinite(fused).all()
    assert np.linalg.norm(fused - wide) / np.linalg.norm(wide) <= FUSED_FACTOR * allowed + FLOW_FLOOR
