"""Methods by name, their chains, closed forms, recolour, and what every method makes of constant channels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastflow
from fastflow import Runtime
from fastflow.backends.cpu import CpuVectors
from fastflow.backends.reference import ReferenceVectors
from fastflow.backends.torch import TorchVectors
from fastflow.errors import CannotFit, FastflowError, UsageError, missing_extra
from fastflow.evaluation.analyses import isoscore
from fastflow.model import VectorModel
from fastflow.plan import fold
from fastflow.train.data.moments import measure_moments
from fastflow.train.export.summary import write_notes
from fastflow.train.methods import fit_named
from fastflow.train.methods.chain import check_chain, fit_chain
from fastflow.train.methods.closed_forms import fit_closed_form, fit_recolour, mask_constant, measure_joint
from fastflow.train.methods.loop import Schedule, Training
from fastflow.train.options import DEFAULTS, Method, complete_chain, parse_method
from fastflow.transforms.calibration import Stage, apply, check, density_of, describe
from fastflow.transforms.vectors import cosine

from support.rows import data

SHAPE = {"levels": 2, "depth": 2, "width": 8, "coupling": "additive", "permutation": "reversal"}
STEPS = Training(Schedule(batch_size=50))


def test_methods_by_name():
    for text, links in (
        ("none", []),
        ("flow", [Method("flow")]),
        ("whiten:128,flow", [Method("whiten", 128), Method("flow")]),
        ("standardize, nullspace:3", [Method("standardize"), Method("nullspace", 3)]),
        ("components:2,nullspace", [Method("components", 2), Method("nullspace")]),
    ):
        assert parse_method(text) == parse_method(text.replace(",", "+")) == links, text
    for latent, text, whole in ((True, "flow", "flow"), (False, "flow", "flow,recolour"), (False, "flow,whiten", None)):
        assert complete_chain(parse_method(text), latent) == parse_method(whole or text), text
    for said, texts in (
        (r"unknown method '.*'; use flow, whiten\[:K\]", "|pca|flow:3|standardize:2|whiten:|whiten:-1|flow,|none,flow"),
        ("unknown method 'auto'", "auto,flow"),
        ("recolour comes last", "recolour|recolour,flow|flow,recolour,whiten:8"),
    ):
        for text in texts.split("|"):
            with pytest.raises(UsageError, match=said):
                parse_method(text)


@pytest.mark.parametrize("chain", [["standardize"], ["nullspace"], ["whiten"], ["nullspace", "whiten"]])
def test_statistics_after_a_stage_need_no_second_pass(chain):
    x = data()
    m = measure_moments(x)
    for kind in chain:
        stage = fit_closed_form(kind, 7 if kind == "whiten" else None, m)
        m, x = m.push_through(stage), apply([stage], x)
    expected = measure_moments(x)
    assert (m.count, m.mean.shape) == (300, expected.mean.shape)
    assert np.abs(m.mean - expected.mean).max() <= 1e-10 * max(1.0, np.abs(x).max())
    assert np.abs(m.covariance - expected.covariance).max() <= 1e-10 * max(1.0, np.abs(expected.covariance).max())


def test_chains_that_cannot_run_are_wrong_usage_before_anything_is_embedded():
    for text, message in (
        ("whiten:17", "whiten:17 is out of range: it takes 1 to 16"),
        ("whiten:0", "whiten:0 is out of range"),
        ("nullspace:0", "nullspace:0 is out of range: it takes 1 to 15"),
        ("nullspace:16", "nullspace:16 is out of range"),
        ("components:16", "components:16 is out of range: it takes 1 to 15"),
        ("whiten:8,whiten:9", "whiten:9 is out of range: it takes 1 to 8"),
        ("whiten:6,flow", "needs a width divisible by 4, and the embeddings have 6"),
    ):
        for run in (lambda links: check_chain(links, 16, SHAPE), lambda links: fit_chain(links, data(), SHAPE, STEPS)):
            with pytest.raises(UsageError, match=message):
                run(parse_method(text))
    check_chain(parse_method("whiten:8,nullspace:7,flow,whiten:8"), 16, SHAPE)


@pytest.mark.parametrize("text", ["standardize,whiten:8,flow", "nullspace:2,standardize", "flow,whiten", "flow,flow"])
def test_chains_are_fitted_link_after_link(text):
    x = data(400, dtype=np.float32)
    fitted = fit_chain(parse_method(text), x, SHAPE, STEPS)
    kinds = [link.kind for link in parse_method(text)]
    assert [stage.kind for stage in fitted.stages] == kinds
    assert describe(fitted.stages).count("->") == len(kinds) - 1
    assert sorted(fitted.flows) == [i for i, kind in enumerate(kinds) if kind == "flow"]
    assert len(fitted.bits) == kinds.count("flow")
    z = apply([stage.astype(np.float64) for stage in fitted.stages], x.astype(np.float64))
    assert isoscore(z) > isoscore(x)
    if kinds[-1] in ("standardize", "whiten"):
        assert np.abs(z.mean(axis=0)).max() <= 1e-9
        assert np.abs(z.std(axis=0) - 1).max() <= 1e-9


def test_a_flow_starts_with_the_bits_of_independent_gaussians():
    """A constant channel counts as one of deviation 1."""
    x = data(dtype=np.float32)
    x[:, 2] = 7
    fitted = fit_chain(parse_method("flow"), x, SHAPE, Training(Schedule(epochs=0.01, lr=1e-12)))
    (bits,) = fitted.bits
    assert bits[0] == pytest.approx(bits[1], abs=1e-5)


@pytest.mark.parametrize("text", ["whiten,recolour", "standardize,nullspace:2", "flow", "whiten:8,flow,recolour"])
def test_the_background_counts_as_rows_of_the_corpus(text):
    x, y = data(300, dtype=np.float32), data(90, seed=1, dtype=np.float32) + 3
    colour = {"spectrum": 0.1, "mean_share": 0.3, "demoted": 1}
    links = parse_method(text)
    beside = fit_chain(links, x, SHAPE, STEPS, colour, background=y)
    both = fit_chain(links, np.concatenate([x, y]), SHAPE, STEPS, colour)
    assert same_stages(beside, both)
    assert not same_stages(beside, fit_chain(links, x, SHAPE, STEPS, colour))
    assert beside.bits == both.bits


def test_the_background_is_merged_with_statistics_of_the_whole_corpus():
    x, y, links = data(300), data(90, seed=1) + 3, parse_method("whiten,recolour")
    whole = measure_moments(x)
    streamed = fit_chain(links, x[:50], SHAPE, STEPS, statistics=whole, background=y)
    read = fit_chain(links, x, SHAPE, STEPS, background=y)
    assert same_stages(streamed, read, lambda a, b: np.allclose(a, b, rtol=1e-7, atol=1e-9))
    assert whole.count == 300, "the caller's statistics are left as they are"


def same_stages(one, other, same=np.array_equal):
    pairs = zip(one.stages, other.stages, strict=True)
    return all(same(a.params[name], b.params[name]) for a, b in pairs for name in a.params)


@pytest.mark.slow
def test_closed_forms_are_fitted_without_pytorch(run_python):
    program = """
import sys
sys.modules["torch"] = None
import numpy as np
from fastflow.transforms.calibration import apply
from fastflow.train.methods import fit_named
x = np.random.default_rng(0).normal(size=(50, 6)) * np.arange(1, 7)
assert np.abs(np.cov(apply(fit_named("whiten:3", x), x), rowvar=False, ddof=0) - np.eye(3)).max() <= 1e-10
assert fit_named("raw", x) == []
assert apply(fit_named("nullspace:2", x), x).shape == (50, 6)
try:
    fit_named("flow", x)
except Exception as error:
    print(error)
"""
    done = run_python(program)
    assert done.stdout.startswith(str(missing_extra("train", "torch", "fitting 'flow'"))), done.stderr


def test_fit_named_is_seeded():
    x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    first, again, other = (apply(fit_named("flow", x, seed), x.astype(np.float64)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def fit(kind, x, dims=None):
    return fit_closed_form(kind, dims, measure_moments(x))


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


def test_a_saved_share_that_cannot_be_is_named():
    params = {"mean": np.zeros(2), "matrix": np.eye(2), "shift": np.zeros(2)}
    good = {"spectrum": 0.25, "mean_share": 0.2, "demoted": 0}
    check([Stage("recolour", good, params)], 2)
    bad = {"spectrum": (1.1, True, "a"), "mean_share": (1, -0.1), "demoted": (2, 0.5)}
    for name, value in ((name, value) for name, values in bad.items() for value in values):
        with pytest.raises(FastflowError, match=f"setting {name}"):
            check([Stage("recolour", good | {name: value}, params)], 2)


DIM, COUNT = 16, 200
ENDS, COUPLINGS = (CpuVectors, ReferenceVectors, TorchVectors), ("additive", "affine")
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
    return kind(VectorModel(x, DIM, calibration=single), "float32", "cpu", None)


@settings(deadline=None, max_examples=25)
@given(drawn=degenerate(), method=st.sampled_from((*METHODS, "whiten,flow")), coupling=st.sampled_from(COUPLINGS))
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
@pytest.mark.parametrize("coupling", COUPLINGS)
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
    with pytest.raises(FastflowError, match="leaves some out"):
        density_of(fit_degenerate("whiten:12,flow", x).stages, "m")


@pytest.mark.slow
def test_the_layers_after_a_layernorm_lie_in_a_hyperplane_which_report_and_card_name(bert, sentences, tmp_path):
    measured = {"isotropy": {when: {"mean_cosine": 0.0} for when in ("before", "after")}}
    notes = write_notes(measured | {"constant_channels": (3, 384)}, [Stage("standardize")])
    assert notes == ["3 of 384 channels are constant in this encoder and stay 0."]
    made = fastflow.fit(sentences, bert, method="whiten", pooling="last", token_weights="none", stop="budget")
    dim = made.encoder.dim
    said = f"1 of {dim} directions is constant in this encoder and stays 0."
    assert said in made.report["notes"]
    made.save(tmp_path / "m")
    assert said in (tmp_path / "m" / "README.md").read_text()
    found = Runtime(tmp_path / "m", dtype="float32").encode(sentences)
    assert found.shape == (len(sentences), dim)
    assert not found[:, -1].any()
