"""truncate_dim: the order of directions a model may hold, what it keeps, and that the whole embedding is left alone."""

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.stages.calibration import Stage, apply
from fastflow.stages.truncation import (
    BLOCK,
    SAMPLE,
    Truncation,
    fit_truncation,
    leading_directions,
    read_truncation,
    write_truncation,
)
from fastflow.train.methods.against import fit_named

from support.builders import make_model
from support.commands import make_train
from support.spoil import spoil_arrays

DIM = 32  # of the test encoder
CHAINS = [("flow", {}), ("flow", {"coupling": "affine"}), ("flow", {"permutation": "lu"}), ("whiten:16,flow", {})]


def unit(z):
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def standardized(n, d, seed=0):
    """Correlated vectors (n, d) and the stage that standardizes them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)
    return x, Stage("standardize", {}, {"mean": x.mean(axis=0), "deviation": x.std(axis=0)})


@pytest.mark.parametrize("n", [3, 500, BLOCK + 1, 2 * SAMPLE + 5])
def test_basis_is_the_singular_vectors_of_the_covariance_with_the_pooled_vectors(n):
    x, stage = standardized(n, 6)
    rows = x[:: -(-n // SAMPLE)]
    assert len(rows) <= SAMPLE
    z = apply([stage], rows)
    found = leading_directions([stage], x)
    assert np.abs(found.basis.T @ found.basis - np.eye(6)).max() <= 1e-6
    cross = (z - z.mean(axis=0)).T @ (rows - rows.mean(axis=0)) / len(rows)
    values = np.linalg.svd(cross)[1]
    explained = np.linalg.norm(found.basis.astype(np.float64).T @ cross, axis=1)
    assert np.abs(explained - values).max() <= 1e-5 * values[0]
    assert np.abs(found.deviation - np.sqrt(np.square(z @ found.basis).mean(axis=0))).max() <= 1e-5
    assert (found.basis[np.abs(found.basis).argmax(axis=0), np.arange(6)] > 0).all()


def test_the_leading_direction_varies_most_and_what_is_in_order_gets_no_basis():
    rng = np.random.default_rng(0)
    x = np.outer(rng.normal(size=4000), [2, 1, 0, 0]) + 0.1 * rng.normal(size=(4000, 4))
    found = leading_directions([Stage("nullspace", {}, {"mean": np.zeros(4), "directions": np.zeros((0, 4))})], x)
    assert np.abs(found.basis[:, 0] - np.array([2, 1, 0, 0]) / np.sqrt(5)).max() <= 0.01
    x, stage = standardized(100, 6)
    white = Stage("whiten", {}, {"mean": np.zeros(6), "matrix": np.eye(6)[:, :4]})
    for chain in ([], [stage], [stage, white]):
        assert fit_truncation(chain, x) is None


def test_behind_a_whitening_the_order_is_the_whitenings():
    x, _ = standardized(500, 6)
    (white,) = fit_named("whiten", x)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    found = leading_directions([white, Stage("whiten", {}, {"mean": np.zeros(6), "matrix": turn})], x)
    assert np.abs(np.abs(turn @ found.basis) - np.eye(6)).max() <= 1e-4


@pytest.fixture(scope="module", params=range(len(CHAINS)), ids=[f"{m} {s}" for m, s in CHAINS])
def both(request, tmp_path_factory, bert, sentences):
    """One calibration saved with an order of directions and without."""
    method, settings = CHAINS[request.param]
    folder = tmp_path_factory.mktemp("cut")
    return tuple(
        make_model(folder / f"{ordered}", bert, sentences, method, ordered=ordered, **settings)
        for ordered in (True, False)
    )


def test_the_whole_embedding_is_left_alone(both, backend, sentences):
    ordered, plain = (Runtime(path, backend=backend).encode(sentences[:9]) for path in both)
    assert np.array_equal(ordered, plain)


def test_kept_are_the_leading_directions_on_every_backend(both, backend, sentences):
    held = load_model(both[0]).truncation
    exact = Runtime(both[0], dtype="float64").encode(sentences[:33]) @ held.basis.astype(np.float64)
    rt = Runtime(both[0], backend=backend, dtype="float32")
    assert rt.info()["truncation"] == "leading directions"
    for k in (1, 7, 16, *([DIM] if rt.dim == DIM else [])):
        cut = rt.encode(sentences[:33], truncate_dim=k)
        assert (cut.shape, cut.dtype) == ((33, k), np.float32)
        scale = np.linalg.norm(exact, axis=1).max()
        assert np.abs(cut - exact[:, :k]).max() <= 1e-5 * scale
        short = rt.encode(sentences[:33], truncate_dim=k, normalize_embeddings=True)
        assert np.abs(np.linalg.norm(short, axis=1) - 1).max() <= 1e-5
        assert np.abs(short - unit(cut)).max() <= 1e-6
    assert rt.encode([], truncate_dim=7).shape == (0, 7)


@pytest.mark.parametrize("normalize", [False, True])
def test_all_directions_keep_every_cosine_and_int8_of_a_cut_nearly(both, sentences, normalize):
    rt = Runtime(both[0])

    def encode(dim, **options):
        return rt.encode(sentences, truncate_dim=dim, normalize_embeddings=normalize, **options)

    coarse = encode(12, precision="int8")
    assert coarse.dtype == np.int8
    assert (np.abs(coarse.astype(int)) == 127).mean() <= 0.01
    for one, other, limit in ((encode(None), encode(rt.dim), 1e-5), (encode(12), coarse, 0.05)):
        assert np.abs(rt.similarity(one, one) - rt.similarity(other, other)).max() <= limit


def test_a_model_without_an_order_keeps_its_first_dimensions(both, sentences):
    rt = Runtime(both[1])
    assert rt.info()["truncation"] == "first dimensions, in no order"
    assert np.array_equal(rt.encode(sentences[:5], truncate_dim=7), rt.encode(sentences[:5])[:, :7])


@pytest.mark.slow
def test_training_stores_the_order(tmp_path, bert, corpus):
    train = make_train(bert, corpus, tmp_path)
    common = ("--stop", "budget", "--batch-size", 32, "--max-length", 64)
    leads = "first dimensions, which lead"  # a whitening and recolour order them
    for options, kept in ((("--latent",), "leading directions"), ((), leads), (("--method", "whiten"), leads)):
        out = tmp_path / ("m" + "".join(options))
        assert train(*options, *common, out=out).exit_code == 0
        assert Runtime(out).info()["truncation"] == kept


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update({"truncation.basis": 1.01 * a["truncation.basis"]}), "columns are not orthonormal"),
        (lambda a: a.update({"truncation.basis": a["truncation.basis"][:, :5].copy()}), r"truncation\.basis: must be"),
        (
            lambda a: a.update({"truncation.deviation": a["truncation.deviation"] * np.nan}),
            r"deviation: must be finite",
        ),
        (lambda a: a.pop("truncation.deviation"), r"truncation\.deviation is missing"),
    ],
)
def test_a_damaged_order_is_named(tmp_path, bert, sentences, change, message):
    spoil_arrays(model := make_model(tmp_path / "m", bert, sentences, ordered=True), change)
    with pytest.raises(FastflowError, match=message):
        load_model(model)


def test_arrays_are_checked_against_the_width():
    with pytest.raises(FastflowError, match=r"here, array truncation\.basis: must be finite float32 of shape \(4, 4\)"):
        read_truncation(write_truncation(Truncation(np.eye(3, dtype=np.float32), np.ones(3, np.float32))), 4, "here")
