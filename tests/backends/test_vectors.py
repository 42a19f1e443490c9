"""Runtime on a model without an encoder: what it does, what it refuses, on every backend that only calibrates."""

import json

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.backends import choose
from fastflow.errors import FastflowError, UsageError
from fastflow.stages.calibration import apply

from support.matrices import make_vector_model, make_vectors
from support.tolerances import EMBEDDING

NO_ENCODER = "calibrates vectors and has no encoder: give vectors to transform, or fit a model to texts"


@pytest.fixture(scope="module")
def x():
    return make_vectors(seed=1)


@pytest.fixture(scope="module")
def rt(vector_model):
    return Runtime(vector_model)


def unit(z):
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def test_backends_agree_with_the_equations(vector_model, x, backend):
    opened = Runtime(vector_model, backend=backend)
    stages = [stage.astype(np.float64) for stage in opened.session.model.calibration]
    exact = unit(apply(stages, x.astype(np.float64)))
    found = opened.transform(x)
    assert (opened.backend, found.dtype, found.shape) == (backend, np.float32, (400, 32))
    assert np.abs(unit(found) - exact).max() <= EMBEDDING
    cut = opened.transform(x, truncate_dim=5, normalize_embeddings=True)
    whole = opened.transform(x) @ opened.session.model.truncation.basis[:, :5]
    assert np.abs(cut - unit(whole)).max() <= EMBEDDING
    quantised = opened.transform(x, precision="int8", truncate_dim=5, normalize_embeddings=True)
    assert (quantised.dtype, quantised.shape) == (np.int8, (400, 5))
    assert (unit(quantised.astype(float)) * cut).sum(axis=1).min() > 0.99
    assert opened.transform(x[:0]).shape == (0, 32)


@pytest.mark.parametrize("name", ["auto", "reference", "torch"])
def test_float64(vector_model, x, name):
    opened = Runtime(vector_model, dtype="float64", backend=name)
    exact = apply([stage.astype(np.float64) for stage in opened.session.model.calibration], x.astype(np.float64))
    found = opened.transform(x)
    assert found.dtype == opened.dtype == "float64"
    assert np.abs(found - exact).max() <= 1e-10 * np.abs(exact).max()
    assert opened.backend == ("reference" if name == "auto" else name)


def test_transform_of_a_model_of_texts_shortens_as_encode_does(weighted_model, sentences, backend):
    opened = Runtime(weighted_model, backend=backend)
    pooled = opened.pool(sentences)
    for options in ({}, {"truncate_dim": 7, "normalize_embeddings": True}, {"precision": "ubinary"}):
        found, encoded = opened.transform(pooled, **options), opened.encode(sentences, **options)
        assert found.dtype == encoded.dtype
        assert "precision" in options or np.abs(found - encoded).max() <= 20 * EMBEDDING
    with pytest.raises(UsageError, match=r"truncate_dim must be 1 to 32"):
        opened.transform(pooled, truncate_dim=33)
    with pytest.raises(UsageError, match="unknown precision 'int4'"):
        opened.transform(pooled, precision="int4")


@pytest.mark.parametrize(
    "call",
    [
        lambda rt: rt.encode("a text"), lambda rt: rt.encode(["a", "b"]), lambda rt: rt.encode([]),
        lambda rt: next(rt.stream(["a"])), lambda rt: rt.pool(["a"]), lambda rt: rt.pool([]),
        lambda rt: rt.tokenizer(["a"]), lambda rt: rt.similarity("a", "b"), lambda rt: rt.similarity(["a"], ["b"]),
    ],
)  # fmt: skip
def test_texts_are_one_sentence(rt, vector_model, call):
    with pytest.raises(UsageError) as raised:
        call(rt)
    assert str(raised.value) == f"{vector_model} {NO_ENCODER}"


@pytest.mark.parametrize(
    "texts", ["a text", ["a text"], ["a", "b"], [["a"] * 32], np.array(["a"]), [1.0, "a"], [[None, "a"]]]
)
def test_texts_given_to_transform_are_no_numbers_of_a_dtype(rt, texts):
    with pytest.raises(FastflowError, match=r"^transform takes numbers of shape \(B, 32\), not texts; texts go to enc"):
        rt.transform(texts)


def test_what_acts_on_vectors_works(rt, vector_model, x):
    z = rt.transform(x)
    assert rt.similarity(z[:3], z[:2]).shape == (3, 2)
    assert (rt.dim, rt.truncated, rt.dtype, len(rt.fingerprint)) == (32, 0, "float32", 64)
    info, of_texts = rt.info(), Runtime().info()
    json.dumps(info)
    wanted = {
        "takes": "vectors", "pooling": None, "max_length": None, "model": str(vector_model), "pooled_dim": 32,
        "dim": 32, "dtype": "float32", "truncation": "leading directions",
    }  # fmt: skip
    assert {name: info[name] for name in wanted} == wanted
    assert info["calibration"].startswith("flow(2x3")
    assert (list(info), of_texts["takes"]) == (list(of_texts), "texts")


def test_a_closed_runtime_says_so(vector_model, x):
    with Runtime(vector_model, threads=1) as opened:
        assert len(opened.transform(x)) == len(x)
    for call in (lambda: opened.transform(x), opened.info, lambda: opened.dim):
        with pytest.raises(FastflowError, match="this Runtime is closed"):
            call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "triton"}, "backend 'triton' runs an encoder, and .* has none; usable are cpu, torch, reference"),
        ({"backend": "gpu"}, "unknown backend 'gpu'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"dtype": "int8"}, "dtype 'int8' does not run on the cpu backend without an encoder; usable are float32$"),
        ({"dtype": "bfloat16", "backend": "torch"}, "without an encoder; usable are float32, float64$"),
        ({"dtype": "float64", "backend": "cpu"}, "dtype 'float64' does not run on the cpu backend"),
        ({"device": "cuda", "backend": "cpu"}, "the cpu backend runs on the CPU"),
        ({"threads": 0}, "threads must be a whole number of at least 1"),
    ],
)
def test_choices_that_cannot_run(vector_model, options, message):
    with pytest.raises(UsageError, match=message):
        Runtime(vector_model, **options)


def test_without_the_extension_numpy_steps_in_and_says_so(vector_model, x, monkeypatch):
    find = choose.find_spec
    monkeypatch.setattr(choose, "find_spec", lambda name: None if name.endswith("_cpu") else find(name))
    opened = Runtime(vector_model)
    assert opened.backend == "reference"
    needs = "the cpu backend needs the compiled extension"
    assert f"stepped down from the cpu backend: {needs}" in opened.info()["notes"][0]
    assert opened.transform(x).shape == (400, 32)
    with pytest.raises(FastflowError, match=needs):
        Runtime(vector_model, backend="cpu")


def test_overflow_is_an_error_that_names_the_row(tmp_path):
    opened = Runtime(make_vector_model(tmp_path / "m", "whiten"))
    x = make_vectors()
    x[5] = 3e38
    with pytest.raises(FastflowError, match="transform: row 5 gives NaN or infinity"):
        opened.transform(x)
