"""The refusal contract of static encoders: what a file says is obeyed, or refused by file and field."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.model.verify import verify

from support.builders import VOCABULARY, byte_level
from support.refusals import DEEP, INF, NAN, copy_of, each, refuses, spoil
from support.static_dirs import model2vec_dir, numbers, static_embedding_dir

SIZE, CLUSTERS, WIDTH = len(VOCABULARY), 20, 8
OLD = "sentence_transformers.models."
DENSE = ("Dense", {"out_features": 4, "activation_function": "torch.nn.modules.activation.Tanh"})
BAG = "0_StaticEmbedding/"
CONFIG, WEIGHTS, TOKENIZER, MODULES = "config.json", "model.safetensors", "tokenizer.json", "modules.json"


def module(index, **changes):
    """A fault in one entry of modules.json."""
    return lambda entries: entries[index].update(changes)


def with_module(**entry):
    return lambda entries: entries.append({"idx": len(entries), "name": "new", **entry})


def with_one_more_word(tree):
    tree["added_tokens"].append(tree["added_tokens"][-1] | {"id": SIZE, "content": "brandnew"})


def truncated(direction):
    cut = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": direction}
    return lambda tree: tree.update(truncation=cut)


def weights_with(value):
    return {"weights": np.where(np.arange(SIZE) == 9, value, 1).astype(np.float32)}


OWN_FILES = [
    *each(CONFIG, "normalize", ["yes", 1, None], "config.json, field normalize: must be true or false, not"),
    *each(CONFIG, "max_length", [0, -1, "512", True, 4.0], "field max_length: must be a whole number of at least 1 or"),
    (CONFIG, {"pool": "max"}, "config.json, field 'pool': is unknown to this version of fastflow"),
    (CONFIG, "[", "config.json is not JSON"),
    (WEIGHTS, None, "model.safetensors is missing"),
    ("model.safetensors.index.json", "{}", "model.safetensors.index.json: a token table is one file, model.safe"),
    (WEIGHTS, b"1234", "model.safetensors is damaged or not safetensors"),
    (WEIGHTS, {"embeddings": ...}, "tensor embeddings is missing: it is no token table"),
    (WEIGHTS, {"bias": numbers((3,))}, "tensor bias is unknown to this version of fastflow"),
    (WEIGHTS, {"embeddings": numbers((CLUSTERS,))}, "tensor embeddings has shape (20,); a table has rows and columns"),
    (WEIGHTS, {"embeddings": numbers((CLUSTERS, 0))}, "has shape (20, 0)"),
    (WEIGHTS, {"embeddings": np.ones((CLUSTERS, 4), np.int32)}, "embeddings has dtype int32, which no table has"),
    (WEIGHTS, {"mapping": np.zeros((SIZE, 1), np.int64)}, "tensor mapping must be one row of whole numbers, not int64"),
    (WEIGHTS, {"mapping": np.zeros(SIZE, np.float32)}, "tensor mapping must be one row of whole numbers, not float32"),
    (WEIGHTS, {"mapping": np.full(SIZE, CLUSTERS)}, "tensor mapping leads outside the table, which has 20 rows"),
    (WEIGHTS, {"mapping": np.full(SIZE, -1)}, "tensor mapping leads outside the table"),
    (WEIGHTS, {"mapping": ...}, "tensor weights must be floats of shape (20,), not float32 of (132,)"),
    (WEIGHTS, {"mapping": ..., "weights": ...}, "the tokenizer has 132 entries, and the table has 20 vectors"),
    (WEIGHTS, {"mapping": np.zeros(9, np.int64), "weights": ...}, "132 entries, and the table has 9 vectors"),
    (WEIGHTS, {"weights": np.ones(SIZE, np.int64)}, "tensor weights must be floats of shape (132,), not int64"),
    *((WEIGHTS, weights_with(odd), "tensor weights holds NaN or infinity") for odd in (NAN, INF, -INF)),
    (TOKENIZER, None, "has no tokenizer: neither tokenizer.json nor vocab.txt"),
    (TOKENIZER, "{}", "tokenizer.json cannot be read as a tokenizer"),
    (TOKENIZER, DEEP, "tokenizer.json cannot be read"),
    (TOKENIZER, with_one_more_word, "the tokenizer has 133 entries, and the table has 132 vectors"),
    (MODULES, json.dumps([{"type": OLD + "Dense"}]), f"{OLD}Dense' is a module that model2vec does not run"),
    (MODULES, '["x"]', "modules.json: \"'x'\" is a module that model2vec does not run"),
    (MODULES, "{", "modules.json is not JSON"),
]  # fmt: skip
BAG_FILES = [
    (BAG + WEIGHTS, None, "0_StaticEmbedding/model.safetensors is missing"),
    (BAG + WEIGHTS, {"embedding.weight": ...}, "tensor embeddings is missing: it is no token table"),
    (BAG + WEIGHTS, {"weights": numbers((SIZE,))}, "tensor weights is unknown to this version of fastflow"),
    (BAG + WEIGHTS, {"embedding.weight": np.ones((SIZE, 4), np.int8)}, "is int8 without weights, which a StaticEmbed"),
    (BAG + WEIGHTS, {"embedding.weight": numbers((9, WIDTH))}, "the tokenizer has 132 entries, and the table has 9"),
    (BAG + TOKENIZER, truncated("Left"), "tokenizer.json, field truncation, direction: must be right, not 'left'"),
    (BAG + CONFIG, {"model_type": "model2vec"}, "config.json is model2vec's, whose vectors differ: open"),
    (BAG + CONFIG, {"model_type": "bert"}, "config.json has no place next to a StaticEmbedding"),
    (MODULES, with_module(path="p", type=OLD + "Pooling"), "modules.json: Pooling cannot come after a StaticEmbedding"),
    (MODULES, with_module(path="p", type=OLD + "StaticEmbedding"), "StaticEmbedding cannot come after"),
    (MODULES, module(0, path="nowhere"), "nowhere/model.safetensors is missing"),
    (MODULES, module(0, path="../0_StaticEmbedding"), "lies outside the directory"),
    (MODULES, module(1, path="0_StaticEmbedding"), "module 1, field path: '0_StaticEmbedding' is there twice"),
    ("1_Dense/config.json", {"in_features": 9}, "field in_features: must be 8, not 9"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "fault", "sentence"), OWN_FILES)
def test_model2vec(tmp_path, file, fault, sentence):
    good = model2vec_dir(tmp_path / "good", width=WIDTH, clusters=CLUSTERS, weights=np.float32, normalize=True)
    refuses(Runtime, copy_of(good, tmp_path / "bad", file, fault), sentence)
    Runtime(good)


@pytest.mark.parametrize(("file", "fault", "sentence"), BAG_FILES)
def test_static_embedding(tmp_path, file, fault, sentence):
    good = static_embedding_dir(tmp_path / "good", [DENSE], width=WIDTH)
    refuses(Runtime, copy_of(good, tmp_path / "bad", file, fault), sentence)
    Runtime(good)


def test_model2vec_has_a_row_for_each_entry(tmp_path):
    """A StaticEmbedding may have more rows; model2vec refuses such a table."""
    more = numbers((SIZE + 8, WIDTH))
    own = spoil(model2vec_dir(tmp_path / "own", width=WIDTH), WEIGHTS, {"embeddings": more})
    refuses(Runtime, own, f"the tokenizer has {SIZE} entries, and the table has {SIZE + 8} vectors")
    bag = spoil(static_embedding_dir(tmp_path / "bag", width=WIDTH), BAG + WEIGHTS, {"embedding.weight": more})
    assert Runtime(bag).dim == WIDTH


def test_a_pickle_is_named(tmp_path):
    path = model2vec_dir(tmp_path / "m")
    (path / WEIGHTS).rename(path / "pytorch_model.bin")
    refuses(Runtime, path, "pytorch_model.bin is a pickle, which fastflow never opens")


def test_a_tokenizer_that_merges_at_random(tmp_path):
    path = model2vec_dir(tmp_path / "m", byte_level())
    spoil(path, TOKENIZER, lambda tree: tree["model"].update(dropout=0.1))
    refuses(Runtime, path, "tokenizer.json, field dropout: must be null")


@pytest.mark.parametrize("backend", ["cpu", "reference", "torch"])
def test_a_row_that_is_not_finite_names_the_text(tmp_path, backend):
    """Rows are not read when a table is opened: a text that needs one is refused, and ``verify`` reads all."""
    path = model2vec_dir(tmp_path / "m", dtype=np.float16)
    assert verify(path)[0].startswith("token table of ")
    rows = numbers((SIZE, 37), 1, np.float16)
    rows[VOCABULARY.index("dog"), 5] = np.inf
    spoil(path, WEIGHTS, {"embeddings": rows})
    runtime = Runtime(path, backend=backend)
    assert np.isfinite(runtime.encode(["the cat"])).all()
    refuses(runtime.encode, ["the cat", "the dog"], "text 1 gives NaN or infinity")
    refuses(verify, path, f"row {VOCABULARY.index('dog')} of the table holds NaN or infinity")


def test_a_vocabulary_that_lacks_its_unknown_token(tmp_path):
    """The library raises an error of its own for the first word that it does not know."""
    path = model2vec_dir(tmp_path / "m")
    spoil(path, TOKENIZER, lambda tree: tree["model"].update(unk_token="[NONE]"))
    texts = ["жук на дереве у реки, and a dog near the river"] * 40
    refuses(Runtime(path).encode, texts, "the tokenizer cannot take a text: … Missing [UNK] token")
