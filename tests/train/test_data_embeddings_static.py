"""A token table as the encoder of a fit: weighted, calibrated, saved, and run again from its own files."""

import numpy as np
import pytest
import torch

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import verify
from fastflow.train.data.embeddings import Embedder, open_encoder
from fastflow.train.data.token_weights import count_tokens

from support.builders import make_model, wordpiece
from support.static_dirs import model2vec_dir, static_embedding_dir

DENSE = ("Dense", {"out_features": 16, "activation_function": "torch.nn.modules.activation.Tanh"})


@pytest.fixture(params=["model2vec", "StaticEmbedding"])
def table(request, tmp_path):
    """A directory of each library, 32 wide."""
    if request.param == "model2vec":
        return model2vec_dir(tmp_path / "table", width=32, weights=np.float32, normalize=True)
    return static_embedding_dir(tmp_path / "table", [("Normalize", {})], width=32)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flow", "whiten,recolour", "none"])
def test_a_table_is_calibrated_and_saved(table, tmp_path, sentences, method):
    path = make_model(
        tmp_path / "model", table, sentences, method, pooling="words", max_length=None, weighted=True, ordered=True
    )
    assert any("shapes, dtypes and values are sound" in line for line in verify(path))
    runtime = Runtime(path)
    assert runtime.info()["pooling"] == "weighted masked mean of word embeddings without positions"
    assert runtime.info()["max_length"] == (512 if (table / "config.json").exists() else None)
    found = runtime.encode([*sentences[:20], ""])
    want = Runtime(path, backend="reference", dtype="float64").encode([*sentences[:20], ""])
    np.testing.assert_allclose(found, want, atol=2e-5)
    if method == "flow":
        assert np.isfinite(runtime.log_prob(sentences[:5])).all()
        assert runtime.encode(sentences[:3], truncate_dim=8).shape == (3, 8)
        assert runtime.encode(sentences[:3], precision="int8").dtype == np.int8


def test_the_table_alone_is_pooled(table, sentences):
    """Normalize is a module after the table: a calibration takes its place."""
    frozen = open_encoder(str(table), "words", None)
    pooled = Embedder(frozen, "cpu")(sentences[:8])
    assert np.ptp(np.linalg.norm(pooled, axis=1)) > 0.1
    own = Runtime(table).encode(sentences[:8])
    np.testing.assert_allclose(pooled / np.linalg.norm(pooled, axis=1, keepdims=True), own, atol=1e-6)
    assert open_encoder(str(table), "last", None).pooling == frozen.pooling


def test_all_modules_with_pooling_model(tmp_path, sentences):
    bag = static_embedding_dir(tmp_path / "bag", [DENSE, ("Normalize", {})], width=32)
    frozen = open_encoder(str(bag), "model", None)
    np.testing.assert_allclose(Embedder(frozen, "cpu")(sentences[:8]), Runtime(bag).encode(sentences[:8]), atol=1e-6)


def test_dropout_makes_views(table, sentences):
    torch.manual_seed(0)
    embedder = Embedder(open_encoder(str(table), "words", None), "cpu", dropout=True, rate=0.1)
    one, other = (embedder(sentences[:8]) for _ in range(2))
    assert np.abs(one - other).max() > 0.01
    cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    assert cosine.min() > 0.8


def test_counts_have_every_id_and_no_special_token(table, sentences):
    counts = count_tokens(open_encoder(str(table), "words", None), sentences)
    tokenizer = wordpiece()
    assert len(counts) == tokenizer.get_vocab_size()
    assert counts[[tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")]].sum() == 0
    assert counts.sum() == sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in sentences)


@pytest.mark.parametrize("pooling", ["first-last", "cls", "pooler", "words-first-last", "mean-of-layers:0,1"])
def test_layers_that_a_table_does_not_have(table, pooling):
    with pytest.raises((UsageError, FastflowError), match=r"has no layers|outside 0 to 0|this encoder has none"):
        open_encoder(str(table), pooling, None)
