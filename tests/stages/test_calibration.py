"""The calibration's equations on NumPy and PyTorch, the Stage that carries them, and the checks on loading."""

import itertools

import numpy as np
import pytest
import torch

from fastflow.errors import FastflowError
from fastflow.stages.calibration import Stage, apply, apply_with_log_det, check, describe, keeps_mean, output_dim
from fastflow.train.methods.chain import flow_stage
from fastflow.train.methods.flow import Flow, FlowConfig

DIM = 16
FLOWS = list(itertools.product(("additive", "affine"), ("reversal", "random", "lu"), ((1, 1), (2, 3), (4, 2))))


def make_flow(coupling="additive", permutation="reversal", shape=(2, 3), width=6) -> Flow:
    torch.manual_seed(0)
    flow = Flow(FlowConfig(DIM, *shape, width, coupling, permutation))
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            parameter.add_(
                (0.02 if "log" in name or "lower" in name or "upper" in name else 0.2) * torch.randn_like(parameter)
            )
            if "logscale" in name:
                parameter.mul_(0.3)
    return flow


def pooled(rows: int, dtype=np.float64):
    return np.random.default_rng(rows).normal(0.3, 1.2, (rows, DIM)).astype(dtype)


def linear_stages() -> list[Stage]:
    rng = np.random.default_rng(1)
    directions = np.linalg.qr(rng.normal(size=(DIM, 3)))[0].T
    return [
        Stage("standardize", {}, {"mean": rng.normal(size=DIM), "deviation": rng.uniform(0.5, 2, DIM)}),
        Stage("nullspace", {}, {"mean": rng.normal(size=DIM), "directions": directions}),
        Stage("whiten", {}, {"mean": rng.normal(size=DIM), "matrix": rng.normal(size=(DIM, 12))}),
    ]


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
    }[stage.kind]
    z = apply([stage], x)
    assert np.abs(z - np.stack([expected(row) for row in x])).max() <= 1e-13
    assert np.abs(apply([as_torch(stage)], torch.from_numpy(x)).numpy() - z).max() <= 1e-13


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_chains_of_any_length_on_no_rows_and_on_one(dtype):
    stages = [stage.astype(dtype) for stage in [*linear_stages()[:2], flow_stage(make_flow())]]
    for rows in (0, 1):
        x = pooled(rows, dtype)
        before = x.copy()
        z = apply(stages, x)
        assert (z.shape, z.dtype) == ((rows, DIM), dtype)
        assert np.array_equal(x, before)
    whitened = [*stages, linear_stages()[2].astype(dtype)]
    assert apply(whitened, pooled(0, dtype)).shape == (0, 12)
    assert output_dim(whitened, DIM) == 12
    assert output_dim([], DIM) == DIM
    assert apply([], x) is x


def test_stages_describe_themselves():
    stages = [linear_stages()[2], flow_stage(make_flow("affine", "lu"))]
    assert describe(stages) == "whiten(12) -> flow(2x3, width 6, affine, lu)"
    assert describe(linear_stages()[:2]) == "standardize -> nullspace(3)"
    kept = Stage("nullspace", {}, {"mean": np.zeros(DIM), "directions": np.eye(DIM)[:2]})
    assert describe([kept]) == "components(2)"
    assert [keeps_mean(stages) for stages in ([], [kept], [kept, linear_stages()[1]], stages)] == [
        True,
        True,
        False,
        False,
    ]
    assert describe([]) == "none"


def test_astype_leaves_the_permutation_whole():
    stage = flow_stage(make_flow("additive", "random")).astype(np.float64)
    kinds = {name.endswith("index"): array.dtype for name, array in stage.params.items()}
    assert kinds == {True: np.int64, False: np.float64}


@pytest.mark.parametrize(("coupling", "permutation", "shape"), FLOWS)
def test_sound_stages_pass_the_check(coupling, permutation, shape):
    assert (
        check([*linear_stages()[:2], flow_stage(make_flow(coupling, permutation, shape))], DIM) is None
    )  # or it raises
    assert check(linear_stages(), DIM) is None


def spoilt(stage: Stage, **change) -> Stage:
    return Stage(stage.kind, stage.settings, {**stage.params, **change})


def bad_stages():
    flow, (standardize, nullspace, whiten) = flow_stage(make_flow("additive", "random")), linear_stages()
    name = "levels.0.1.coupling.net.weight1"
    index = "levels.1.0.permutation.index"
    poisoned = flow.params[name].copy()
    poisoned[0, 0] = np.nan
    fewer = {key: array for key, array in flow.params.items() if key != name}
    settings = [{"levels": 5}, {"coupling": "spline"}, {"permutation": "shuffle"}, {"depth": 0}, {"width": 2.0}]
    return [
        (spoilt(flow, **{name: poisoned}), rf"stage 0 \(flow\), array {name}: holds NaN or infinity"),
        (spoilt(flow, **{name: flow.params[name].T}), rf"array {name}: shape \(8, 6\) does not fit \(6, 8\)"),
        (spoilt(flow, **{name: flow.params[name].astype(np.int64)}), rf"array {name}: unexpected dtype int64"),
        (spoilt(flow, **{index: np.zeros(8, np.int64)}), rf"array {index}: is not a permutation"),
        (spoilt(flow, **{index: np.arange(8.0)}), rf"array {index}: unexpected dtype float64"),
        (Stage("flow", flow.settings, fewer), f"arrays missing or unknown: {name}"),
        (spoilt(flow, extra=np.zeros(3)), "arrays missing or unknown: extra"),
        (Stage("warp"), "unknown calibration 'warp'; known: flow, whiten, standardize, nullspace"),
        (spoilt(standardize, deviation=np.full(DIM, np.inf)), r"\(standardize\), array deviation: holds NaN or inf"),
        (spoilt(nullspace, directions=np.zeros((2, 5))), r"directions: shape \(2, 5\) does not fit \(None, 16\)"),
        (spoilt(whiten, matrix=np.zeros(DIM)), r"matrix: shape \(16,\) does not fit \(16, None\)"),
        *((Stage("flow", {**flow.settings, **s}, flow.params), next(iter(s))) for s in settings),
    ]


@pytest.mark.parametrize(("stage", "message"), bad_stages())
def test_the_check_names_stage_and_array(stage, message):
    with pytest.raises(FastflowError, match=message):
        check([stage], DIM)


def test_the_check_follows_the_width_through_the_chain():
    check([linear_stages()[2], flow_stage(Flow(FlowConfig(12, 2, 1, 4)))], DIM)
    with pytest.raises(FastflowError, match=r"stage 1 \(flow\)"):
        check([linear_stages()[2], flow_stage(Flow(FlowConfig(16, 2, 1, 4)))], DIM)
    with pytest.raises(FastflowError, match="a flow of 3 levels cannot run on 12 dimensions"):
        check([linear_stages()[2], flow_stage(Flow(FlowConfig(16, 3, 1, 4)))], DIM)


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
