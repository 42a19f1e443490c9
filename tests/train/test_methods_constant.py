"""Constant channels and dependent channels: what every calibration makes of them, and the sentence that names them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastflow
from fastflow import Runtime
from fastflow.backends.vectors import CpuVectors, ReferenceVectors, TorchVectors
from fastflow.model.kinds import VectorModel
from fastflow.plan.fold import fold
from fastflow.stages.calibration import apply
from fastflow.stages.density import density_of
from fastflow.train.data.moments import measure_moments
from fastflow.train.methods.chain import fit_chain
from fastflow.train.methods.closed_forms import fit_standardize, fit_whiten
from fastflow.train.methods.constant import mask_constant, name_constant
from fastflow.train.methods.loop import Schedule, Training
from fastflow.train.methods.names import parse_method

DIM, COUNT = 16, 200
ENDS = (CpuVectors, ReferenceVectors, TorchVectors)
METHODS = (
    "whiten",
    "whiten,recolour",
    "standardize",
    "standardize,recolour",
    "nullspace",
    "flow,recolour",
    "whiten,flow",
)
COLOUR = {"spectrum": 0.4, "mean_share": 0.2, "demoted": 2}


@st.composite
def degenerate(draw):
    """(COUNT, DIM) float32 in which some channels are constant, and one may depend on others; the constant channels."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.gumbel(size=(COUNT, DIM)) * np.geomspace(3, 0.1, DIM) + 2 * rng.normal(size=DIM)
    constant = draw(st.lists(st.integers(0, DIM - 3), max_size=4, unique=True))
    x[:, constant] = [draw(st.sampled_from((0.0, 1e-33, 0.1, -7.3, 1e3))) for _ in constant]
    if draw(st.booleans()):
        x[:, DIM - 1] = x[:, : DIM - 1].sum(axis=1) - 3 * x[:, DIM - 2]
    return x.astype(np.float32), sorted(constant)


def fitted(method, x, **shape):
    shape = {"levels": 2, "depth": 2, "width": 8, "coupling": "additive", "permutation": "reversal"} | shape
    return fit_chain(parse_method(method), x, shape, Training(Schedule(batch_size=20)), COLOUR)


@settings(deadline=None, max_examples=25)
@given(drawn=degenerate(), method=st.sampled_from(METHODS), coupling=st.sampled_from(("additive", "affine")))
def test_every_method_fits_folds_and_runs_the_same_on_every_backend(drawn, method, coupling):
    x, constant = drawn
    stages = [stage.astype(np.float32) for stage in fitted(method, x, coupling=coupling).stages]
    exact = np.asarray(apply([stage.astype(np.float64) for stage in stages], x.astype(np.float64)))
    assert exact.shape == (COUNT, DIM)
    size = np.abs(exact).max()
    assert np.isfinite(exact).all()
    assert size < 1e3
    assert all(np.isfinite(array).all() for plan in fold(stages, DIM) for array in plan.arrays().values())
    for kind in ENDS:
        found = kind(VectorModel(x, DIM, tuple(stages), ""), "float32", "cpu", None).calibrate(x)
        assert np.abs(found - exact).max() <= 1e-3 * size, kind
    spread = np.sort(exact.std(axis=0))
    assert spread[: len(constant)].max(initial=0) <= 1e-4 * spread[-1]


@settings(deadline=None)
@given(drawn=degenerate())
def test_whitening_is_the_identity_on_the_directions_that_there_are(drawn):
    x, _ = drawn
    wide = x.astype(np.float64)
    rank = np.linalg.matrix_rank((wide - wide.mean(0)) / np.maximum(wide.std(0), 1e-9), tol=1e-3)
    z = np.asarray(apply([fit_whiten(measure_moments(wide))], wide))
    assert np.abs(np.cov(z.T, bias=True) - np.diag(np.arange(DIM) < rank)).max() <= 1e-6


@settings(deadline=None)
@given(drawn=degenerate())
def test_standardize_only_centres_a_constant_channel(drawn):
    x, constant = drawn
    stage = fit_standardize(measure_moments(x))
    assert np.flatnonzero(mask_constant(x.mean(0, dtype=float), x.var(0, dtype=float))).tolist() == constant
    assert (stage.params["deviation"][constant] == 1).all()
    assert np.abs(np.asarray(apply([stage], x.astype(np.float64)))[:, constant]).max(initial=0) <= 1e-9


@pytest.mark.parametrize("method", ["flow", "whiten,flow"])
@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_a_density_counts_a_constant_channel_as_a_standard_gaussian_however_long_it_trains(method, coupling):
    """So that it is finite, comparable between texts, and falls for a text that is not constant there."""
    x = np.random.default_rng(0).gumbel(size=(COUNT, DIM)).astype(np.float32)
    x[:, [3, 12]] = 0.25, -40
    shape = {"levels": 2, "depth": 2, "width": 8, "coupling": coupling, "permutation": "reversal"}
    schedule = Schedule(batch_size=20, epochs=8, lr=1e-2)
    found = fit_chain(parse_method(method), x, shape, Training(schedule))
    stages = [stage.astype(np.float64) for stage in found.stages]
    z = np.asarray(apply(stages, x.astype(np.float64)))
    assert (np.sort(z.std(axis=0))[:2] <= 1e-6).all()
    assert np.isfinite(found.bits).all()
    density = density_of(stages, "m")
    usual = density.log_prob(x.astype(np.float64), stages)
    assert np.ptp(usual) < 1e3
    strange = x[:20].astype(np.float64)
    strange[:, 3] += 5
    moved = density.log_prob(strange, stages) - usual[:20]
    assert np.abs(moved + (12.5 if method == "flow" else 0)).max() <= (1 if coupling == "additive" else 12.4)
    for kind in ENDS:
        close = kind(VectorModel(x, DIM, tuple(s.astype(np.float32) for s in stages), ""), "float32", "cpu", None)
        assert np.abs(close.log_prob(x) - usual).max() <= 1e-4 * np.abs(usual).max()


def test_a_whitening_that_leaves_real_directions_out_has_no_density():
    x = np.random.default_rng(0).normal(size=(COUNT, DIM)).astype(np.float32)
    x[:, 5] = 1
    with pytest.raises(fastflow.FastflowError, match="leaves some out"):
        density_of(fitted("whiten:12,flow", x).stages, "m")


def test_the_sentence():
    assert name_constant(0, 0, 384) == []
    assert name_constant(3, 0, 384) == ["3 of 384 channels are constant in this encoder and stay 0."]
    assert name_constant(0, 1, 256, "vectors") == ["1 of 256 directions is constant in these vectors and stays 0."]


@pytest.mark.slow
def test_the_layers_after_a_layernorm_lie_in_a_hyperplane_which_report_and_card_name(bert, sentences, tmp_path):
    made = fastflow.fit(sentences, bert, method="whiten", pooling="last", token_weights="none", stop="budget")
    dim = made.encoder.dim
    said = f"1 of {dim} directions is constant in this encoder and stays 0."
    assert said in made.report["notes"]
    made.save(tmp_path / "m")
    assert said in (tmp_path / "m" / "README.md").read_text()
    found = Runtime(tmp_path / "m", dtype="float32").encode(sentences)
    assert found.shape == (len(sentences), dim)
    assert not found[:, -1].any()
