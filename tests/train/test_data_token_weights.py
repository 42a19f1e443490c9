"""Token weights: counted in a corpus, kept with a model, and the same mean in every backend."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.kernels.encoder import reference
from fastflow.model.artifact import load_model, verify
from fastflow.model.tokens import Tokenizer
from fastflow.train.data import token_weights as frequencies
from fastflow.train.data.background import background
from fastflow.train.data.embeddings import Embedder, cache_key, open_encoder
from fastflow.train.data.token_weights import NARROW, PRIOR, sif_weights, weigh, weigh_by_first
from fastflow.train.options import POOLING

from support.builders import make_model
from support.spoil import change_manifest, rehash
from support.tolerances import COMPANY, EMBEDDING

BACKENDS = ("reference", "torch", "cpu")


def manifest_of(directory):
    return json.loads((directory / "fastflow.json").read_text())


NOTHING = np.zeros(4)  # known of English at large


def test_a_weight_falls_with_the_share_of_the_corpus():
    weights = sif_weights(np.array([0, 1, 9, 990]), NOTHING, size=0)
    assert weights.dtype == np.float32
    assert np.allclose(weights, [1, 0.001 / 0.002, 0.001 / 0.010, 0.001 / 0.991], rtol=1e-6)
    assert np.array_equal(sif_weights(np.zeros(4, np.int64), NOTHING, size=0), [1, 1, 1, 1])
    assert np.allclose(
        sif_weights(np.array([0, 1, 9, 990]), NOTHING, 0, a=0.01), 0.01 / np.array([0.01, 0.011, 0.019, 1])
    )


def test_the_background_counts_as_so_many_tokens():
    counts, prior = np.array([0, 10, 0, 990]), np.array([0.5, 0.1, 0.0, 0.0])
    share = (counts + 3000 * prior) / 4000
    assert np.allclose(sif_weights(counts, prior, size=3000), 0.001 / (0.001 + share), rtol=1e-6)
    assert sif_weights(counts, prior)[2] == 1  # of neither


@pytest.mark.parametrize(
    ("tokens", "size"), [(100, 50_100_000), (1000, 5_100_000), (50_000, 200_000), (10**8, 100_050)]
)
def test_the_smaller_the_corpus_the_larger_the_background(tokens, size):
    counts, prior = np.array([0, 1, 0, 9]) * (tokens // 10), np.array([0.5, 0.1, 0.0, 0.0])
    assert np.array_equal(sif_weights(counts, prior), sif_weights(counts, prior, size=size))
    assert size == PRIOR * (1 + NARROW / tokens)


@pytest.mark.parametrize(
    ("tokens", "a"), [(1, 1e-3), (50_000, 1e-3), (100_000, 5e-4), (160_000, 50 / 160_000), (10**6, 3e-4), (10**9, 3e-4)]
)
def test_the_constant_falls_with_the_corpus_within_its_bounds(tokens, a):
    counts, prior = np.array([tokens, 0]), np.array([0.5, 0.1])
    assert np.array_equal(sif_weights(counts, prior), sif_weights(counts, prior, a=a))


def test_no_tokens_at_all_have_the_weights_of_english():
    prior = np.array([0.5, 0.1, 0.0])
    found = sif_weights(np.zeros(3, np.int64), prior)
    assert np.allclose(found, 0.001 / (0.001 + prior), rtol=1e-6)


def test_a_small_corpus_has_the_weights_of_english_and_a_large_one_its_own():
    prior, own = np.array([0.05, 0.001, 0.0, 0.2, 0.5]), np.array([0.001, 0.3, 0.2, 0.0, 0.499])
    of_english, of_corpus = (0.001 / (0.001 + share) for share in (prior, own))
    even = (PRIOR + np.sqrt(PRIOR**2 + 4 * PRIOR * NARROW)) / 2  # tokens N with K = N
    small, equal, large = (sif_weights((own * even * size).astype(np.int64), prior) for size in (1e-3, 1, 1e4))
    assert np.abs(small - of_english).max() < 0.03
    constant = 50 / even
    assert 0.0003 < constant < 0.001
    assert np.allclose(equal, constant / (constant + (prior + own) / 2), rtol=5e-3)
    assert np.allclose(large, 0.0003 / (0.0003 + own), rtol=0.06)
    assert np.abs(of_english - of_corpus).max() > 0.4


def test_a_corpus_of_few_texts_barely_moves_the_weights(bert, sentences):
    encoder = open_encoder(str(bert), "first-last", 64)
    tokenize = Tokenizer(bert, 64)
    size = json.loads((bert / "config.json").read_text())["vocab_size"]
    at_large = 0.001 / (0.001 + background(tokenize, size))
    few, more = (weigh(encoder, sentences[:count]).pooling.weights for count in (3, 256))
    assert np.abs(few / at_large - 1).max() < 0.15
    assert np.abs(more / at_large - 1).max() > 2 * np.abs(few / at_large - 1).max()


def test_every_token_is_counted(bert, sentences, monkeypatch):
    encoder = open_encoder(str(bert), "first-last", 64)
    tokenize = Tokenizer(bert, 64)
    size = len(tokenize._tokenizer.get_vocab())
    counts = np.bincount(tokenize(sentences).ids, minlength=size)
    expected = sif_weights(counts, background(tokenize, size))
    assert np.array_equal(weigh(encoder, sentences).pooling.weights[: len(expected)], expected)
    monkeypatch.setattr(frequencies, "WINDOW", 37)
    assert np.array_equal(weigh(encoder, sentences).pooling.weights[: len(expected)], expected)
    assert encoder.pooling.weights is None


def test_a_corpus_read_once_is_weighed_by_its_first_texts(bert, sentences, monkeypatch):
    encoder = open_encoder(str(bert), "first-last", 64)
    monkeypatch.setattr(frequencies, "HEAD", 50)
    found, texts = weigh_by_first(encoder, iter(sentences))
    assert list(texts) == list(sentences)
    assert np.array_equal(found.pooling.weights, weigh(encoder, sentences[:50]).pooling.weights)


def test_the_definition():
    rng = np.random.default_rng(0)
    hidden, weights, offsets = rng.normal(size=(9, 4)), rng.uniform(0.01, 1, 9), np.array([0, 1, 6, 9])
    parts = [slice(0, 1), slice(1, 6), slice(6, 9)]
    expected = [np.average(hidden[part], axis=0, weights=weights[part]) for part in parts]
    assert np.abs(reference.pool_mean(hidden, offsets, weights) - expected).max() <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_agree_on_the_weighted_mean(weighted_model, bert, sentences, backend):
    frozen = weigh(open_encoder(str(bert), POOLING, 64), sentences)
    expected = Embedder(frozen, "cpu")(sentences)
    plain = Embedder(open_encoder(str(bert), POOLING, 64), "cpu")(sentences)
    pooled = Runtime(weighted_model, backend=backend, dtype="float32").pool(sentences)
    scale = np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs((pooled - expected) / scale).max() <= EMBEDDING
    assert np.abs((pooled - plain) / scale).max() > 1e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_text_of_special_tokens_alone_has_a_vector(weighted_model, backend):
    runtime = Runtime(weighted_model, backend=backend, dtype="float32")
    vectors = runtime.encode(["", "a text", ""])
    assert np.isfinite(vectors).all()
    assert np.abs(vectors[0] - vectors[2]).max() <= COMPANY["float32"] * np.abs(vectors).max()


def test_info_and_manifest_say_it(weighted_model):
    """The mode is not one that was known before: a reader that left the weights out would be wrong in silence."""
    assert manifest_of(weighted_model)["pooling"] == {"mode": "weighted-mean", "layers": [0, 1, 3]}
    assert Runtime(weighted_model).info()["pooling"] == "weighted masked mean of layers 0, 1 and 3"
    assert len(verify(weighted_model)) == 3


@pytest.mark.slow
def test_weights_alone_are_kept_too(tmp_path, bert, sentences):
    made = make_model(tmp_path / "m", bert, sentences, "none", weighted=True)
    assert manifest_of(made)["calibration"] == []
    assert np.array_equal(
        load_model(made).pooling.weights, weigh(open_encoder(str(bert), "last", 64), sentences).pooling.weights
    )
    (made / "calibration.safetensors").unlink()
    with pytest.raises(FastflowError, match=r"calibration\.safetensors"):
        load_model(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda w: None, "token_weights is missing"),
        (lambda w: w[:-1], "must be float32 of shape"),
        (lambda w: w.astype(np.float64), "must be float32 of shape"),
        (lambda w: np.where(np.arange(len(w)) == 3, 0, w).astype(np.float32), "must be between 1e-30"),
        (lambda w: np.where(np.arange(len(w)) == 3, np.nan, w).astype(np.float32), "must be between 1e-30"),
    ],
)
def test_weights_that_cannot_be_are_refused(tmp_path, bert, sentences, change, told):
    made = make_model(tmp_path / "m", bert, sentences[:64], "nullspace:1", weighted=True)
    arrays = {k: np.array(v) for k, v in load_file(made / "calibration.safetensors").items()}
    changed = change(arrays.pop("token_weights"))
    save_file(arrays | ({} if changed is None else {"token_weights": changed}), made / "calibration.safetensors")
    with pytest.raises(FastflowError, match=told):
        load_model(rehash(made))


def test_weights_tell_caches_apart(bert, sentences):
    plain = open_encoder(str(bert), "first-last", 64)
    keys = {cache_key(e, sentences) for e in (plain, weigh(plain, sentences), weigh(plain, sentences[:9]))}
    assert len(keys) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ((), "weighted-mean"),
        (("--token-weights", "none"), "mean"),
        (("--pooling", "cls"), "cls"),
        (("--stream", "--method", "whiten:4"), "weighted-mean"),
    ],
)
def test_who_is_weighted(train, tmp_path, options, mode):
    assert train(*options).exit_code == 0
    assert manifest_of(tmp_path / "m")["pooling"]["mode"] == mode


@pytest.mark.slow
def test_a_stream_is_weighted_like_the_corpus(train, tmp_path):
    for name, options in (("a", ()), ("b", ("--stream",))):
        assert train("--method", "nullspace:2", *options, out=tmp_path / name).exit_code == 0
    assert np.array_equal(*(load_model(tmp_path / name).pooling.weights for name in "ab"))


def test_a_forged_mode_needs_its_weights(model_copy):
    with pytest.raises(FastflowError, match="token_weights is missing"):
        load_model(change_manifest(model_copy, pooling={"mode": "weighted-mean", "layers": [1, 3]}))
