"""Token weights: counted in a corpus, kept with a model, and the same mean in every backend."""

import json

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model, verify
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.train.data import token_weights as frequencies
from fastflow.train.data.background import LENGTH, Words, compute_shares, load_english
from fastflow.train.data.embeddings import Embedder, open_encoder
from fastflow.train.data.token_weights import PRIOR, A, compute_sif, count_tokens, measure_perplexity, split_head, weigh

from support.builders import LAYERED, make_model
from support.spoil import change_manifest, spoil_arrays
from support.tolerances import COMPANY, EMBEDDING

BACKENDS = ("reference", "torch", "cpu")


def manifest_of(directory):
    return json.loads((directory / "fastflow.json").read_text())


@given(arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 10**9)).filter(np.any))
def test_the_perplexity_of_counts_is_that_of_scipy(counts):
    assert np.isclose(measure_perplexity(counts), np.exp(scipy.stats.entropy(counts)), rtol=1e-9)


def test_as_many_tokens_as_occur_equally_often_are_the_perplexity():
    assert np.isclose(measure_perplexity(np.array([7, 0, 7, 7])), 3)
    assert measure_perplexity(np.array([0, 5])) == 1


AT_LARGE = np.array([0.5, 0.1, 0.0, 0.0])  # shares in the language


def test_a_weight_falls_with_the_share_of_the_corpus_and_of_the_language():
    counts = np.array([0, 1, 9, 990])
    weights = compute_sif(counts)
    assert weights.dtype == np.float32
    assert np.allclose(weights, A / (A + np.array([0, 0.001, 0.009, 0.99])), rtol=1e-6)
    assert np.array_equal(compute_sif(0 * counts), [1, 1, 1, 1])
    assert np.allclose(compute_sif(counts, a=0.01), 0.01 / np.array([0.01, 0.011, 0.019, 1]))
    share = (counts / 1000 + PRIOR * AT_LARGE) / (1 + PRIOR)
    assert np.allclose(compute_sif(counts, AT_LARGE), A / (A + share), rtol=1e-6)
    assert np.allclose(compute_sif(counts, AT_LARGE, prior=0), weights, rtol=1e-6)
    assert compute_sif(np.array([0, 1, 0, 9]), AT_LARGE)[2] == 1  # of neither
    assert (A, PRIOR) == (5e-4, 20)


@pytest.mark.parametrize("times", [1, 1000])
def test_the_size_of_the_corpus_does_not_count(times):
    counts = np.array([0, 10, 90, 900])
    assert np.allclose(compute_sif(times * counts, AT_LARGE), compute_sif(counts, AT_LARGE), rtol=1e-6)


def test_the_corpus_alone_decides_on_what_the_language_lacks():
    """What the language has is decided by the language, twenty times the corpus."""
    counts, at_large = np.array([500, 500]), np.array([0.0001, 0.0])
    known, foreign = compute_sif(counts, at_large)
    assert foreign == pytest.approx(A / (A + 0.5 / 21), rel=1e-6)
    assert known == pytest.approx(A / (A + (0.5 + 0.002) / 21), rel=1e-6)
    rare = compute_sif(np.array([1, 999_999]), at_large)[0]
    assert rare == pytest.approx(A / (A + 0.002 / 21), rel=1e-2)  # the language's, twenty times the corpus's


def test_a_subjects_words_keep_their_weight(bert, sentences):
    """The language counts twenty times, so that a corpus on one word hardly lowers its weight."""
    encoder = open_encoder(str(bert), "first-last", 64)
    token = Tokenizer(bert, 64)(["singer"]).ids[1]
    corpus = [*sentences, *(f"Singer {i}" for i in range(400))]
    own, mixed = (weigh(encoder, corpus, words).pooling.weights[token] for words in (None, load_english()))
    assert own < 0.01
    assert mixed > 10 * own


def test_the_weights_of_a_corpus_that_is_not_english_are_its_own(bert, sentences):
    encoder = open_encoder(str(bert), "first-last", 64)
    counts = count_tokens(encoder, sentences)
    assert np.array_equal(weigh(encoder, sentences, None).pooling.weights, compute_sif(counts))


def test_a_list_of_words_weighs_them(bert, sentences):
    encoder, tokenize = open_encoder(str(bert), "first-last", 64), Tokenizer(bert, 64)
    words = Words({"cat": 900_000.0, "dog": 100_000.0}, LENGTH)
    cat, dog, tree = tokenize(["cat dog tree"]).ids[1:4]
    weights = weigh(encoder, sentences, words).pooling.weights
    assert weights[cat] < weights[dog] < weights[tree]
    assert np.array_equal(
        weights, compute_sif(count_tokens(encoder, sentences), compute_shares(tokenize, len(weights), words))
    )


def test_a_few_texts_of_one_subject_decide_on_little(bert):
    """The sentences of the language count with them."""
    encoder, words = open_encoder(str(bert), "first-last", 64), load_english()
    token, corpus = Tokenizer(bert, 64)(["singer"]).ids[1], [f"Singer {i}" for i in range(400)]
    alone, beside = (
        weigh(encoder, corpus, each).pooling.weights[token] for each in (words._replace(sentences=()), words)
    )
    assert beside > 2 * alone


def test_every_token_is_counted(bert, sentences, monkeypatch):
    encoder = open_encoder(str(bert), "first-last", 64)
    tokenize = Tokenizer(bert, 64)
    size = len(tokenize._tokenizer.get_vocab())
    counts = np.bincount(tokenize([*sentences, *load_english().sentences]).ids, minlength=size)
    expected = compute_sif(counts, compute_shares(tokenize, size, load_english()))
    assert np.array_equal(weigh(encoder, sentences, load_english()).pooling.weights[: len(expected)], expected)
    monkeypatch.setattr(frequencies, "WINDOW", 37)
    assert np.array_equal(weigh(encoder, sentences, load_english()).pooling.weights[: len(expected)], expected)
    assert encoder.pooling.weights is None


def test_a_corpus_read_once_is_weighed_by_its_first_texts(sentences, monkeypatch):
    monkeypatch.setattr(frequencies, "HEAD", 50)
    head, texts = split_head(iter(sentences))
    assert head == sentences[:50]
    assert list(texts) == list(sentences)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_agree_on_the_weighted_mean(weighted_model, bert, sentences, backend):
    frozen = weigh(open_encoder(str(bert), LAYERED, 64), sentences, load_english())
    expected = Embedder(frozen, "cpu")(sentences)
    plain = Embedder(open_encoder(str(bert), LAYERED, 64), "cpu")(sentences)
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
        load_model(made).pooling.weights,
        weigh(open_encoder(str(bert), LAYERED, 64), sentences, load_english()).pooling.weights,
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
    ("options", "mode"), [((), "weighted-mean"), (("--token-weights", "none"), "mean"), (("--pooling", "cls"), "cls")]
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
