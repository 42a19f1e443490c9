"""Runtime on a model without an encoder, and on a token table: what they do and refuse, on every backend."""

import json

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.backends import choose
from fastflow.errors import FastflowError, UsageError
from fastflow.transforms.calibration import apply

from support.matrices import make_vector_model, make_vectors
from support.static_dirs import TEXTS, model2vec_dir, static_embedding_dir
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
    exact = apply(stages, x.astype(np.float64))
    for name in ("auto", "reference", "torch"):
        found = Runtime(vector_model, dtype="float64", backend=name)
        assert found.transform(x).dtype == found.dtype == "float64"
        assert np.abs(found.transform(x) - exact).max() <= 1e-10 * np.abs(exact).max()
        assert found.backend == ("reference" if name == "auto" else name)


def test_texts_are_one_sentence(rt, vector_model):
    for call in (
        lambda: rt.encode("a text"), lambda: rt.encode(["a", "b"]), lambda: rt.encode([]), lambda: rt.pool(["a"]),
        lambda: rt.pool([]), lambda: next(rt.stream(["a"])), lambda: rt.tokenizer(["a"]),
        lambda: rt.similarity("a", "b"), lambda: rt.similarity(["a"], ["b"]), lambda: rt.max_length,
        lambda: rt.max_seq_length,
    ):  # fmt: skip
        with pytest.raises(UsageError) as raised:
            call()
        assert str(raised.value) == f"{vector_model} {NO_ENCODER}"
    for texts in ("a text", ["a text"], ["a", "b"], [["a"] * 32], np.array(["a"]), [1.0, "a"], [[None, "a"]]):
        with pytest.raises(FastflowError, match=r"^transform takes numbers of shape \(B, 32\), not texts; texts go to"):
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


def test_overflow_is_an_error_that_names_the_row(tmp_path, backend):
    opened = Runtime(make_vector_model(tmp_path / "m", "whiten"), backend=backend)
    x = make_vectors()
    x[5] = 3e38
    with pytest.raises(FastflowError, match="transform: row 5 gives NaN or infinity"):
        opened.transform(x)


@pytest.mark.filterwarnings("ignore:texts longer than")
def test_backends_of_a_table_agree(tmp_path, backend):
    own = model2vec_dir(tmp_path / "m", clusters=20, weights=np.float32, dtype=np.float16, normalize=True)
    dense = ("Dense", {"out_features": 24, "activation_function": "torch.nn.modules.activation.GELU"})
    for path in (own, static_embedding_dir(tmp_path / "bag", [dense, ("Normalize", {})])):
        exact = Runtime(path, backend="reference", dtype="float64").encode(TEXTS)
        runtime = Runtime(path, backend=backend)
        assert (runtime.backend, exact.dtype) == (backend, np.float64)
        np.testing.assert_allclose(runtime.encode(TEXTS), exact, atol=5e-6)


def test_a_table_says_what_it_is_and_takes_no_unknown_instruction_set(tmp_path, monkeypatch):
    path = model2vec_dir(tmp_path / "m", dtype=np.float16, max_length=None)
    info = Runtime(path, threads=1).info()
    assert (info["backend"], info["dtype"], info["dim"], info["max_length"]) == ("cpu", "float32", 37, None)
    assert info["pooling"] == "masked mean of word embeddings without positions"
    assert any("rows in float16" in line for line in info["details"])
    bag = Runtime(static_embedding_dir(tmp_path / "bag")).info()
    assert (bag["pooling"], bag["modules"]) == (info["pooling"], ["StaticEmbedding"])
    monkeypatch.setenv("FASTFLOW_ISA", "avx1024")
    with pytest.raises(UsageError, match="FASTFLOW_ISA=avx1024 cannot run"):
        Runtime(path)
