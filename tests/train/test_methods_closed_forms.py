"""The closed-form calibrations and their streaming statistics, and the methods and chains that name them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.errors import FastflowError, UsageError
from fastflow.evaluation.isotropy import isoscore
from fastflow.stages.calibration import apply, describe
from fastflow.train.data.corpus import corpus_hash
from fastflow.train.data.moments import BLOCK, Moments, moments, read_through
from fastflow.train.methods.chain import check_chain, fit
from fastflow.train.methods.closed_forms import fit_components, fit_nullspace, fit_standardize, fit_whiten
from fastflow.train.methods.loop import Schedule
from fastflow.train.methods.names import Method, parse_method

SHAPE = {"levels": 2, "depth": 2, "width": 8, "coupling": "additive", "permutation": "reversal"}


def data(rows=300, dim=16, seed=0, dtype=np.float64):
    """Correlated, off-centre, with one outlier channel."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, dim)) @ rng.normal(size=(dim, dim)) + rng.normal(size=dim)
    x[:, 3] = 40 * x[:, 3] - 90
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 2, 300, BLOCK, BLOCK + 1])
def test_moments_are_those_of_numpy(rows, dtype):
    x = data(rows, 4, dtype=dtype)
    m = moments(x)
    wide = x.astype(np.float64)
    assert m.count == rows
    assert np.abs(m.mean - wide.mean(axis=0)).max() <= 1e-12 * np.abs(wide).max()
    expected = np.atleast_2d(np.cov(wide, rowvar=False, bias=True)) if rows > 1 else np.zeros((4, 4))
    assert np.abs(m.covariance - expected).max() <= 1e-11 * max(1.0, np.abs(expected).max())


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.booleans(), st.integers(0, 5))
def test_merging_any_split_gives_the_statistics_of_one_pass(sizes, backwards, seed):
    x = data(sum(sizes), 6, seed)
    parts = [Moments(6).update(block) for block in np.split(x, np.cumsum(sizes)[:-1])]
    merged = Moments(6)
    for part in reversed(parts) if backwards else parts:
        merged.merge(part)
    whole = Moments(6).update(x)
    assert merged.count == whole.count == len(x)
    assert np.abs(merged.mean - whole.mean).max() <= 1e-12 * max(1.0, np.abs(x).max(initial=0))
    assert np.abs(merged.scatter - whole.scatter).max() <= 1e-12 * max(1.0, np.abs(whole.scatter).max())


@pytest.mark.parametrize("chain", [["standardize"], ["nullspace"], ["whiten"], ["nullspace", "whiten"]])
def test_statistics_after_a_stage_need_no_second_pass(chain):
    x = data()
    m = moments(x)
    for kind in chain:
        stage = {"standardize": fit_standardize, "nullspace": fit_nullspace}.get(kind, lambda m: fit_whiten(m, 7))(m)
        m, x = m.through(stage), apply([stage], x)
    expected = moments(x)
    assert (m.count, m.mean.shape) == (300, expected.mean.shape)
    assert np.abs(m.mean - expected.mean).max() <= 1e-10 * max(1.0, np.abs(x).max())
    assert np.abs(m.covariance - expected.covariance).max() <= 1e-10 * max(1.0, np.abs(expected.covariance).max())


@pytest.mark.parametrize("rows", [1, 7, 100, 333])
def test_reading_a_corpus_through_in_blocks_gives_the_statistics_of_the_whole(monkeypatch, rows):
    monkeypatch.setattr("fastflow.train.data.moments.BLOCK", 50)
    x = data(rows, 6, dtype=np.float32)
    asked = []

    def embed(texts):
        asked.append(len(texts))
        return x[[int(text) for text in texts]]

    streamed = read_through((str(i) for i in range(rows)), embed, 20, seed=3)
    whole = moments(x)
    assert asked == [min(50, rows - start) for start in range(0, rows, 50)]
    assert streamed.moments.count == rows
    assert np.abs(streamed.moments.mean - whole.mean).max() <= 1e-12 * np.abs(x).max()
    assert np.abs(streamed.moments.scatter - whole.scatter).max() <= 1e-12 * max(1.0, np.abs(whole.scatter).max())
    assert streamed.sha256 == corpus_hash([str(i) for i in range(rows)])
    assert len(streamed.texts) == len(set(streamed.texts)) == min(20, rows)
    assert np.array_equal(streamed.pooled, x[[int(text) for text in streamed.texts]])
    if rows > 100:  # drawn from all of it
        assert max(map(int, streamed.texts)) >= rows // 2


def test_standardize_has_mean_zero_and_deviation_one():
    x = data()
    z = apply([fit_standardize(moments(x))], x)
    assert np.abs(z.mean(axis=0)).max() <= 1e-12
    assert np.abs(z.std(axis=0) - 1).max() <= 1e-12


@pytest.mark.parametrize("dims", [None, 16, 5, 1])
def test_whitening_makes_the_covariance_the_identity(dims):
    x = data()
    z = apply([fit_whiten(moments(x), dims)], x)
    assert z.shape == (300, dims or 16)
    assert np.abs(z.mean(axis=0)).max() <= 1e-10
    assert np.abs(np.cov(z, rowvar=False, bias=True) - np.eye(dims or 16)).max() <= 1e-10


def test_whitening_orders_directions_by_variance():
    x = data()
    values = np.linalg.eigvalsh(np.cov(x, rowvar=False, bias=True))[::-1]
    stage = fit_whiten(moments(x))
    norms = np.linalg.norm(stage.params["matrix"], axis=0)
    assert np.abs(norms * np.sqrt(values) - 1).max() <= 1e-9  # each column is an eigenvector over its deviation
    few = fit_whiten(moments(x), 5)
    assert np.array_equal(few.params["matrix"], stage.params["matrix"][:, :5])


@pytest.mark.parametrize("remove", [1, 4, 15])
def test_nullspace_removes_the_leading_directions(remove):
    x = data()
    stage = fit_nullspace(moments(x), remove)
    directions = stage.params["directions"]
    assert np.abs(directions @ directions.T - np.eye(remove)).max() <= 1e-12
    z = apply([stage], x)
    assert np.abs(z.mean(axis=0)).max() <= 1e-10
    assert np.abs(z @ directions.T).max() <= 1e-10 * np.abs(x).max()
    left = np.linalg.svd(z, compute_uv=False)[: 16 - remove]
    expected = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)[remove:]
    assert np.abs(left - expected).max() <= 1e-8 * expected.max()


@pytest.mark.parametrize("remove", [1, 4])
def test_components_are_removed_and_the_mean_is_kept(remove):
    """Nothing lies along the directions, and all else of a text is as it was, what it shares with all others too."""
    x = data() + 3
    stage = fit_components(moments(x), remove)
    directions = stage.params["directions"]
    assert np.array_equal(directions, fit_nullspace(moments(x), remove).params["directions"])
    z = apply([stage], x)
    assert np.abs(z @ directions.T).max() <= 1e-10 * np.abs(x).max()
    rest = np.linalg.svd(directions)[2][remove:]
    assert np.abs((z - x) @ rest.T).max() <= 1e-10 * np.abs(x).max()
    assert np.linalg.norm(z.mean(axis=0)) > 1


def test_signs_do_not_depend_on_the_solver():
    for matrix in (
        fit_whiten(moments(data())).params["matrix"],
        fit_nullspace(moments(data()), 5).params["directions"].T,
    ):
        largest = np.abs(matrix).argmax(axis=0)
        assert (matrix[largest, np.arange(matrix.shape[1])] > 0).all()


def test_degenerate_corpora_are_errors():
    x = data()
    x[:, 7] = 5.0
    with pytest.raises(FastflowError, match="standardize: channel 7 is constant over the 300 texts; give more text"):
        fit_standardize(moments(x))
    with pytest.raises(
        FastflowError, match="whiten: 300 texts span 15 of the 16 dimensions; use whiten:15 or more text"
    ):
        fit_whiten(moments(x))
    assert apply([fit_whiten(moments(x), 15)], x).shape == (300, 15)
    few = data(5)
    with pytest.raises(FastflowError, match="whiten: 5 texts span 4 of the 16 dimensions; use whiten:4"):
        fit_whiten(moments(few))
    with pytest.raises(FastflowError, match="nullspace: 5 texts span 4 dimensions, and removing 4 leaves nothing"):
        fit_nullspace(moments(few), 4)
    with pytest.raises(FastflowError, match="components: 5 texts span 4 dimensions, and removing 4 leaves nothing"):
        fit_components(moments(few), 4)
    same = np.ones((9, 16))
    with pytest.raises(FastflowError, match="whiten: 9 texts span 0 of the 16 dimensions; give more text"):
        fit_whiten(moments(same))
    with pytest.raises(FastflowError, match="standardize: channel 0 is constant over the 9 texts"):
        fit_standardize(moments(same))


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("none", []),
        ("flow", [Method("flow")]),
        ("whiten:128,flow", [Method("whiten", 128), Method("flow")]),
        ("standardize, nullspace:3", [Method("standardize"), Method("nullspace", 3)]),
        ("nullspace", [Method("nullspace")]),
        ("components:2,whiten", [Method("components", 2), Method("whiten")]),
    ],
)
def test_methods(text, links):
    assert parse_method(text) == parse_method(text.replace(",", "+")) == links


@pytest.mark.parametrize("text", ["", "pca", "flow:3", "standardize:2", "whiten:", "whiten:-1", "flow,", "none,flow"])
def test_unknown_methods_are_wrong_usage(text):
    with pytest.raises(UsageError, match=r"unknown method '.*'; use flow, whiten\[:K\]"):
        parse_method(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("whiten:17", "whiten:17 is out of range: it takes 1 to 16"),
        ("whiten:0", "whiten:0 is out of range"),
        ("nullspace:0", "nullspace:0 is out of range: it takes 1 to 15"),
        ("nullspace:16", "nullspace:16 is out of range"),
        ("components:16", "components:16 is out of range: it takes 1 to 15"),
        ("whiten:8,whiten:9", "whiten:9 is out of range: it takes 1 to 8"),
        ("whiten:6,flow", "needs a width divisible by 4, and the embeddings have 6"),
    ],
)
def test_chains_that_cannot_run_are_wrong_usage_before_anything_is_embedded(text, message):
    with pytest.raises(UsageError, match=message):
        check_chain(parse_method(text), 16, SHAPE)
    with pytest.raises(UsageError, match=message):
        fit(parse_method(text), data(), SHAPE, Schedule(batch_size=50))
    check_chain(parse_method("whiten:8,nullspace:7,flow,whiten:8"), 16, SHAPE)


@pytest.mark.parametrize("text", ["standardize,whiten:8,flow", "nullspace:2,standardize", "flow,whiten", "flow,flow"])
def test_chains_are_fitted_link_after_link(text):
    x = data(400, dtype=np.float32)
    fitted = fit(parse_method(text), x, SHAPE, Schedule(batch_size=50, lr=1e-3))
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
