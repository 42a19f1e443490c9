"""Token weights: counted in a corpus, kept with a model, and the same mean in every backend."""

import json

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model, verify
from fastflow.model.tokens import Tokenizer
from fastflow.train.data import token_weights as frequencies
from fastflow.train.data.background import background
from fastflow.train.data.embeddings import Embedder, open_encoder
from fastflow.train.data.token_weights import NARROW, PRIOR, sif_weights, weigh, weigh_by_first
from fastflow.train.options import POOLING

from support.builders import make_model
from support.spoil import change_manifest, spoil_arrays
from support.tolerances import COMPANY, EMBEDDING

BACKENDS = ("reference", "torch", "cpu")


def manifest_of(directory):
    return json.loads((directory / "fastflow.json").read_text())


PRIORS = np.array([0.5, 0.1, 0.0, 0.0])  # shares in English at large


def test_a_weight_falls_with_the_share_of_the_corpus_and_of_english():
    counts, nothing = np.array([0, 1, 9, 990]), np.zeros(4)
    weights = sif_weights(counts, nothing, size=0)
    assert weights.dtype == np.float32
    assert np.allclose(weights, [1, 0.001 / 0.002, 0.001 / 0.010, 0.001 / 0.991], rtol=1e-6)
    assert np.array_equal(sif_weights(0 * counts, nothing, size=0), [1, 1, 1, 1])
    assert np.allclose(sif_weights(counts, nothing, 0, a=0.01), 0.01 / np.array([0.01, 0.011, 0.019, 1]))
    counts = np.array([0, 10, 0, 990])  # to which English at large adds so many tokens
    share = (counts + 3000 * PRIORS) / 4000
    assert np.allclose(sif_weights(counts, PRIORS, size=3000), 0.001 / (0.001 + share), rtol=1e-6)
    assert sif_weights(counts, PRIORS)[2] == 1  # of neither
    assert np.allclose(sif_weights(0 * counts, PRIORS), 0.001 / (0.001 + PRIORS), rtol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "size", "a"),
    [
        (100, 50_100_000, 1e-3),
        (1000, 5_100_000, 1e-3),
        (50_000, 200_000, 1e-3),
        (100_000, 150_000, 5e-4),
        (160_000, 131_250, 50 / 160_000),
        (10**6, 105_000, 3e-4),
        (10**8, 100_050, 3e-4),
    ],
)
def test_the_smaller_the_corpus_the_larger_the_background_and_the_constant(tokens, size, a):
    counts = np.array([0, 1, 0, 9]) * (tokens // 10)
    assert np.array_equal(sif_weights(counts, PRIORS), sif_weights(counts, PRIORS, size=size, a=a))
    assert size == PRIOR * (1 + NARROW / tokens)


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


def test_info_and_manifest_name_the_mode(weighted_model, model_copy):
    """The mode is not one that was known before: a reader that left the weights out would be wrong in silence."""
    assert manifest_of(weighted_model)["pooling"] == {"mode": "weighted-mean", "layers": [0, 1, 3]}
    assert Runtime(weighted_model).info()["pooling"] == "weighted masked mean of layers 0, 1 and 3"
    assert len(verify(weighted_model)) == 3
    with pytest.raises(FastflowError, match="token_weights is missing"):
        load_model(change_manifest(model_copy, pooling={"mode": "weighted-mean", "layers": [1, 3]}))


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


def changed(value):
    return lambda w: np.where(np.arange(len(w)) == 3, value, w).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w[:-1].copy(), "must be float32 of shape"),
        (lambda w: w.astype(np.float64), "must be float32 of shape"),
        (changed(0), "must be between 1e-30"),
        (changed(np.nan), "must be between 1e-30"),
    ],
)
def test_weights_that_cannot_be_are_refused(tmp_path, bert, sentences, change, message):
    made = make_model(tmp_path / "m", bert, sentences[:64], "nullspace:1", weighted=True)
    spoil_arrays(made, lambda arrays: arrays.update(token_weights=change(arrays["token_weights"])))
    with pytest.raises(FastflowError, match=message):
        load_model(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "mode"),
    [((), "weighted-mean"), (("--token-weights", "none"), "mean"), (("--pooling", "cls"), "cls")],
)
def test_who_is_weighted(train, tmp_path, options, mode):
    assert train(*options).exit_code == 0
    assert manifest_of(tmp_path / "m")["pooling"]["mode"] == mode


@pytest.mark.slow
def test_a_stream_is_weighted_like_the_corpus(train, tmp_path):
    for name, options in (("a", ()), ("b", ("--stream",))):
        assert train("--method", "nullspace:2", *options, out=tmp_path / name).exit_code == 0
        assert manifest_of(tmp_path / name)["pooling"]["mode"] == "weighted-mean"
    assert np.array_equal(*(load_model(tmp_path / name).pooling.weights for name in "ab"))
