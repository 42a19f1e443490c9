"""Tokens made and embedded apart give the bits of ``encode``."""

from __future__ import annotations

import gc
import json
import weakref

import numpy as np
import pytest
from tokenizers import Tokenizer

import fastflow
from fastflow.errors import FastflowError, FastflowWarning, UsageError
from fastflow.model.kinds import Prompts
from fastflow.model.static.write import write_static
from fastflow.values import MOST

from support.builders import make_model
from support.static_dirs import model2vec_dir


@pytest.fixture(scope="module")
def rt(model):
    return fastflow.Runtime(model, "cpu")


@pytest.fixture(scope="module")
def flow(rt):
    return rt.session


@pytest.mark.parametrize(("normalize", "dim"), [(False, None), (True, None), (True, 7), (False, 32)])
def test_embed_tokens_is_encode(rt, flow, sentences, normalize, dim):
    found = flow.embed_tokens(flow.tokenize(sentences), normalize, dim)
    assert np.array_equal(found, rt.encode(sentences, normalize_embeddings=normalize, truncate_dim=dim))


def test_the_prompt_goes_before_every_text(rt, flow, sentences):
    found = flow.embed_tokens(flow.tokenize(sentences, "the dog "))
    assert np.array_equal(found, rt.encode(sentences, prompt="the dog "))


@pytest.mark.parametrize("dim", [0, 33])
def test_a_width_that_the_model_lacks_is_refused(flow, dim):
    assert flow.width == 32
    with pytest.raises(UsageError, match="1 to 32"):
        flow.embed_tokens(flow.tokenize(["the dog"]), truncate_dim=dim)


def test_the_tokens_of_a_batch(flow):
    assert flow.backend.batch_tokens >= 1024


KINDS = [("words", "flow"), ("words", "none"), ("words", "whiten:7"), ("first-last", "none")]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def joined(request, tmp_path_factory, bert, sentences):
    """A model by its pooling and calibration, and whether one compiled call can embed with it."""
    pooling, method = request.param
    made = make_model(tmp_path_factory.mktemp("joined") / "m", bert, sentences, method, pooling=pooling)
    return fastflow.Runtime(made, "cpu", backend="cpu"), pooling == "words"


def in_steps(runtime, texts, normalize=False, prompt=""):
    opened = runtime.session
    return opened.embed_tokens(opened.tokenize(texts, prompt), normalize)


def test_one_call_has_the_bits_of_the_steps(joined, sentences):
    runtime, whole = joined
    assert (runtime.session._fused is not None) == whole
    texts = [*sentences[:150], "", "the " * 300]
    want = in_steps(runtime, texts)
    with pytest.warns(FastflowWarning, match="longer than 64 tokens are cut"):
        assert np.array_equal(runtime.encode(texts), want)
    assert runtime.truncated == 1
    assert np.array_equal(runtime.encode(texts[7]), want[7])
    assert np.array_equal(np.stack(runtime.encode(texts[:40], convert_to_numpy=False)), want[:40])
    assert np.array_equal(runtime.encode(texts, normalize_embeddings=True), in_steps(runtime, texts, True))
    assert np.array_equal(runtime.encode(texts, prompt="a dog "), in_steps(runtime, texts, prompt="a dog "))
    for normalize in (False, True):
        want_5 = runtime.session.embed_tokens(runtime.session.tokenize(texts), normalize, 5)
        assert np.array_equal(runtime.encode(texts, normalize_embeddings=normalize, truncate_dim=5), want_5)
    blocks = list(runtime.stream(iter(texts), window=33))
    assert [start for start, _ in blocks] == list(range(0, len(texts), 33))
    assert np.array_equal(np.concatenate([z for _, z in blocks]), want)


@pytest.fixture(scope="module", params=["words", "table"])
def scored(request, tmp_path_factory, bert, sentences):
    """A model without layers whose calibration has a density; the table cuts long texts by characters."""
    folder = tmp_path_factory.mktemp("scored")
    encoder, most = (bert, 64) if request.param == "words" else (model2vec_dir(folder / "table", width=32), None)
    made = make_model(folder / "m", encoder, sentences, pooling="words", max_length=most)
    return fastflow.Runtime(made, "cpu", backend="cpu")


def scored_in_steps(runtime, texts, prompt=""):
    """Embeddings and log-densities by way of the tokens."""
    opened = runtime.session
    pooled = opened.pool_tokens(opened.tokenize(texts, prompt))
    return opened.calibrator.calibrate(pooled), opened.calibrator.log_prob(pooled)


@pytest.mark.parametrize("prompt", ["", "a dog "])
def test_scored_texts_take_one_call_too_with_the_bits_of_the_steps(scored, sentences, prompt, monkeypatch):
    texts, fused = [*sentences[:70], "", "the " * 300], scored.session._fused
    by_steps = int(scored.session.tokenizer.longest < MOST)  # the last window, for its text of 1,200 characters
    want, densities = scored_in_steps(scored, texts, prompt)
    assert np.ptp(densities) > 1
    calls = []
    monkeypatch.setattr(scored.session, "_fused", lambda *given: calls.append(len(given[0])) or fused(*given))
    blocks = list(scored.stream_with_log_prob(iter(texts), window=33, prompt=prompt))
    assert [start for start, _, _ in blocks] == [0, 33, 66]
    assert calls == [33, 33, 6][: 3 - by_steps]
    assert np.array_equal(np.concatenate([z for _, z, _ in blocks]), want)
    assert np.array_equal(np.concatenate([scores for _, _, scores in blocks]), densities)


@pytest.mark.parametrize("scored", ["words"], indirect=True)
def test_a_prompt_that_is_not_pooled_goes_by_steps(scored, sentences, monkeypatch):
    texts, pooled = sentences[:9], scored.encode(sentences[:9], prompt="a dog ")
    monkeypatch.setattr(type(scored.session.model), "prompts", Prompts(pooled=False))
    found = scored.encode(texts, prompt="a dog ")
    assert np.array_equal(found, in_steps(scored, texts, prompt="a dog "))
    assert (found != pooled).any(axis=1).all()


def test_errors_of_one_call_name_the_text(joined):
    runtime, _ = joined
    with pytest.raises(FastflowError, match="holds half a surrogate pair"):
        runtime.encode(["the dog", "\ud800"])
    with pytest.raises(FastflowError, match="text 1 is int"):
        runtime.encode(["the dog", 5])
    with pytest.raises(UsageError, match="ranges"):
        runtime.encode(["the dog"], ranges=np.ones((2, 3)))
    assert runtime.encode([]).shape == (0, runtime.dim)


@pytest.mark.slow
def test_a_closed_model_embeds_no_text_in_one_call(tmp_path, bert, sentences):
    runtime = fastflow.Runtime(make_model(tmp_path / "m", bert, sentences, "none", pooling="words"), backend="cpu")
    call = weakref.ref(runtime.session._fused)
    runtime.close()
    gc.collect()
    assert call() is None, "the weights are freed"
    with pytest.raises(FastflowError, match="closed"):
        runtime.encode("the dog")


def test_a_table_of_model2vec_is_cut_by_characters_before_the_call(tmp_path, bert):
    """model2vec cuts a long text by characters, and leaves out unknown tokens after it cuts by tokens."""
    directory = tmp_path / "static"
    tokenizer = bert / "tokenizer.json"
    count = len(json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"])
    write_static(
        directory,
        Tokenizer.from_file(str(tokenizer)),
        np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32),
    )
    runtime = fastflow.Runtime(directory, backend="cpu")
    limit = runtime.session.tokenizer.longest
    texts = ["the dog", "", "z" * limit, "the dog " * limit, "[UNK] the", "日本"]
    assert runtime.session._fused is not None
    assert np.array_equal(runtime.encode(texts), in_steps(runtime, texts))
    assert runtime.truncated == 1
