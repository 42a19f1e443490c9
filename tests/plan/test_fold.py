"""Folding: the plan is the unfolded calibration, in float64, with ranges that are the supports of its arrays."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.kernels.flow import UNTOUCHED, execute, execute_with_log_det
from fastflow.model.artifact import load_model
from fastflow.plan import fold
from fastflow.plan.linear import Linear, hull, magnitude, products, width
from fastflow.stages.calibration import Stage, apply

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
    """Merged, and with couplings in place; in float32 with at most twice the error of the unfolded float32."""
    x = chain.rng().normal(size=(16, chain.dim)).astype(np.float32) * 2 + 1
    exact = apply(chain.stages, x.astype(np.float64))
    unfused = apply([stage.astype(np.float32) for stage in chain.stages], x)
    merged, sparse = (fold(chain.stages, chain.dim, sparse=given) for given in (False, True))
    assert len(merged) == 1 or not chain.one_plan
    assert sum(map(products, sparse)) <= sum(map(products, merged))
    for plans in (merged, sparse):
        assert_close(run(plans, x.astype(np.float64)), exact)
    folded = run([plan.astype(np.float32) for plan in merged], x)
    assert folded.dtype == np.float32
    error, allowed = (np.linalg.norm(z - exact) / np.linalg.norm(exact) for z in (folded, unfused))
    assert error <= FUSED_FACTOR * allowed + FLOW_FLOOR


def test_zero_coupling_weights_leave_a_diagonal_map():
    stage = make.flow(np.random.default_rng(0), 48)
    params = {k: np.zeros_like(v) if "weight3" in k or "bias3" in k else v for k, v in stage.params.items()}
    stage = Stage("flow", stage.settings, params)
    (plan,) = fold([stage], 48)
    assert not plan.V.any()
    x = np.random.default_rng(1).normal(size=(5, 48))
    assert_close(((x - plan.m) * plan.s)[:, plan.gather] * plan.S + plan.t, apply([stage], x))


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


SHIFT, SCALE = "levels.0.1.actnorm.shift", "levels.0.1.actnorm.logscale"


@pytest.mark.parametrize(
    ("name", "value", "coupling", "message"),
    [
        (SHIFT, np.full(16, np.nan), "additive", r"stage 0 \(flow\).*NaN"),
        (SHIFT, np.zeros(15), "additive", r"stage 0 \(flow\).*shape"),
        (SCALE, np.full(16, 300.0), "additive", r"stage 0 \(flow\).*fit it again"),
        (SCALE, np.full(16, 40.0), "additive", "float32 cannot hold.*array"),
        (SCALE, np.full(16, -24.0), "affine", "float32 cannot undo"),
    ],
)
def test_what_cannot_be_folded_is_refused_in_one_sentence(name, value, coupling, message):
    stage = make.flow(np.random.default_rng(0), 16, 2, 2, 8, coupling)
    with pytest.raises(FastflowError, match=message) as caught:
        fold([Stage("flow", stage.settings, stage.params | {name: value})], 16)
    assert "\n" not in str(caught.value)


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
            if plan.form == "hidden":
                assert not plan.G[own, k * w :].any()
                continue
            assert plan.G is None
            outside = np.ones(plan.state, bool)
            outside[slice(*plan.writes[k])] = False
            assert not plan.R[outside, own].any()
            assert not plan.p[k, outside].any()
            assert (plan.q[k, outside] == UNTOUCHED).all()


TABLES = {
    2: (
        [(384, 768), (0, 384), (384, 768), (384, 576), (576, 768), (384, 576)],
        [(0, 384), (384, 768), (0, 384), (576, 768), (384, 576), (576, 768)],
        [[], [0], [1], [1], [1, 3], [1, 4]],
        [*range(383, -1, -1), *range(384, 768)],
    ),
    3: (
        [(384, 768), (0, 384), (384, 768), (384, 576), (576, 768), (384, 576), (480, 576), (384, 480), (480, 576)],
        [(0, 384), (384, 768), (0, 384), (384, 576), (576, 768), (384, 576), (672, 768), (576, 672), (672, 768)],
        [[], [0], [1], [1], [1, 3], [1, 4], [1, 4], [1, 4, 6], [1, 4, 7]],
        [*range(383, -1, -1), *range(576, 768), *range(575, 383, -1)],
    ),
}


PHYSICAL = [  # the writes of a flow in state form, where the next step reads
    [(0, 384), (384, 768), (0, 384)],
    [(576, 768), (384, 576), (576, 768)],
    [(384, 480), (480, 576), (384, 480)],
]


@pytest.mark.parametrize("levels", TABLES)
def test_the_ranges_of_the_papers_flow(levels):
    reads, writes, links, gather = TABLES[levels]
    (plan,) = fold([make.flow(np.random.default_rng(0), 768, levels)], 768)
    assert plan.reads.tolist() == [list(r) for r in reads]
    assert plan.writes.tolist() == [list(r) for r in writes]
    assert [np.flatnonzero(row).tolist() for row in plan.links] == links
    assert plan.gather.tolist() == gather
    (plan,) = fold([make.flow(np.random.default_rng(0), 768, levels, coupling="affine")], 768)
    assert plan.writes.tolist() == [list(r) for level in PHYSICAL[:levels] for r in level]
    assert plan.gather.tolist() == gather


def test_additive_couplings_update_in_place_without_gates():
    rng = np.random.default_rng(0)
    flow = make.flow(rng, 48, 3, 2, 12)
    (hidden,), (turned,) = fold([flow], 48), fold([flow], 48, sparse=True)
    x = rng.normal(size=(5, 48))
    (z, log_det), (expected, same) = execute_with_log_det(turned, x), execute_with_log_det(hidden, x)
    assert (turned.form, turned.R, turned.q, turned.G) == ("state", None, None, None)
    assert products(turned) < products(hidden)
    assert_close(z, expected)
    assert np.array_equal(log_det, same)
    assert not turned.p.any()
    for k, (low, high) in enumerate(turned.writes):
        outside = np.r_[0:low, high:48]
        assert not turned.V[outside, k * 12 : (k + 1) * 12].any()
    after = [flow, make.whiten(rng, 48, 20)]
    assert [plan.form for plan in fold(after, 48)] == ["hidden"]
    first, second = fold(after, 48, sparse=True)
    assert (first.form, second.form, second.steps) == ("state", "hidden", 0), "a matrix is a plan of its own"
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
    for sparse in (False, True):
        fused = cpu.CpuFlow([plan.astype(np.float32) for plan in fold(stages, x.shape[1], sparse)], isa=float_isa)(x)
        assert np.isfinite(fused).all()
        assert np.linalg.norm(fused - wide) / np.linalg.norm(wide) <= FUSED_FACTOR * allowed + FLOW_FLOOR, sparse
