"""The calibration's equations on NumPy and PyTorch, the Stage that carries them, and the checks on loading."""

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.stages.calibration import Stage, apply, check, describe, keeps_mean, output_dim
from fastflow.train.methods.chain import make_flow_stage
from fastflow.train.methods.flow import Flow, FlowConfig

from support.calibrations import DIM, FLOWS, linear_stages, make_flow, pooled


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_chains_of_any_length_on_no_rows_and_on_one(dtype):
    stages = [stage.astype(dtype) for stage in [*linear_stages()[:2], make_flow_stage(make_flow())]]
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


KEPT = Stage("nullspace", {}, {"mean": np.zeros(DIM), "directions": np.eye(DIM)[:2]})


@pytest.mark.parametrize(
    ("stages", "described", "keeps"),
    [
        (
            [linear_stages()[2], make_flow_stage(make_flow("affine", "lu"))],
            "whiten(12) -> flow(2x3, width 6, affine, lu)",
            False,
        ),
        (linear_stages()[:2], "standardize -> nullspace(3)", False),
        ([KEPT], "components(2)", True),
        ([KEPT, linear_stages()[1]], "components(2) -> nullspace(3)", False),
        ([], "none", True),
    ],
)
def test_stages_describe_themselves(stages, described, keeps):
    assert describe(stages) == described
    assert keeps_mean(stages) == keeps


def test_astype_leaves_the_permutation_whole():
    stage = make_flow_stage(make_flow("additive", "random")).astype(np.float64)
    kinds = {name.endswith("index"): array.dtype for name, array in stage.params.items()}
    assert kinds == {True: np.int64, False: np.float64}


@pytest.mark.parametrize(("coupling", "permutation", "shape"), FLOWS)
def test_sound_stages_pass_the_check(coupling, permutation, shape):
    flow = make_flow_stage(make_flow(coupling, permutation, shape))
    assert check([*linear_stages()[:2], flow], DIM) is None  # or it raises
    assert check(linear_stages(), DIM) is None


def spoilt(stage: Stage, **change) -> Stage:
    return Stage(stage.kind, stage.settings, {**stage.params, **change})


def bad_stages():
    flow, (standardize, nullspace, whiten) = make_flow_stage(make_flow("additive", "random")), linear_stages()
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
        (Stage("warp"), "unknown calibration 'warp'; known: flow, recolour, whiten, standardize, nullspace"),
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
    whiten = linear_stages()[2]
    check([whiten, make_flow_stage(Flow(FlowConfig(12, 2, 1, 4)))], DIM)
    for levels, message in ((2, r"stage 1 \(flow\)"), (3, "a flow of 3 levels cannot run on 12 dimensions")):
        with pytest.raises(FastflowError, match=message):
            check([whiten, make_flow_stage(Flow(FlowConfig(16, levels, 1, 4)))], DIM)
