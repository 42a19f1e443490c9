"""int8 of a model that records no cost of it: measured when it is opened, and refused where it is large."""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_encoder, make_model, make_sentences
from safetensors.torch import load_file, save_file
from sentence_dirs import NORMALIZE, make_directory, pooling

from fastflow import Runtime
from fastflow.backends.precision import EXTREME, LEAST_INT8, SENTENCES, SHORT, Streamed, trial
from fastflow.backends.reference import ReferenceBackend
from fastflow.errors import UsageError
from fastflow.model.architecture import encoder_shape, read_config
from fastflow.model.artifact import load_model
from fastflow.model.weights import load_weights


def measured(runtime):
    return [detail for detail in runtime.info()["details"] if detail.startswith("int8: least cosine to float32")]


@pytest.fixture(scope="module")
def outlier(tmp_path_factory):
    """An encoder with a large number in every operand of two products, which nothing reads: the rest rounds to 0."""
    path = make_encoder(tmp_path_factory.mktemp("outlier") / "bert", seed=3)
    weights = load_file(path / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith(("intermediate.dense.bias", "value.bias")):
            tensor[7] = 1000
        if name.endswith("output.dense.weight"):
            tensor[:, 7] = 0
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


def test_the_cost_is_that_of_the_vectors(bert):
    with Runtime(bert, dtype="float32") as rt:
        exact = rt.encode([*SENTENCES, *SHORT], normalize_embeddings=True)
    with Runtime(bert, dtype="int8") as rt:
        least = (rt.encode([*SENTENCES, *SHORT], normalize_embeddings=True).astype(np.float64) * exact).sum(1).min()
        assert measured(rt) == [f"int8: least cosine to float32 {least:.4f}, measured on 5 texts when it was opened"]
        assert LEAST_INT8 <= least < 1


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_a_model_that_int8_spoils_is_refused(outlier, tmp_path, backend):
    model = make_directory(tmp_path / "st", outlier, [pooling("mean"), NORMALIZE])
    for path in (outlier, model):
        with pytest.raises(UsageError, match=r"int8 changes the embeddings too much, to a cosine of -?0\.\d{4} to"):
            Runtime(path, dtype="int8", backend=backend)
        with Runtime(path, dtype="bfloat16", backend=backend) as rt:
            assert not measured(rt)


def test_a_recorded_cost_is_not_measured_again(bert, tmp_path, monkeypatch):
    model = make_model(tmp_path / "model", bert, make_sentences(120))
    monkeypatch.setattr("fastflow.backends.precision.LEAST_INT8", 2)
    with Runtime(model, dtype="int8") as rt:
        recorded = load_model(model).manifest["least_cosine"]["int8"]
        assert f"int8: its least cosine to float32 was {recorded} when the model was made" in rt.info()["details"]


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "mpnet", "modernbert"])
def test_the_streamed_weights_are_those_of_the_reference(encoders, family):
    model = load_model(encoders(family))
    tokens = model.tokenizer()(make_sentences(5))
    found = Streamed(model, "float32", "cpu", None).pool(tokens)
    assert np.array_equal(found, ReferenceBackend(model, "float32", "cpu", None).pool(tokens))


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_trial_sees_what_the_layers_multiply(encoders, family):
    model = load_model(encoders(family))
    tried = trial(model)
    backend = ReferenceBackend(model, "float32", "cpu", None)
    for text, row in zip((*SENTENCES, *SHORT), tried.exact, strict=True):
        assert np.allclose(backend.pool(model.tokenizer()([text]))[0], row, atol=1e-5)
    seen = {}
    backend.watch = lambda name, operand: seen.setdefault(name, operand)
    backend.pool(model.tokenizer()(SENTENCES))
    assert set(tried.largest) == {name for name in seen if name.endswith((".qkv", ".up"))}
    for name, largest in tried.largest.items():
        assert np.allclose(largest, np.abs(seen[name]).max(axis=0), atol=1e-5)
    seen.clear()
    backend.pool(model.tokenizer()([*SENTENCES, *SHORT, *EXTREME]))
    assert set(tried.terms) == {name for name in seen if name.endswith((".qkv", ".up", ".down"))}
    tried_weights = load_weights(
        model.encoder, config := read_config(model.encoder), encoder_shape(config, model.encoder), np.float32
    )
    for name, terms in tried.terms.items():
        weights = np.abs(tried_weights[f"{name}.weight"]).max(axis=0)
        assert np.allclose(terms, np.abs(seen[name]).max(axis=0) * weights, rtol=1e-4, atol=1e-5)


def test_a_hidden_value_that_is_always_large_leaves_the_others_their_digits(tmp_path, sentences):
    """It is large in ``down``'s operand and in its weights, as in trained encoders: smoothing alone cannot help."""
    path = make_encoder(tmp_path / "bert", seed=3, hidden_size=64, intermediate_size=256)
    weights = load_file(path / "model.safetensors")
    for name, tensor in weights.items():
        if tensor.ndim == 2 and "layer" in name:
            tensor *= 5 / 8
        if name.endswith("intermediate.dense.bias"):
            tensor[7] = 100
        if name.endswith("output.dense.weight") and "attention" not in name:
            tensor[:, 7] *= 10
            weights[name.replace("weight", "bias")] -= 100 * tensor[:, 7]
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    texts = ["", "x", "?", "." * 70, "[SEP] [CLS] [MASK]", "no " * 30, *sentences[:10]]
    with Runtime(path, dtype="float32") as exact, Runtime(path, dtype="int8") as rt:
        cosines = (exact.encode(texts, normalize_embeddings=True) * rt.encode(texts, normalize_embeddings=True)).sum(1)
    assert cosines.min() >= 0.998  # 0.975 if the column shares a scale with the others
