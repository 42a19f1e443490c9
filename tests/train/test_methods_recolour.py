"""Recolour: the definition, the meaning of its two settings, few texts, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.errors import FastflowError, UsageError
from fastflow.stages.calibration import Stage, apply, check
from fastflow.stages.vectors import cosine
from fastflow.train.data.moments import measure_moments
from fastflow.train.methods.chain import fit_chain
from fastflow.train.methods.closed_forms import fit_whiten
from fastflow.train.methods.loop import Schedule, Training
from fastflow.train.methods.names import Method, complete_chain, parse_method
from fastflow.train.methods.recolour import fit_recolour, measure_joint
from fastflow.train.options import DEFAULTS

SHAPE = {"levels": 2, "depth": 2, "width": 8, "coupling": "additive", "permutation": "reversal"}


def embeddings(count: int = 600, dim: int = 16, seed: int = 0) -> np.ndarray:
    """Correlated, of unequal scale, skewed, and far from the origin, as pooled embeddings are."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(dim, dim)))[0] * np.geomspace(3, 0.1, dim)
    return (rng.gumbel(size=(count, dim)) @ axes.T + rng.normal(size=dim)).astype(np.float32)


def fitted(pooled: np.ndarray, method: str = "flow,recolour", **colour: float) -> list[Stage]:
    given = DEFAULTS.colour | {"demoted": 0} | colour
    return fit_chain(parse_method(method), pooled, SHAPE, Training(Schedule(batch_size=16)), given).stages


def wide(stages: list[Stage], x: np.ndarray) -> np.ndarray:
    return np.asarray(apply([stage.astype(np.float64) for stage in stages], x.astype(np.float64)))


@pytest.mark.parametrize(("spectrum", "count"), [(0.0, 600), (0.25, 600), (0.5, 600), (1.0, 600), (0.5, 31)])
def test_it_is_the_equation(spectrum, count):
    """With a ridge if there are fewer texts than twice the dimensions."""
    pooled = embeddings(count)
    flow, stage = fitted(pooled, spectrum=spectrum, mean_share=0.3)
    x, z = pooled.astype(np.float64), wide([flow], pooled)
    cross = (x - x.mean(0)).T @ (z - z.mean(0)) / len(x)
    own = np.cov(z.T, bias=True)
    own += np.eye(16) * (1e-3 * np.trace(own) / 16 if count < 32 else 0)
    white = np.linalg.inv(np.linalg.cholesky(own))
    u, s, vt = np.linalg.svd(cross @ white.T)
    centred = (z - z.mean(0)) @ white.T @ vt.T * s ** (1 - spectrum)
    m = (u.T @ x.mean(0)) * s**-spectrum
    m *= np.sqrt(0.3 / 0.7 * np.square(centred).sum(1).mean()) / np.linalg.norm(m)
    assert np.abs(cosine(centred + m, centred + m) - cosine(y := wide([flow, stage], pooled), y)).max() < 1e-9


def test_behind_a_whitening_no_equalisation_gives_the_embedding_back_and_full_one_the_whitening():
    """The family without a flow is soft whitening: U L^(-g/2) U^T of the covariance, up to a rotation."""
    pooled = embeddings()
    x = pooled.astype(np.float64)
    for spectrum, same in ((0, x - x.mean(0)), (1, wide([fit_whiten(measure_moments(x))], pooled))):
        y = wide(fitted(pooled, "whiten,recolour", spectrum=spectrum, mean_share=0), pooled)
        assert np.abs(cosine(y, y) - cosine(same, same)).max() < 1e-9


@settings(deadline=None)
@given(share=st.floats(0, 0.95), spectrum=st.floats(0, 1))
def test_mean_share_is_the_average_cosine_of_unrelated_texts(share, spectrum):
    """Exactly: |m|^2 over the mean squared length; what the average cosine is where lengths do not vary."""
    pooled = embeddings(200)
    y = wide(fitted(pooled, "whiten,recolour", spectrum=spectrum, mean_share=share), pooled)
    assert np.square(y.mean(axis=0)).sum() / np.square(y).sum(axis=1).mean() == pytest.approx(share, abs=1e-9)


@pytest.mark.slow
def test_dimensions_come_leading_first_so_that_a_cut_keeps_the_most():
    y = wide(fitted(pooled := embeddings(), spectrum=0.25), pooled)
    deviation = y.std(axis=0)
    assert deviation[0] > 2 * deviation[-1]
    assert np.corrcoef(deviation, np.arange(len(deviation)))[0, 1] < -0.9


def test_demoted_directions_count_like_the_last_and_stand_behind_it():
    pooled = embeddings()
    plain = wide(fitted(pooled, "whiten,recolour", spectrum=0.25, mean_share=0.0), pooled)
    y = wide(fitted(pooled, "whiten,recolour", spectrum=0.25, mean_share=0.3, demoted=2), pooled)
    deviation = y.std(axis=0)
    assert deviation[-2:] == pytest.approx(deviation[-3], rel=1e-6)
    assert np.abs((y - y.mean(0))[:, :-2] - plain[:, 2:]).max() < 1e-9
    assert np.abs(y.mean(axis=0)[-2:]).max() < 1e-9
    assert np.square(y.mean(axis=0)).sum() / np.square(y).sum(axis=1).mean() == pytest.approx(0.3, abs=1e-9)
    with pytest.raises(FastflowError, match=r"16 of 16 directions cannot be demoted; use a smaller --demoted$"):
        fitted(pooled, "whiten,recolour", demoted=16)


def test_moments_that_are_counted_as_fewer_rows_weigh_as_those():
    one, other = embeddings(200), embeddings(90, seed=1) + 3
    light = measure_moments(one).count_as(45).merge(measure_moments(other))
    thin = measure_moments(np.repeat(one, 9, axis=0)).merge(measure_moments(np.repeat(other, 40, axis=0)))
    assert (light.count, thin.count) == (135, 5400)
    assert np.allclose(light.mean, thin.mean, rtol=1e-9)
    assert np.allclose(light.covariance, thin.covariance, rtol=1e-9, atol=1e-12)
    assert not np.allclose(light.mean, measure_moments(one).merge(measure_moments(other)).mean, rtol=1e-3)


def test_moments_of_parts_merge_to_those_of_the_whole():
    pooled = embeddings()
    stages = [fit_whiten(measure_moments(pooled))]
    parts = measure_joint(stages, pooled[:123]).merge(measure_joint(stages, pooled[123:]))
    whole = measure_joint(stages, pooled)
    one, other = (fit_recolour(m, 16, 0.25, 0.2) for m in (parts, whole))
    for name, array in one.params.items():
        assert np.abs(array - other.params[name]).max() < 1e-9, name


@pytest.mark.parametrize("demoted", [0, 2])
def test_a_corpus_read_once_gives_the_same_stage(demoted):
    pooled = embeddings()
    colour, links = DEFAULTS.colour | {"demoted": demoted}, parse_method("whiten,recolour")
    read = fit_chain(links, pooled[:50], SHAPE, Training(), colour, statistics=measure_moments(pooled)).stages
    for name, array in fitted(pooled, "whiten,recolour", demoted=demoted)[1].params.items():
        assert np.abs(array - read[1].params[name]).max() < 1e-9, name


@pytest.mark.parametrize("count", [33, 40, 64])
def test_few_texts_give_a_finite_map_that_keeps_them_apart(count):
    pooled = embeddings(count, 32)
    y = wide(fitted(pooled), pooled)
    assert np.isfinite(y).all()
    assert cosine(y, y)[~np.eye(count, dtype=bool)].max() < 0.999
    with pytest.raises(FastflowError, match="one and the same embedding"):
        fit_recolour(measure_joint([], np.ones((count, 8), np.float32)), 8, 0.25, 0.2)


def test_directions_that_a_stage_has_removed_stay_removed():
    pooled = embeddings()
    deviation = wide(fitted(pooled, "nullspace:3,recolour", spectrum=0.5, mean_share=0.0), pooled).std(axis=0)
    assert np.isfinite(deviation).all()
    assert deviation[-3:].max() < 1e-3 * deviation[-4]


@pytest.mark.slow
def test_the_latent_is_what_the_flow_gave_before():
    """With --latent nothing follows the flow, whose weights do not depend on what follows."""
    assert complete_chain([Method("flow")], latent=True) == [Method("flow")]
    assert complete_chain([Method("flow")], latent=False) == [Method("flow"), Method("recolour")]
    assert complete_chain([Method("flow"), Method("whiten", 8)], latent=False)[-1] == Method("whiten", 8)
    pooled = embeddings()
    alone, (first, _) = fitted(pooled, "flow"), fitted(pooled)
    assert all(np.array_equal(array, first.params[name]) for name, array in alone[0].params.items())


@pytest.mark.parametrize("method", ["recolour", "recolour,flow", "flow,recolour,whiten:8"])
def test_recolour_comes_last_and_behind_something(method):
    with pytest.raises(UsageError, match="recolour comes last"):
        parse_method(method)


GOOD = {"spectrum": 0.25, "mean_share": 0.2, "demoted": 0}


@pytest.mark.parametrize(
    ("name", "value"),
    [("spectrum", 1.1), ("spectrum", True), ("spectrum", "a"), ("mean_share", 1), ("mean_share", -0.1), ("demoted", 2),
     ("demoted", 0.5)],
)  # fmt: skip
def test_a_saved_share_that_cannot_be_is_named(name, value):
    params = {"mean": np.zeros(2), "matrix": np.eye(2), "shift": np.zeros(2)}
    check([Stage("recolour", GOOD, params)], 2)
    with pytest.raises(FastflowError, match=f"setting {name}"):
        check([Stage("recolour", GOOD | {name: value}, params)], 2)
