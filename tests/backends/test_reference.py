"""The two backends that are compared with: the reference's float64 is transformers', and torch's is the reference's."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModel

from fastflow.backends.reference import ReferenceBackend
from fastflow.backends.torch import TorchBackend, load_torch_encoder
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.stages.calibration import apply
from fastflow.stages.vectors import compute_paired_cosine

from support.builders import make_model
from support.tolerances import COSINE, EMBEDDING


@pytest.fixture
def tokens(bert, sentences):
    """Texts of very different lengths, so that most of a padded batch is padding."""
    return Tokenizer(bert, 64)(["a", *sentences[:9], " ".join(sentences[:12])])


def opened(model, dtype="float64", threads=None):
    return ReferenceBackend(load_model(model), dtype, "cpu", threads)


def test_hidden_states_are_those_of_transformers_in_float64(bert, model, tokens):
    backend = opened(model)
    states = backend.hidden_states(tokens)
    encoder = AutoModel.from_pretrained(bert).eval().double()
    spans = list(pairwise(tokens.offsets))
    for start, end in spans:
        with torch.inference_mode():
            ids = torch.from_numpy(tokens.ids[start:end].astype(np.int64))[None]
            want = encoder(ids, output_hidden_states=True).hidden_states
        for layer, found in states.items():
            assert np.abs(found[start:end] - want[layer][0].numpy()).max() <= 1e-9
    means = [np.mean([state[a:b].mean(axis=0) for state in states.values()], axis=0) for a, b in spans]
    assert np.abs(backend.pool(tokens) - means).max() <= 1e-12


def test_calibrated_cut_and_then_normalised(tmp_path, bert, sentences, model, tokens):
    backend = opened(model)
    pooled = backend.pool(tokens)
    whole = apply([stage.astype(np.float64) for stage in load_model(model).calibration], pooled)
    assert np.array_equal(backend.calibrate(pooled), whole)
    short = backend.calibrate(pooled, normalize=True, truncate=5)
    assert np.abs(short - whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)).max() <= 1e-15
    made = make_model(tmp_path / "m", bert, sentences[:64], ordered=True)
    backend, basis = opened(made), load_model(made).truncation.basis  # the leading directions, which it orders
    whole = backend.calibrate(pooled := backend.pool(tokens))
    assert np.abs(backend.calibrate(pooled, truncate=4) - whole @ basis[:, :4]).max() <= 1e-12


def test_threads_are_not_obeyed_and_overflow_is_left_to_be_found_in_the_rows(bert, model):
    assert opened(bert).notes == []
    assert opened(bert, "float32", 3).notes == ["threads: NumPy's BLAS decides"]
    with np.errstate(all="raise"):
        z = opened(model, "float32").calibrate(np.full((2, 32), 3e38, np.float32))
    assert not np.isfinite(z).all()


def pair(model, dtype="float64"):
    loaded = load_model(model)
    return TorchBackend(loaded, dtype, "cpu", None), ReferenceBackend(loaded, "float64", "cpu", None)


@pytest.mark.parametrize("pooling", ["first-last", "cls", "pooler"])
def test_padding_changes_nothing_and_float64_is_the_reference(tmp_path, bert, sentences, tokens, pooling):
    backend, reference = pair(make_model(tmp_path / "m", bert, sentences[:64], "standardize", pooling=pooling))
    want = reference.pool(tokens)
    assert np.abs(backend.pool(tokens) - want).max() <= 1e-9
    assert np.abs(backend.calibrate(want) - reference.calibrate(want)).max() <= 1e-9


@pytest.mark.parametrize("family", ["mpnet", "modernbert"])
def test_padding_beyond_every_window_changes_nothing(encoders, family, sentences):
    """The padding after the short text lies outside the windows of all its tokens, and sees no key at all."""
    texts = Tokenizer(encoders(family), 128)(["a", *sentences[:3], " ".join(sentences[:12])])
    assert np.diff(texts.offsets).min() + 16 < np.diff(texts.offsets).max()
    for dtype, bound in (("float64", 2e-5), ("float32", 2e-5)):  # transformers rotates in float32 in every dtype
        backend, reference = pair(encoders(family), dtype)
        found, want = backend.pool(texts), reference.pool(texts)
        assert np.isfinite(found).all()
        assert np.abs(found - want).max() <= bound


@pytest.mark.parametrize(("dtype", "least"), [("float32", 1 - EMBEDDING), ("bfloat16", COSINE["bfloat16"])])
def test_lower_precisions_give_float32_vectors_near_the_reference(model, tokens, dtype, least):
    backend, reference = pair(model, dtype)
    found = backend.pool(tokens)
    assert found.dtype == backend.floats == np.float32
    assert compute_paired_cosine(found.astype(np.float64), reference.pool(tokens)).min() >= least


def test_dropout_is_off_until_training_asks_for_it(model, tokens):
    backend, _ = pair(model, "float32")
    once = backend.pool(tokens)
    assert np.array_equal(backend.pool(tokens), once)
    backend.train_mode(0.5)
    torch.manual_seed(0)
    assert np.abs(backend.pool(tokens) - once).max() > 0.01
    backend.train_mode(0.0)
    assert np.array_equal(backend.pool(tokens), once)


def test_a_folder_that_transformers_cannot_read_is_one_sentence(bert_copy):
    (bert_copy / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(FastflowError) as caught:
        load_torch_encoder(bert_copy)
    assert "\n" not in str(caught.value)
    assert str(bert_copy) in str(caught.value)
