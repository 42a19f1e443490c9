"""In float64 the reference equals transformers and torch the reference; and what every backend inherits."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModel

from fastflow.backends import Backend
from fastflow.backends.reference import ReferenceBackend
from fastflow.backends.torch import TorchBackend, load_torch_encoder
from fastflow.errors import FastflowError
from fastflow.kernels.encoder import WORDS
from fastflow.model import Model
from fastflow.model.artifact import load_model
from fastflow.model.tokenizer import Tokenizer, Tokens
from fastflow.transforms.calibration import apply
from fastflow.transforms.pooling import Pooling
from fastflow.transforms.vectors import compute_paired_cosine

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
    worst = compute_paired_cosine(found.astype(np.float64), reference.pool(tokens)).min()
    assert least <= worst <= 1 + 1e-12
    assert (worst < 1 - 1e-7) == (dtype == "bfloat16")


@pytest.mark.parametrize("layers", [(0, 1, 3), (WORDS,)])
def test_dropout_is_off_until_training_asks_for_it(bert, tokens, layers):
    backend = TorchBackend(Model(bert, bert, Pooling("mean", layers), 64), "float32", "cpu", None)
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


class Counting(Backend):
    """Pools a text to its number of tokens and its first id; calibration doubles them."""

    name, dtypes = "counting", ("float32", "float64")

    def __init__(self, model, dtype="float32"):
        super().__init__(model, dtype, "cpu", None)
        self.asked = []

    def pool(self, tokens):
        self.asked.append(len(tokens.offsets) - 1)
        out = np.zeros((len(tokens.offsets) - 1, self.pooled_dim), self.floats)
        out[:, 0], out[:, 1] = np.diff(tokens.offsets), tokens.ids[tokens.offsets[:-1]]
        return out

    def calibrate(self, pooled, normalize=False, truncate=None):
        self.asked.append((normalize, truncate))
        return 2 * pooled


def test_rows_come_back_in_the_texts_order_whatever_the_batches(bert):
    ids = np.repeat(np.arange(10, 15), np.arange(1, 6)).astype(np.int32)
    tokens = Tokens(ids, np.cumsum([0, 1, 2, 3, 4, 5]), np.empty(0, np.int64))
    backend = Counting(load_model(bert))
    found = backend.embed(tokens, [np.array([4, 0]), np.array([2]), np.array([1, 3])], True, 7)
    assert found[:, 0].tolist() == [2, 4, 6, 8, 10]
    assert found[:, 1].tolist() == [20, 22, 24, 26, 28]
    assert backend.asked == [2, 1, 2, (True, 7)], "calibrated once, as it was asked for"
    none = Tokens(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, np.int64))
    assert backend.pool_batches(none, []).shape == (0, 32)
    for dtype, floats in (("float32", np.float32), ("float64", np.float64)):
        backend = Counting(load_model(bert), dtype)
        assert backend.floats == backend.pool_batches(tokens, [np.arange(5)]).dtype == floats


def test_an_unfinished_backend_cannot_be_opened(bert):
    class Half(Backend):
        """Without calibrate."""

        def pool(self, tokens):
            return np.zeros((0, 0))

    with pytest.raises(TypeError, match="calibrate"):
        Half(load_model(bert), "float32", "cpu", None)
