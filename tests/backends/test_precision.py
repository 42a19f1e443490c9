"""int8 of a model that records no cost of it: measured when it is opened, and refused where it is large."""

import platform
import shutil
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from fastflow import Runtime
from fastflow.backends.cpu import CpuBackend
from fastflow.backends.precision import LEAST_INT8, SENTENCES, TEXTS, VERSION, StreamedBackend, trial
from fastflow.backends.reference import ReferenceBackend
from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.encoder import Outliers, PoolingSpec
from fastflow.kernels.encoder.cpu import CpuEncoder, find_outlying, smooth
from fastflow.model.artifact import load_model
from fastflow.model.encoder import encoder_shape, read_config
from fastflow.model.encoder.int8 import FILE
from fastflow.model.encoder.weights import load_weights

from support.builders import make_encoder, make_model, make_sentences
from support.packed import random_encoder
from support.refusals import spoil
from support.sentence_dirs import NORMALIZE, make_directory, pooling
from support.spoil import change_manifest, rehash


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


def hard_texts(path):
    special = load_model(path).tokenizer().special
    return [*TEXTS, " ".join(special), *special]


@pytest.mark.filterwarnings("ignore:texts longer than")
def test_the_cost_is_that_of_the_worst_embedding(bert):
    texts = hard_texts(bert)
    with Runtime(bert, dtype="float32") as rt:
        exact = rt.encode(texts, normalize_embeddings=True)
    with Runtime(bert, dtype="int8") as rt:
        found = (rt.encode(texts, normalize_embeddings=True).astype(np.float64) * exact).sum(1)
        over = "over 12 texts and each special token alone"
        said = f"{found.min():.4f} {over}, measured at opening; the worst is {texts[found.argmin()]!r:.80}"
        assert measured(rt) == [f"int8: least cosine to float32 {said}"]
        assert LEAST_INT8 <= found.min() < 1


def test_the_trial_has_the_texts_that_hurt(bert):
    texts, special = trial(load_model(bert)).texts, load_model(bert).tokenizer().special
    for hurts in (
        lambda text: not text,  # no token but the special ones
        lambda text: len(text) == 1,
        lambda text: len(text) > 300,
        lambda text: len(set(text)) == 1 and len(text) > 50,  # one character again and again
        lambda text: " " not in text and len(set(text)) > 9,  # one word of many pieces
    ):
        assert any(map(hurts, texts))
    assert "[CLS]" in special
    assert texts[len(TEXTS) :] == (" ".join(special), *special)


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_a_model_that_int8_spoils_is_refused(outlier, tmp_path, backend, monkeypatch):
    made = make_model(tmp_path / "model", outlier, make_sentences(120))
    for path in (outlier, make_directory(tmp_path / "st", outlier, [pooling("mean"), NORMALIZE]), made):
        if path == made:  # which says so from its record
            monkeypatch.setattr("fastflow.backends.precision.trial", None)
        with pytest.raises(UsageError, match=r"too much, to a cosine of -?0\.\d{4} to float32 for the text '"):
            Runtime(path, dtype="int8", backend=backend)
        with Runtime(path, dtype="bfloat16", backend=backend) as rt:
            assert not measured(rt)


def test_a_recorded_trial_is_not_made_again(bert, tmp_path, monkeypatch):
    model = make_model(tmp_path / "model", bert, make_sentences(120))
    texts = make_sentences(9)
    copy = shutil.copytree(model, tmp_path / "tried")
    change_manifest(copy, int8=load_model(model).int8.entry() | {"version": VERSION + 1})
    with Runtime(copy, dtype="int8") as rt:
        assert "measured at opening" in measured(rt)[0]
        tried = rt.encode(texts)
    monkeypatch.setattr("fastflow.backends.precision.trial", None)
    with Runtime(model, dtype="int8") as rt:
        least = f"{load_model(model).int8.least_cosine:.4f} over 12 texts and each special token alone"
        assert f"{least}, recorded with the model" in measured(rt)[0]
        assert np.array_equal(rt.encode(texts), tried)


@pytest.fixture
def fork(monkeypatch):
    """int8 turns the text of [SEP] alone around, as it does with </s> in all-mpnet-base-v2."""
    call = CpuEncoder.__call__

    def turned(self, ids, offsets, skip=0, seconds=None):
        out = call(self, ids, offsets, skip, seconds)
        if self.dtype == "int8":
            for row, (start, stop) in enumerate(pairwise(offsets)):
                out[row] *= -1 if stop - start == 3 and ids[start + 1] == ids[start + 2] else 1
        return out

    monkeypatch.setattr(CpuEncoder, "__call__", turned)


FORKED = ["[SEP]", "the dog sings", "x", "[SEP]", "[SEP] x", "[CLS]"]


def test_a_special_token_alone_that_int8_spoils_has_the_vector_of_float32(bert, fork):
    with Runtime(bert, dtype="float32") as rt:
        exact = rt.encode(FORKED)
    with Runtime(bert, dtype="int8") as rt:
        found = rt.encode(FORKED)
        alone = [rt.encode([text])[0] for text in FORKED]
        assert "; 1 of these tokens would lose more: alone they have float32's vectors, in" in measured(rt)[0]
    assert np.abs(found[[0, 3]] - exact[[0, 3]]).max() < 1e-6
    assert not np.isclose(found[[1, 2, 4, 5]], exact[[1, 2, 4, 5]], rtol=0, atol=1e-6).all(axis=1).any()
    assert np.array_equal(found, alone)
    with Runtime(bert, dtype="bfloat16") as rt:
        assert not np.array_equal(rt.encode(FORKED)[0], exact[0])


def test_the_vector_of_a_spoilt_special_token_is_recorded(bert, fork, tmp_path, monkeypatch):
    model = make_model(tmp_path / "model", bert, make_sentences(120))
    [(ids, vector)] = load_model(model).int8.exact.items()
    assert len(ids) == 3
    assert ids[1] == ids[2]
    assert vector.shape == (load_model(model).pooled_dim,)
    monkeypatch.setattr("fastflow.backends.precision.trial", None)
    with Runtime(model, dtype="float32") as exact, Runtime(model, dtype="int8") as rt:
        assert np.allclose(rt.encode(FORKED)[0], exact.encode(FORKED)[0], atol=1e-5)
        assert "recorded with the model" in measured(rt)[0]
    name = f"exact.{','.join(map(str, ids))}"
    rehash(spoil(model, FILE, {name: np.ones(7, np.float32)}))
    with pytest.raises(FastflowError, match=r"int8 has 7 numbers for the text of ids \(\d+, \d+, \d+\), and the model"):
        Runtime(model, dtype="int8")


def test_a_prompt_before_a_special_token_is_another_text(bert, fork):
    model = load_model(bert)
    kept, tokens, rows = CpuBackend(model, "int8", "cpu", 1).int8, model.tokenizer()(["[SEP]", "x"]), np.zeros((2, 32))
    kept.restore(tokens._replace(skip=1), rows)
    assert not rows.any()
    kept.restore(tokens, rows)
    assert rows[0].any()
    assert not rows[1].any()


def test_a_record_of_another_encoder_is_refused(bert, tmp_path):
    model = make_model(tmp_path / "model", bert, make_sentences(120))
    rehash(spoil(model, FILE, {"largest.layer.0.up": np.ones(7, np.float32)}))
    with pytest.raises(FastflowError, match=r"recorded trial of int8 has 7 columns for the product layer\.0\.up, and"):
        Runtime(model, dtype="int8")
    rehash(spoil(model, FILE, {"terms.layer.99.up": np.ones(7, np.float32), "largest.layer.0.up": ...}))
    with pytest.raises(FastflowError, match=r"for the product layer\.99\.up, and the encoder has 0"):
        Runtime(model, dtype="int8")


def test_the_version_of_the_trial_is_that_of_its_texts_and_of_the_kernels():
    """Bits of the portable kernels, equal on all machines of a kind: arm64 fuses multiply-adds. If this fails, raise
    VERSION and put the new hash here."""
    random, (drawn, shape) = np.random.default_rng(0), random_encoder(0, 2, 64, 4, 96)
    weights = {name: random.random(array.shape, np.float32) - np.float32(0.5) for name, array in drawn.items()}
    largest = {f"layer.{i}.{name}": np.arange(1, 65, dtype=np.float32) for i in (0, 1) for name in ("qkv", "up")}
    encoder = CpuEncoder(
        weights, shape, PoolingSpec("mean", (2,)), "int8", threads=1, isa="portable",
        outliers=Outliers(smooth(largest), find_outlying(largest)),
    )  # fmt: skip
    ids = random.integers(0, len(weights["word"]), 120).astype(np.int32)
    pooled = encoder(ids, np.array([0, 1, 3, 20, 120], np.int64))
    bits = {"aarch64": "f8bade73013439a2"}.get(platform.machine(), "12988d3726a7bc24")
    assert (VERSION, sha256(repr(TEXTS).encode() + pooled.tobytes()).hexdigest()[:16]) == (2, bits)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "mpnet", "modernbert"])
def test_a_trial_sees_what_the_layers_multiply_with_the_weights_of_the_reference(encoders, family):
    model = load_model(encoders(family))
    tokens = model.tokenizer()(make_sentences(5))
    found = StreamedBackend(model, "float32", "cpu", None).pool(tokens)
    assert np.array_equal(found, ReferenceBackend(model, "float32", "cpu", None).pool(tokens))
    tried = trial(model)
    backend = ReferenceBackend(model, "float32", "cpu", None)
    for text, row in zip(hard_texts(encoders(family)), tried.exact, strict=True):
        assert np.allclose(backend.pool(model.tokenizer()([text]))[0], row, atol=1e-5)
    seen = {}
    backend.watch = lambda name, operand: seen.setdefault(name, operand)
    backend.pool(model.tokenizer()(SENTENCES))
    assert set(tried.largest) == {name for name in seen if name.endswith((".qkv", ".up"))}
    for name, largest in tried.largest.items():
        assert np.allclose(largest, np.abs(seen[name]).max(axis=0), atol=1e-5)
    seen.clear()
    backend.pool(tried.tokens.select(np.arange(tried.alone)))  # a special token alone decides on no column
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
