"""The layer of words without positions, on every backend, against transformers with the mean in the position table."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from fastflow import Runtime
from fastflow.backends.cpu import CpuBackend
from fastflow.backends.reference import ReferenceBackend
from fastflow.backends.torch import TorchBackend, build_words_layer, load_torch_encoder
from fastflow.errors import UsageError
from fastflow.kernels.encoder import WORDS
from fastflow.model import Model
from fastflow.model.artifact import load_model
from fastflow.model.encoder import encoder_size, read_config
from fastflow.model.tokenizer import Tokens
from fastflow.transforms.pooling import Pooling, parse_pooling

from support.builders import FAMILIES, OTHERS, make_model
from support.packed import token_weights
from support.states import random_tokens
from support.tolerances import EMBEDDING, UNIT

LENGTHS = (65, 1, 2, 3, 7, 8, 9, 9, 15, 16, 17, 31, 32, 33, 63, 64)
EXACT = 1e-12


def pooled_by(kind: type, directory, tokens: Tokens, layers=(WORDS,), dtype="float64") -> np.ndarray:
    return kind(Model(directory, directory, Pooling("mean", layers), 64), dtype, "cpu", None).pool(tokens)


def defined(directory, tokens: Tokens) -> np.ndarray:
    """(B, D) means of layer 0 of transformers' model, every row of whose position table is the mean of those in use."""
    model = transformers.AutoModel.from_pretrained(directory).eval().double()
    table = getattr(model.embeddings, "position_embeddings", None)
    if table is not None:
        longest = encoder_size(read_config(directory), directory).max_tokens
        assert longest == 128
        table.weight.data[:] = table.weight.data[len(table.weight) - longest :].mean(dim=0)
    out = []
    for ids in np.split(tokens.ids.astype(np.int64), tokens.offsets[1:-1]):
        with torch.inference_mode():
            out.append(model(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states[0][0].mean(dim=0))
    return torch.stack(out).numpy()


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_every_family_on_the_backends_of_a_processor(encoders, family):
    directory = encoders(family)
    tokens = random_tokens(directory, LENGTHS)
    tokens.ids[[3, 70, 75]] = 1  # RoBERTa's padding, in a text
    want = defined(directory, tokens)
    assert want.std() > 0.1
    assert np.abs(pooled_by(TorchBackend, directory, tokens) - want).max() <= EXACT
    if family in OTHERS:
        return
    assert np.abs(pooled_by(ReferenceBackend, directory, tokens) - want).max() <= EXACT
    assert np.abs(pooled_by(CpuBackend, directory, tokens, dtype="float32") - want).max() <= UNIT
    first = pooled_by(ReferenceBackend, directory, tokens, (0,))
    assert (np.abs(first - want).max() <= EXACT) == (family == "modernbert")  # which has no table of positions


HOW = ["mean-of-layers:words,1,3", "mean-of-layers:3,0,words", "mean-of-layers:2,5*words,3*0"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_with_other_layers(forced_isa, bert, how, weighted):
    tokens = random_tokens(bert, LENGTHS)
    table = np.resize(token_weights(2), read_config(bert)["vocab_size"]) if weighted else None
    how = parse_pooling(how, 3)

    def pool(kind, dtype, layers, shares):
        pooling = Pooling("mean", layers, table, shares)
        return kind(Model(bert, bert, pooling, 64), dtype, "cpu", None).pool(tokens)

    apart = [pool(ReferenceBackend, "float64", (layer,), None) for layer in how.layers]
    want = np.average(apart, axis=0, weights=how.shares)
    assert how.shares is None or np.abs(want - np.mean(apart, axis=0)).max() > 0.1
    for kind, dtype, bound in (
        (ReferenceBackend, "float64", EXACT),
        (TorchBackend, "float64", 1e-9),
        (CpuBackend, "float32", UNIT),
    ):
        assert np.abs(pool(kind, dtype, how.layers, how.shares) - want).max() <= bound


def test_the_order_of_the_tokens_has_no_effect(forced_isa, bert):
    tokens = random_tokens(bert, LENGTHS)
    turned = np.concatenate([part[::-1] for part in np.split(tokens.ids, tokens.offsets[1:-1])])
    turned = Tokens(turned, tokens.offsets, tokens.cut)
    for kind, dtype, bound in ((ReferenceBackend, "float64", EXACT), (CpuBackend, "float32", UNIT)):
        one, other = (pooled_by(kind, bert, given, dtype=dtype) for given in (tokens, turned))
        assert np.abs(one - other).max() <= bound
        one, other = (pooled_by(kind, bert, given, (0,), dtype) for given in (tokens, turned))
        assert np.abs(one - other).max() > 0.1


def test_the_encoder_keeps_its_positions(bert):
    tokens = random_tokens(bert, (9, 1, 30))
    both = pooled_by(TorchBackend, bert, tokens, (WORDS, 0))
    apart = [pooled_by(TorchBackend, bert, tokens, (layer,)) for layer in (WORDS, 0)]
    assert np.array_equal(both, sum(apart) / 2)
    encoder = load_torch_encoder(bert)
    words = build_words_layer(encoder, 128, bert)
    assert words[0].word_embeddings is encoder.embeddings.word_embeddings  # one table in memory
    assert words[0].position_embeddings is not encoder.embeddings.position_embeddings


def test_positions_that_cannot_be_left_out_are_refused(tmp_path, bert):
    config = transformers.GPT2Config(vocab_size=9, n_positions=8, n_embd=4, n_layer=1, n_head=1)
    with pytest.raises(UsageError, match="out of the embedding layer of a GPT2Model; choose a pooling without words"):
        build_words_layer(transformers.GPT2Model(config).eval(), 8, tmp_path)
    encoder = load_torch_encoder(bert).eval()
    assert build_words_layer(encoder, 128, bert) is not None
    encoder.embeddings_project = torch.nn.Linear(32, 32)  # of ELECTRA, and BERT never calls it
    with pytest.raises(UsageError, match=f"{bert}: the torch backend cannot leave the positions out"):
        build_words_layer(encoder, 128, bert)


@pytest.mark.parametrize(
    ("name", "weighted", "mode", "shares"),
    [
        ("words-first-last", False, "mean", None),
        ("mean-of-layers:words,1,3", True, "weighted-mean", None),
        ("mean-of-layers:3*words,1,3", False, "mean-by-shares", [0.6, 0.2, 0.2]),
        ("mean-of-layers:3*words,1,3", True, "weighted-mean-by-shares", [0.6, 0.2, 0.2]),
    ],
)
def test_a_saved_model_has_the_layer_and_the_shares(tmp_path, bert, sentences, name, weighted, mode, shares):
    made = make_model(tmp_path / "m", bert, sentences[:64], "standardize", pooling=name, weighted=weighted)
    assert json.loads((made / "fastflow.json").read_text())["pooling"] == {
        "mode": mode, "layers": [-1, 1, 3], **({} if shares is None else {"shares": shares}),
    }  # fmt: skip
    assert load_model(made).pooling == parse_pooling(name, 3)
    want = Runtime(made, backend="reference", dtype="float64").encode(sentences[:20])
    for backend in ("cpu", "torch", "reference"):
        found = Runtime(made, backend=backend, dtype="float32").encode(sentences[:20])
        assert np.abs(found - want).max() <= EMBEDDING * np.abs(want).max()
    assert Runtime(made).info()["pooling"] == load_model(made).pooling.describe()


def test_words_alone_in_every_dtype(tmp_path, bert, sentences):
    made = make_model(tmp_path / "m", bert, sentences[:64], "standardize", pooling="words", ordered=True)
    want = Runtime(made, backend="reference").encode(sentences[:20])
    for dtype in ("float32", "bfloat16", "int8"):  # below float32 the table of words is float16
        found = Runtime(made, backend="cpu", dtype=dtype).encode(sentences[:20])
        assert np.abs(found - want).max() <= (EMBEDDING if dtype == "float32" else 2e-3) * np.abs(want).max()
