"""Closed forms, recolour, and what every method makes of constant channels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastflow
from fastflow import Runtime
from fastflow.backends.cpu import CpuVectors
from fastflow.backends.reference import ReferenceVectors
from fastflow.backends.torch import TorchVectors
from fastflow.errors import CannotFit, FastflowError
from fastflow.model.kinds import VectorModel
from fastflow.plan.fold import fold
from fastflow.stages.calibration import Stage, apply, check, density_of
from fastflow.stages.vectors import cosine
from fastflow.train.data.moments import measure_moments
from fastflow.train.methods.chain import fit_chain
from fastflow.train.methods.closed_forms import fit_closed_form
from fastflow.train.methods.constant import mask_constant, name_constant
from fastflow.train.methods.loop import Schedule, Training
from fastflow.train.methods.names import parse_method
from fastflow.train.methods.recolour import fit_recolour, measure_joint
from fastflow.train.options import DEFAULTS

from support.rows import data

SHAPE = {"levels": 2, "depth": 2, "width": 8, "coupling": "additive", "permutation": "reversal"}


def fit(kind, x, dims=None):
    return fit_closed_form(kind, dims, measure_moments(x))


def test_standardize_has_mean_zero_and_deviation_one():
    z = apply([fit("standardize", x := data())], x)
    assert np.abs(z.mean(axis=0)).max() <= 1e-12
    assert np.abs(z.std(axis=0) - 1).max() <= 1e-12


def test_whitening_makes_the_covariance_the_identity_by_variance():
    x = data()
    values = np.linalg.eigvalsh(np.cov(x, rowvar=False, bias=True))[::-1]
    whole = fit("whiten", x).params["matrix"]
    assert np.abs(np.linalg.norm(whole, axis=0) * np.sqrt(values) - 1).max() <= 1e-9  # eigenvectors over deviations
    for dims in (None, 16, 5, 1):
        stage = fit("whiten", x, dims)
        assert np.array_equal(stage.params["matrix"], whole[:, : dims or 16])
        z = apply([stage], x)
        assert np.abs(z.mean(axis=0)).max() <= 1e-10
        assert np.abs(np.cov(z, rowvar=False, bias=True) - np.eye(dims or 16)).max() <= 1e-10


@pytest.mark.parametrize("remove", [1, 4, 15])
def test_nullspace_removes_the_leading_directions_and_components_keep_the_mean(remove):
    x = data() + 3
    stage, kept = fit("nullspace", x, remove), fit("components", x, remove)
    directions = stage.params["directions"]
    assert np.abs(directions @ directions.T - np.eye(remove)).max() <= 1e-12
    z = apply([stage], x)
    assert np.abs(z.mean(axis=0)).max() <= 1e-10
    assert np.abs(z @ directions.T).max() <= 1e-10 * np.abs(x).max()
    left = np.linalg.svd(z, compute_uv=False)[: 16 - remove]
    expected = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)[remove:]
    assert np.abs(left - expected).max() <= 1e-8 * expected.max()
    assert np.array_equal(directions, kept.params["directions"])
    assert np.abs(apply([kept], x) - (x - x @ directions.T @ directions)).max() <= 1e-10 * np.abs(x).max()


def test_signs_do_not_depend_on_the_solver():
    for matrix in (fit("whiten", data()).params["matrix"], fit("nullspace", data(), 5).params["directions"].T):
        largest = np.abs(matrix).argmax(axis=0)
        assert (matrix[largest, np.arange(matrix.shape[1])] > 0).all()


def test_too_few_texts_are_errors():
    x = data(17)
    x[:, 7] = 5.0
    asked = "whiten: 1 of the 16 directions are constant over the 17 texts, and 16 of them are asked for; use whiten:15"
    for kind, dims, rows, message in (
        ("whiten", None, data(5), "whiten: 5 texts span 4 of the 16 dimensions; use whiten:4 or more texts"),
        ("whiten", None, x[:16], "whiten: 16 texts span 15 of the 16 dimensions; use whiten:15 or more texts"),
        ("whiten", 16, x, asked),
        ("nullspace", 4, data(5), "nullspace: 5 texts span 4 dimensions, and removing 4 leaves nothing"),
        ("components", 4, data(5), "components: 5 texts span 4 dimensions, and removing 4 leaves nothing"),
        ("whiten", None, np.ones((9, 16)), "whiten: 9 texts span 0 of the 16 dimensions; give more texts"),
        ("whiten", None, np.ones((99, 16)), "whiten: 99 texts span 0 of the 16 dimensions; give more texts"),
        ("standardize", None, np.ones((99, 16)), "standardize: every channel is constant over the 99 texts; give"),
    ):
        with pytest.raises(CannotFit, match=message):
            fit(kind, rows, dims)
    whole = fit("whiten", x).params["matrix"]  # one more text than dimensions shows what is constant
    assert not whole[:, 15].any()
    assert np.array_equal(fit("whiten", x, 15).params["matrix"], whole[:, :15])
    with pytest.raises(CannotFit, match="one and the same embedding"):
        fit_recolour(measure_joint([], np.ones((40, 8), np.float32)), 8, 0.25, 0.2)


def embeddings(count=600, dim=16, seed=0):
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(dim, dim)))[0] * np.geomspace(3, 0.1, dim)
    return (rng.gumbel(size=(count, dim)) @ axes.T + rng.normal(size=dim)).astype(np.float32)


def fit_stages(pooled, method="whiten,recolour", **colour):
    given = DEFAULTS.colour | {"demoted": 0} | colour
    return fit_chain(parse_method(method), pooled, SHAPE, Training(Schedule(batch_size=16)), given).stages


def wide(stages, x):
    return np.asarray(apply([stage.astype(np.float64) for stage in stages], x.astype(np.float64)))


def share_of_mean(y):
    return np.square(y.mean(axis=0)).sum() / np.square(y).sum(axis=1).mean()


@pytest.mark.parametrize(("spectrum", "count"), [(0.0, 600), (0.25, 600), (0.5, 600), (1.0, 600), (0.5, 31)])
def test_recolour_is_the_equation(spectrum, count):
    """With a ridge for fewer texts than twice the dimensions."""
    pooled = embeddings(count)
    flow, stage = fit_stages(pooled, "flow,recolour", spectrum=spectrum, mean_share=0.3)
    (alone,) = fit_stages(pooled, "flow")
    assert all(np.array_equal(array, flow.params[name]) for name, array in alone.params.items())
    x, z = pooled.astype(np.float64), wide([flow], pooled)
    cross = (x - x.mean(0)).T @ (z - z.mean(0)) / len(x)
    own = np.cov(z.T, bias=True)
    own += np.eye(16) * (1e-3 * np.trace(own) / 16 if count < 32 else 0)
    white = np.linalg.inv(np.linalg.cholesky(own))
    u, s, vt = np.linalg.svd(cross @ white.T)
    centred = (z - z.mean(0)) @ white.T @ vt.T * s ** (1 - spectrum)
    m = (u.T @ x.mean(0)) * s**-spectrum
    m *= np.sqrt(0.3 / 0.7 * np.square(centred).sum(1).mean()) / np.linalg.norm(m)
    y = wide([flow, stage], pooled)
    assert np.abs(cosine(centred + m, centred + m) - cosine(y, y)).max() < 1e-9
    deviation = y.std(axis=0)
    if spectrum == 0.25:  # leading first, so that a cut keeps the most
        assert deviation[0] > 2 * deviation[-1]
        assert np.corrcoef(deviation, np.arange(16))[0, 1] < -0.9


def test_after_a_whitening_no_equalisation_gives_the_embedding_back_and_full_one_the_whitening():
    """The family without a flow is soft whitening: U L^(-g/2) U^T of the covariance, up to a rotation."""
    pooled = embeddings()
    x = pooled.astype(np.float64)
    for spectrum, same in ((0, x - x.mean(0)), (1, wide([fit("whiten", x)], pooled))):
        y = wide(fit_stages(pooled, spectrum=spectrum, mean_share=0), pooled)
        assert np.abs(cosine(y, y) - cosine(same, same)).max() < 1e-9


@settings(deadline=None)
@given(share=st.floats(0, 0.95), spectrum=st.floats(0, 1))
def test_mean_share_is_the_average_cosine_of_unrelated_texts(share, spectrum):
    pooled = embeddings(200)
    y = wide(fit_stages(pooled, spectrum=spectrum, mean_share=share), pooled)
    assert share_of_mean(y) == pytest.approx(share, abs=1e-9)


def test_demoted_directions_count_like_the_last_and_come_after_it():
    pooled = embeddings()
    plain = wide(fit_stages(pooled, spectrum=0.25, mean_share=0.0), pooled)
    y = wide(fit_stages(pooled, spectrum=0.25, mean_share=0.3, demoted=2), pooled)
    deviation = y.std(axis=0)
    assert deviation[-2:] == pytest.approx(deviation[-3], rel=1e-6)
    assert np.abs((y - y.mean(0))[:, :-2] - plain[:, 2:]).max() < 1e-9
    assert np.abs(y.mean(axis=0)[-2:]).max() < 1e-9
    assert share_of_mean(y) == pytest.approx(0.3, abs=1e-9)
    with pytest.raises(FastflowError, match=r"16 of 16 directions cannot be demoted; use a smaller --demoted$"):
        fit_stages(pooled, demoted=16)


def test_moments_that_are_counted_as_fewer_rows_weigh_as_fewer():
    one, other = embeddings(200), embeddings(90, seed=1) + 3
    light = measure_moments(one).count_as(45).merge(measure_moments(other))
    thin = measure_moments(np.repeat(one, 9, axis=0)).merge(measure_moments(np.repeat(other, 40, axis=0)))
    assert (light.count, thin.count) == (135, 5400)
    assert np.allclose(light.mean, thin.mean, rtol=1e-9)
    assert np.allclose(light.covariance, thin.covariance, rtol=1e-9, atol=1e-12)
    assert not np.allclose(light.mean, measure_moments(one).merge(measure_moments(other)).mean, rtol=1e-3)


@pytest.mark.parametrize("count", [33, 40, 64])
def test_few_texts_give_a_finite_map_that_keeps_them_apart(count):
    pooled = embeddings(count, 32)
    y = wide(fit_stages(pooled, "flow,recolour"), pooled)
    assert np.isfinite(y).all()
    assert cosine(y, y)[~np.eye(count, dtype=bool)].max() < 0.999


def test_directions_that_a_stage_has_removed_stay_removed():
    pooled = embeddings()
    deviation = wide(fit_stages(pooled, "nullspace:3,recolour", spectrum=0.5, mean_share=0.0), pooled).std(axis=0)
    assert np.isfinite(deviation).all()
    assert deviation[-3:].max() < 1e-3 * deviation[-4]


def test_a_saved_share_that_cannot_be_is_named():
    params = {"mean": np.zeros(2), "matrix": np.eye(2), "shift": np.zeros(2)}
    good = {"spectrum": 0.25, "mean_share": 0.2, "demoted": 0}
    check([Stage("recolour", good, params)], 2)
    bad = {"spectrum": (1.1, True, "a"), "mean_share": (1, -0.1), "demoted": (2, 0.5)}
    for name, value in ((name, value) for name, values in bad.items() for value in values):
        with pytest.raises(FastflowError, match=f"setting {name}"):
            check([Stage("recolour", good | {name: value}, params)], 2)


DIM, COUNT = 16, 200
ENDS = (CpuVectors, ReferenceVectors, TorchVectors)
METHODS = ("whiten", "whiten,recolour", "standardize", "standardize,recolour", "nullspace", "flow,recolour")


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


def fit_degenerate(method, x, coupling="additive", **schedule):
    colour = {"spectrum": 0.4, "mean_share": 0.2, "demoted": 2}
    training = Training(Schedule(batch_size=20, **schedule))
    return fit_chain(parse_method(method), x, SHAPE | {"coupling": coupling}, training, colour)


def open_vectors(kind, stages, x):
    single = tuple(stage.astype(np.float32) for stage in stages)
    return kind(VectorModel(x, DIM, single, ""), "float32", "cpu", None)


@settings(deadline=None, max_examples=25)
@given(
    drawn=degenerate(),
    method=st.sampled_from((*METHODS, "whiten,flow")),
    coupling=st.sampled_from(("additive", "affine")),
)
def test_every_method_fits_folds_and_runs_the_same_on_every_backend(drawn, method, coupling):
    x, constant = drawn
    stages = [stage.astype(np.float32) for stage in fit_degenerate(method, x, coupling).stages]
    exact = wide(stages, x)
    assert exact.shape == (COUNT, DIM)
    size = np.abs(exact).max()
    assert np.isfinite(exact).all()
    assert size < 1e3
    assert all(np.isfinite(array).all() for plan in fold(stages, DIM) for array in plan.arrays().values())
    for kind in ENDS:
        assert np.abs(open_vectors(kind, stages, x).calibrate(x) - exact).max() <= 1e-3 * size, kind
    spread = np.sort(exact.std(axis=0))
    assert spread[: len(constant)].max(initial=0) <= 1e-4 * spread[-1]


@settings(deadline=None)
@given(drawn=degenerate())
def test_closed_forms_leave_constant_directions_at_0(drawn):
    x, constant = drawn
    x = x.astype(np.float64)
    rank = np.linalg.matrix_rank((x - x.mean(0)) / np.maximum(x.std(0), 1e-9), tol=1e-3)
    assert np.abs(np.cov(wide([fit("whiten", x)], x).T, bias=True) - np.diag(np.arange(DIM) < rank)).max() <= 1e-6
    stage = fit("standardize", x)
    assert np.flatnonzero(mask_constant(x.mean(0), x.var(0))).tolist() == constant
    assert (stage.params["deviation"][constant] == 1).all()
    assert np.abs(wide([stage], x)[:, constant]).max(initial=0) <= 1e-9


@pytest.mark.parametrize("method", ["flow", "whiten,flow"])
@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_a_density_counts_a_constant_channel_as_a_standard_gaussian_however_long_it_trains(method, coupling):
    x = np.random.default_rng(0).gumbel(size=(COUNT, DIM)).astype(np.float32)
    x[:, [3, 12]] = 0.25, -40
    found = fit_degenerate(method, x, coupling, epochs=8, lr=1e-2)
    assert (np.sort(wide(found.stages, x).std(axis=0))[:2] <= 1e-6).all()
    assert np.isfinite(found.bits).all()
    stages = [stage.astype(np.float64) for stage in found.stages]
    density = density_of(stages, "m")
    usual = density.log_prob(x.astype(np.float64), stages)
    assert np.ptp(usual) < 1e3
    strange = x[:20].astype(np.float64)
    strange[:, 3] += 5
    moved = density.log_prob(strange, stages) - usual[:20]
    assert np.abs(moved + (12.5 if method == "flow" else 0)).max() <= (1 if coupling == "additive" else 12.4)
    for kind in ENDS:
        assert np.abs(open_vectors(kind, stages, x).log_prob(x) - usual).max() <= 1e-4 * np.abs(usual).max()
    with pytest.raises(FastflowError, match="leaves some out"):
        density_of(fit_degenerate("whiten:12,flow", x).stages, "m")


@pytest.mark.slow
def test_the_layers_after_a_layernorm_lie_in_a_hyperplane_which_report_and_card_name(bert, sentences, tmp_path):
    assert name_constant(0, 0, 384) == []
    assert name_constant(3, 0, 384) == ["3 of 384 channels are constant in this encoder and stay 0."]
    made = fastflow.fit(sentences, bert, method="whiten", pooling="last", token_weights="none", stop="budget")
    dim = made.encoder.dim
    said = f"1 of {dim} directions is constant in this encoder and stays 0."
    assert said in made.report["notes"]
    made.save(tmp_path / "m")
    assert said in (tmp_path / "m" / "README.md").read_text()
    found = Runtime(tmp_path / "m", dtype="float32").encode(sentences)
    assert found.shape == (len(sentences), dim)
    assert not found[:, -1].any()
