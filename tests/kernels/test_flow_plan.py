"""The calibration in NumPy: its equations against PyTorch and by hand, and the plan's log-determinant."""

import numpy as np
import pytest
import torch

from fastflow.kernels.flow import execute
from fastflow.plan import fold
from fastflow.train.methods.chain import make_flow_stage
from fastflow.transforms.calibration import Stage, apply, apply_with_log_det

from support import stages as make
from support.calibrations import FLOWS, make_flow, pooled
from support.tolerances import FOLDED


def as_torch(stage: Stage) -> Stage:
    return Stage(stage.kind, stage.settings, {name: torch.from_numpy(np.array(a)) for name, a in stage.params.items()})


@pytest.mark.parametrize(("coupling", "permutation", "shape"), FLOWS)
def test_flow_equations_equal_the_pytorch_flow(coupling, permutation, shape):
    flow, x = make_flow(coupling, permutation, shape).double(), pooled(33)
    with torch.no_grad():
        expected_z, expected_log_det = (t.numpy() for t in flow(torch.from_numpy(x)))
    stage = make_flow_stage(flow)
    z, log_det = apply_with_log_det(stage, x)
    assert np.abs(expected_z - x).max() > 0.1
    assert np.abs(z - expected_z).max() <= 1e-12 * np.abs(expected_z).max()
    assert np.abs(log_det - expected_log_det).max() <= 1e-11
    assert np.array_equal(apply([stage], x), z)
    torch_z, torch_log_det = apply_with_log_det(as_torch(stage), torch.from_numpy(x))
    assert isinstance(torch_z, torch.Tensor)
    assert np.abs(torch_z.numpy() - expected_z).max() <= 1e-12 * np.abs(expected_z).max()
    assert np.abs(torch_log_det.numpy() - expected_log_det).max() <= 1e-11


@pytest.mark.parametrize(("coupling", "permutation", "shape"), FLOWS)
def test_float32_equations_err_no_more_than_pytorch(coupling, permutation, shape):
    flow, x = make_flow(coupling, permutation, shape), pooled(65, np.float32)
    with torch.no_grad():
        theirs = flow(torch.from_numpy(x))[0].numpy()
        exact = flow.double()(torch.from_numpy(x).double())[0].numpy()
    ours = apply([make_flow_stage(flow).astype(np.float32)], x)
    assert ours.dtype == np.float32
    assert np.abs(ours - exact).max() <= 2 * np.abs(theirs - exact).max() + 1e-6


EQUATIONS = {
    "standardize": lambda row, p: (row - p["mean"]) / p["deviation"],
    "nullspace": lambda row, p: (row - p["mean"]) - sum(v * (v @ (row - p["mean"])) for v in p["directions"]),
    "whiten": lambda row, p: p["matrix"].T @ (row - p["mean"]),
    "recolour": lambda row, p: p["matrix"].T @ (row - p["mean"]) + p["shift"],
    "linear": lambda row, p: p["matrix"].T @ row + p["shift"],
}


@pytest.mark.parametrize("kind", EQUATIONS)
def test_linear_equations(kind):
    x, rng = pooled(5), np.random.default_rng(1)
    stage = make.whiten(rng, 16, 12) if kind == "whiten" else make.LINEAR[kind](rng, 16)
    z = apply([stage], x)
    assert np.abs(z - np.stack([EQUATIONS[kind](row, stage.params) for row in x])).max() <= 1e-13
    assert np.abs(apply([as_torch(stage)], torch.from_numpy(x)).numpy() - z).max() <= 1e-13


def test_lu_uses_only_its_triangles():
    stage = make_flow_stage(make_flow("additive", "lu").double())
    full = dict(stage.params)
    for name, array in stage.params.items():
        if name.endswith(("lower", "upper")):
            other = np.triu(np.ones_like(array)) if name.endswith("lower") else np.tril(np.ones_like(array))
            full[name] = array + other
    x = pooled(4)
    assert np.array_equal(apply([Stage(stage.kind, stage.settings, full)], x), apply([stage], x))


def test_gates_far_out_stay_finite():
    """A float32 gate of sigmoid(-60) is tiny, not zero; its logarithm is what the log-determinant needs."""
    flow = make_flow("affine")
    with torch.no_grad():
        flow.steps(0)[0].coupling.net.bias3.fill_(-60.0)
    z, log_det = apply_with_log_det(make_flow_stage(flow), pooled(3, np.float32))
    assert np.isfinite(z).all()
    assert np.isfinite(log_det).all()


def test_no_stage_is_the_identity():
    (plan,) = fold([], 24)
    x = np.random.default_rng(0).normal(size=(3, 24)).astype(np.float32)
    assert np.array_equal(execute(plan.astype(np.float32), x), x)


@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize("permutation", ["reversal", "random", "lu"])
@pytest.mark.parametrize("rows", [0, 9])
def test_the_plan_is_that_of_the_equations(coupling, permutation, rows):
    rng = np.random.default_rng(3)
    stage = make.flow(rng, 48, 2, 2, 16, coupling, permutation)
    z = rng.normal(size=(rows, 48))
    want = apply([stage], z)
    for plan in fold([stage], 48):
        z = execute(plan, z)
    assert z.shape == want.shape
    assert np.abs(z - want).max(initial=0) <= FOLDED * np.abs(want).max(initial=0)
