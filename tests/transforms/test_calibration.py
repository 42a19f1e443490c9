"""The calibration: its equations and checks, and the log-density of pooled vectors by the change of variables."""

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from fastflow import Runtime
from fastflow.backends.cpu import CpuVectors
from fastflow.backends.reference import ReferenceVectors
from fastflow.backends.torch import TorchVectors
from fastflow.errors import FastflowError, UsageError
from fastflow.model import VectorModel
from fastflow.train.methods.chain import make_flow_stage
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.transforms.calibration import Stage, apply, check, density_of, describe, keeps_mean, output_dim

from support import stages as make
from support.builders import make_model
from support.calibrations import DIM, linear_stages, make_flow, pooled
from support.matrices import make_vector_model, make_vectors


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


def bad_stages():
    flow, (_, nullspace, whiten) = make_flow_stage(make_flow("additive", "random")), linear_stages()
    index = "levels.1.0.permutation.index"

    def spoilt(stage, **change):
        return [Stage(stage.kind, stage.settings, {**stage.params, **change})]

    return [
        (spoilt(flow, **{index: np.zeros(8, np.int64)}), rf"array {index}: is not a permutation"),
        (spoilt(flow, **{index: np.arange(8.0)}), rf"array {index}: unexpected dtype float64"),
        ([Stage("warp")], "unknown calibration 'warp'; known: flow, recolour, whiten, standardize, nullspace"),
        (spoilt(nullspace, directions=np.zeros((2, 5))), r"directions: shape \(2, 5\) does not fit \(None, 16\)"),
        (spoilt(whiten, matrix=np.zeros(DIM)), r"matrix: shape \(16,\) does not fit \(16, None\)"),
        ([whiten, make_flow_stage(Flow(FlowConfig(16, 2, 1, 4)))], r"stage 1 \(flow\)"),
        ([whiten, make_flow_stage(Flow(FlowConfig(16, 3, 1, 4)))], "a flow of 3 levels cannot run on 12 dimensions"),
    ]


@pytest.mark.parametrize(("stages", "message"), bad_stages())
def test_the_check_names_stage_and_array(stages, message):
    check(linear_stages(), DIM)
    with pytest.raises(FastflowError, match=message):
        check(stages, DIM)


# ---- log-density


FLOAT32 = 1e-5  # of the largest log-density: float32 sums
ENDS = (CpuVectors, ReferenceVectors, TorchVectors)
CHAINS = {
    "flow": lambda rng, **o: [make.flow(rng, DIM, **o)],
    "standardize, whiten, flow": lambda rng, **o: [
        make.standardize(rng, DIM), make.whiten(rng, DIM, DIM), make.flow(rng, DIM, **o)
    ],
    "flow, recolour": lambda rng, **o: [make.flow(rng, DIM, **o), make.recolour(rng, DIM)],
    "flow, recolour, flow, nullspace": lambda rng, **o: [
        make.flow(rng, DIM, **o), make.recolour(rng, DIM), make.flow(rng, DIM, **o), make.nullspace(rng, DIM)
    ],
}  # fmt: skip
SHAPES = (
    {"levels": 2, "width": 8},
    {"levels": 2, "width": 8, "coupling": "affine"},
    {"levels": 2, "width": 8, "permutation": "lu"},
    {"levels": 1, "width": 8, "coupling": "affine", "permutation": "lu"},
)


def of(stages) -> VectorModel:
    return VectorModel(Path("m"), DIM, calibration=tuple(stage.astype(np.float32) for stage in stages))


def close(found, exact) -> bool:
    return bool(np.abs(found - exact).max() <= FLOAT32 * np.abs(exact).max())


def by_jacobian(stages, x):
    """log p of the rows of ``x`` from the Jacobian of the chain, whatever the stages say of determinants."""
    tensors = [
        Stage(s.kind, s.settings, {k: torch.from_numpy(np.array(v)) for k, v in s.params.items()}) for s in stages
    ]
    out = []
    for row in torch.from_numpy(x):
        jacobian = torch.autograd.functional.jacobian(lambda v: apply(tensors, v[None])[0], row)
        z = apply(tensors, row[None])[0].numpy()
        out.append(scipy.stats.norm.logpdf(z).sum() + torch.linalg.slogdet(jacobian)[1].item())
    return np.array(out)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: " ".join(map(str, shape.values())))
@pytest.mark.parametrize("chain", CHAINS)
def test_it_is_the_change_of_variables(chain, shape):
    rng = np.random.default_rng(0)
    stages, x = CHAINS[chain](rng, **shape), rng.normal(size=(9, DIM)).astype(np.float32)
    latent = stages[: {"flow, recolour": 1, "flow, recolour, flow, nullspace": 3}.get(chain, len(stages))]
    wide = [stage.astype(np.float32).astype(np.float64) for stage in latent]
    exact = by_jacobian(wide, x.astype(np.float64))
    assert np.ptp(exact) > 1
    assert np.allclose(density_of(wide, "m").log_prob(x.astype(np.float64), wide), exact, rtol=1e-9)


def test_it_integrates_to_one():
    """Importance sampling over a wide Gaussian: a density, whatever its scale."""
    rng = np.random.default_rng(1)
    stages = [make.standardize(rng, 2), make.flow(rng, 2, levels=1, depth=2, width=4, coupling="affine")]
    x, scale = rng.normal(size=(400_000, 2)) * 6, 6.0
    weights = density_of(stages, "m").log_prob(x, stages) - scipy.stats.norm.logpdf(x, scale=scale).sum(axis=1)
    assert abs(np.exp(weights).mean() - 1) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("recoloured", [False, True])
def test_a_runtime_gives_it_for_texts_and_for_pooled_vectors(bert, sentences, tmp_path, backend, recoloured):
    model = make_model(tmp_path / "m", bert, sentences, "flow,recolour" if recoloured else "flow", weighted=True)
    runtime = Runtime(model, backend=backend)
    found = runtime.log_prob(sentences[:50])
    stages = [stage.astype(np.float64) for stage in runtime.session.model.calibration[:1]]
    exact = density_of(stages, "m").log_prob(runtime.pool(sentences[:50]).astype(np.float64), stages)
    assert (found.dtype, found.shape) == (np.float64, (50,))
    assert np.allclose(found, exact, rtol=1e-12), "the density is computed in float64"
    assert np.array_equal(runtime.log_prob(runtime.pool(sentences[:50])), found)
    assert runtime.log_prob([]).shape == (0,)
    assert close(runtime.log_prob(iter(sentences[:7]), batch_size=2), found[:7])
    strange = runtime.log_prob(["9 9 9 9 ! ? 7"])
    assert strange[0] < np.median(found)


@pytest.mark.parametrize("method", ["flow", "flow,recolour"])
def test_a_model_without_an_encoder_takes_vectors(tmp_path, method):
    model = make_vector_model(tmp_path / "m", method, batch_size=32, stop="budget")
    runtime, x = Runtime(model), make_vectors(20, seed=2)
    assert runtime.log_prob(x).shape == (20,)
    assert np.array_equal(runtime.log_prob(x.tolist()), runtime.log_prob(x))
    bad = np.where(np.arange(20)[:, None] == 3, np.float32(np.nan), x)
    for wrong, message in (
        ("a text", r"takes numbers of shape \(B, 32\), not texts"),
        (["a text"], r"takes numbers of shape \(B, 32\), not texts"),
        (x[:, :4], r"takes numbers of shape \(B, 32\); got float32"),
    ):
        with pytest.raises(FastflowError, match=rf"^log_prob {message}"):
            runtime.log_prob(wrong)
    with pytest.raises(FastflowError, match=r"^log_prob: row 3 holds NaN or infinity"):
        runtime.log_prob(bad)


def test_a_density_beyond_the_dtype_names_its_row(model, sentences):
    runtime = Runtime(model, backend="reference", dtype="float64")
    x = runtime.pool(sentences[:5])
    x[2] = 3e38
    assert runtime.log_prob(x)[2] < -1e70
    x[2] = 1e300
    with pytest.raises(FastflowError, match=r"^log_prob: row 2 gives NaN or infinity"):
        runtime.log_prob(x)


def test_a_model_without_a_flow_is_refused_before_its_encoder_runs(bert, monkeypatch):
    runtime = Runtime(bert)
    monkeypatch.setattr(Runtime, "pool", None)
    with pytest.raises(UsageError, match=r"log_prob needs a flow, and the calibration of .* is none: fit one"):
        runtime.log_prob(["a"])
