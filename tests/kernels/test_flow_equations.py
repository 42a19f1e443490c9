"""The equations of the calibration in NumPy, against PyTorch and by hand."""

import numpy as np
import pytest
import torch

from fastflow.stages.calibration import Stage, apply, apply_with_log_det
from fastflow.train.methods.chain import flow_stage

from support.calibrations import FLOWS, linear_stages, make_flow, pooled


def as_torch(stage: Stage) -> Stage:
    return Stage(stage.kind, stage.settings, {name: torch.from_numpy(np.array(a)) for name, a in stage.params.items()})


@pytest.mark.parametrize(("coupling", "permutation", "shape"), FLOWS)
def test_flow_equations_equal_the_pytorch_flow(coupling, permutation, shape):
    flow, x = make_flow(coupling, permutation, shape).double(), pooled(33)
    with torch.no_grad():
        expected_z, expected_log_det = (t.numpy() for t in flow(torch.from_numpy(x)))
    stage = flow_stage(flow)
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
    ours = apply([flow_stage(flow).astype(np.float32)], x)
    assert ours.dtype == np.float32
    assert np.abs(ours - exact).max() <= 2 * np.abs(theirs - exact).max() + 1e-6


@pytest.mark.parametrize("stage", linear_stages(), ids=lambda stage: stage.kind)
def test_linear_equations(stage):
    x, p = pooled(5), stage.params
    expected = {
        "standardize": lambda row: (row - p["mean"]) / p["deviation"],
        "nullspace": lambda row: (row - p["mean"]) - sum(v * (v @ (row - p["mean"])) for v in p["directions"]),
        "whiten": lambda row: p["matrix"].T @ (row - p["mean"]),
        "recolour": lambda row: p["matrix"].T @ (row - p["mean"]) + p["shift"],
    }[stage.kind]
    z = apply([stage], x)
    assert np.abs(z - np.stack([expected(row) for row in x])).max() <= 1e-13
    assert np.abs(apply([as_torch(stage)], torch.from_numpy(x)).numpy() - z).max() <= 1e-13


def spoilt(stage: Stage, **change) -> Stage:
    return Stage(stage.kind, stage.settings, {**stage.params, **change})


def test_lu_uses_only_its_triangles():
    stage = flow_stage(make_flow("additive", "lu").double())
    full = dict(stage.params)
    for name, array in stage.params.items():
        if name.endswith(("lower", "upper")):
            other = np.triu(np.ones_like(array)) if name.endswith("lower") else np.tril(np.ones_like(array))
            full[name] = array + other
    x = pooled(4)
    assert np.array_equal(apply([spoilt(stage, **full)], x), apply([stage], x))


def test_gates_far_out_stay_finite():
    """A float32 gate of sigmoid(-60) is tiny, not zero; its logarithm is what the log-determinant needs."""
    flow = make_flow("affine")
    with torch.no_grad():
        flow.steps(0)[0].coupling.net.bias3.fill_(-60.0)
    z, log_det = apply_with_log_det(flow_stage(flow), pooled(3, np.float32))
    assert np.isfinite(z).all()
    assert np.isfinite(log_det).all()
