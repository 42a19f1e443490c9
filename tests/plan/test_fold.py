"""Folding: the plan says what the unfolded calibration says, in float64 and with nothing else in it."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from fastflow.errors import FastflowError
from fastflow.kernels.flow.plan import execute
from fastflow.plan.fold import fold
from fastflow.stages.calibration import Stage, apply
from fastflow.train.methods.flow import Flow, FlowConfig

from support import stages as make
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
    plans = fold(chain.stages, chain.dim)
    x = chain.rng().normal(size=(7, chain.dim)) * 2 + 1
    assert_close(run(plans, x), apply(chain.stages, x))
    assert len(plans) == 1 or not chain.one_plan


def test_zero_coupling_weights_leave_a_diagonal_map():
    stage = make.flow(np.random.default_rng(0), 48)
    params = {k: np.zeros_like(v) if "weight3" in k or "bias3" in k else v for k, v in stage.params.items()}
    stage = Stage("flow", stage.settings, params)
    (plan,) = fold([stage], 48)
    assert not plan.V.any()
    x = np.random.default_rng(1).normal(size=(5, 48))
    assert_close(((x - plan.m) * plan.s)[:, plan.gather] * plan.S + plan.t, apply([stage], x))


def test_the_first_centring_becomes_the_prologue():
    rng = np.random.default_rng(5)
    standard, flow = make.standardize(rng, 48), make.flow(rng, 48)
    (plan,) = fold([standard, flow], 48)
    assert np.array_equal(plan.m, standard.params["mean"])
    assert np.array_equal(plan.s, 1 / standard.params["deviation"])
    (plan,) = fold([flow], 48)
    assert np.array_equal(plan.m, -flow.params["levels.0.0.actnorm.shift"])
    assert np.array_equal(plan.s, np.exp(3 * flow.params["levels.0.0.actnorm.logscale"]))


def test_whitening_in_front_becomes_a_dense_prologue_and_the_couplings_read_halves():
    rng = np.random.default_rng(6)
    (plan,) = fold([make.whiten(rng, 96, 48), make.flow(rng, 48, 2, 2, 8)], 96)
    assert plan.L.shape == (48, 96)
    assert plan.S.shape == (48,)
    assert max(high - low for low, high in plan.reads) == 24


@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize("permutation", ["reversal", "random", "lu"])
def test_the_trained_pytorch_flow(coupling, permutation):
    torch.manual_seed(0)
    flow = Flow(FlowConfig(48, 3, 2, 12, coupling, permutation)).double().eval()
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            if name.endswith(("weight3", "bias3")):
                parameter.normal_(0, 0.2)
    state = {k: v.numpy() for k, v in flow.state_dict().items()}
    settings = {"levels": 3, "depth": 2, "width": 12, "coupling": coupling, "permutation": permutation}
    x = np.random.default_rng(0).normal(size=(11, 48))
    expected = flow(torch.from_numpy(x))[0].detach().numpy()
    assert_close(run(fold([Stage("flow", settings, state)], 48), x), expected)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=25)
@given(make.chains())
def test_float32_plans_err_no_more_than_twice_the_unfolded_float32(chain):
    stages = chain.stages
    x = chain.rng().normal(size=(16, chain.dim)).astype(np.float32)
    exact = apply(stages, x.astype(np.float64))
    unfused = apply([stage.astype(np.float32) for stage in stages], x)
    folded = run([plan.astype(np.float32) for plan in fold(stages, chain.dim)], x)
    assert folded.dtype == np.float32
    assert np.isfinite(folded).all()
    error, allowed = (np.linalg.norm(z - exact) / np.linalg.norm(exact) for z in (folded, unfused))
    assert error <= FUSED_FACTOR * allowed + FLOW_FLOOR


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


def spoiled(change, coupling="additive"):
    stage = make.flow(np.random.default_rng(0), 16, 2, 2, 8, coupling)
    return Stage("flow", stage.settings, change({k: v.copy() for k, v in stage.params.items()}))


@pytest.mark.parametrize(
    ("change", "coupling", "message"),
    [
        (lambda p: p | {"levels.0.1.actnorm.shift": np.full(16, np.nan)}, "additive", r"stage 0 \(flow\).*NaN"),
        (lambda p: p | {"levels.0.1.actnorm.shift": np.zeros(15)}, "additive", r"stage 0 \(flow\).*shape"),
        (
            lambda p: p | {"levels.0.1.actnorm.logscale": np.full(16, 300.0)},
            "additive",
            r"stage 0 \(flow\).*fit it again",
        ),
        (lambda p: p | {"levels.0.1.actnorm.logscale": np.full(16, 40.0)}, "additive", "float32 cannot hold.*array"),
        (lambda p: p | {"levels.0.1.actnorm.logscale": np.full(16, -24.0)}, "affine", "float32 cannot undo"),
    ],
)
def test_what_cannot_be_folded_is_refused_in_one_sentence(change, coupling, message):
    with pytest.raises(FastflowError, match=message) as caught:
        fold([spoiled(change, coupling)], 16)
    assert "\n" not in str(caught.value)
