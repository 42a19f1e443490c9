"""Reading encoder directories: the forms checkpoints come in. What cannot be used: test_refusals_encoder.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastflow import Runtime
from fastflow.model.encoder.architecture import encoder_shape, read_config
from fastflow.model.encoder.weights import load_weights

from support.builders import make_encoder
from support.refusals import copy_of

TEXTS = ["the dog sleeps near it.", "two", "she sings quietly and the old river turns"]
WEIGHTS = "model.safetensors"
BACKENDS = ("reference", "torch")


def embed(directory: Path, backend: str = "reference") -> np.ndarray:
    return Runtime(directory, backend=backend).encode(TEXTS)


def canonical(directory: Path) -> dict[str, np.ndarray]:
    config = read_config(directory)
    return load_weights(directory, config, encoder_shape(config, directory), np.float32)


def gamma_and_beta(tensors):
    """The names of TensorFlow's checkpoints."""
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for old, new in names.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    return tensors


def prefixed(prefix):
    """The names of a checkpoint with a head, and the tensors of one."""
    head = {"lm_head.bias": np.zeros(3), "head.norm.weight": np.ones(32), "decoder.bias": np.zeros(3)}
    return lambda tensors: {f"{prefix}.{name}": tensor for name, tensor in tensors.items()} | head


PREFIXES = {"xlm-roberta": "roberta", "camembert": "roberta", "modernbert": "model"}
FORMS = [
    ("bert", gamma_and_beta),
    ("bert", lambda tensors: prefixed("bert")(gamma_and_beta(tensors))),
    ("bert", {"embeddings.position_ids": np.arange(128)[None]}),
    ("bert", lambda tensors: {name: tensor for name, tensor in tensors.items() if "pooler" not in name}),
    *((family, prefixed(PREFIXES.get(family, family)))
      for family in ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "mpnet", "modernbert")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "form"), FORMS)
def test_other_names_of_the_same_weights(encoders, tmp_path, family, form):
    renamed = copy_of(encoders(family), tmp_path / family, WEIGHTS, form)
    for backend in BACKENDS:
        assert np.array_equal(embed(renamed, backend), embed(encoders(family), backend)), backend


def test_sharded_weights(bert, bert_copy):
    tensors = load_file(bert_copy / WEIGHTS)
    (bert_copy / WEIGHTS).unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, bert_copy / shard, {"format": "pt"})
    where = {name: shard for shard, held in shards.items() for name in held}
    index = bert_copy / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": where}))
    for backend in BACKENDS:
        assert np.array_equal(embed(bert_copy, backend), embed(bert, backend))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_stored_precisions_are_widened_exactly(bert_copy, dtype):
    rounded = {name: tensor.to(dtype) for name, tensor in load_file(bert_copy / WEIGHTS).items()}
    save_file(rounded, bert_copy / WEIGHTS)
    found = canonical(bert_copy)
    want = {name: tensor.float().numpy() for name, tensor in rounded.items()}
    assert np.array_equal(found["layer.1.up.weight"], want["encoder.layer.1.intermediate.dense.weight"])
    assert np.array_equal(found["word"].astype(np.float32), want["embeddings.word_embeddings.weight"])
    assert np.array_equal(found["segment"], want["embeddings.token_type_embeddings.weight"][0])
    assert np.abs(embed(bert_copy) - embed(bert_copy, "torch")).max() <= 1e-5


def test_each_weight_is_its_tensor(tmp_path):
    directory = make_encoder(tmp_path, "modernbert", attention_bias=True, mlp_bias=True, norm_bias=True)
    raw = {name: tensor.numpy() for name, tensor in load_file(directory / WEIGHTS).items()}
    found = canonical(directory)
    for name, tensor in {
        "word": "embeddings.tok_embeddings.weight", "embed_norm.bias": "embeddings.norm.bias",
        "layer.1.norm1.scale": "layers.1.attn_norm.weight", "layer.0.norm2.bias": "layers.0.mlp_norm.bias",
        "layer.2.qkv.weight": "layers.2.attn.Wqkv.weight", "layer.2.qkv.bias": "layers.2.attn.Wqkv.bias",
        "layer.2.up.weight": "layers.2.mlp.Wi.weight", "layer.4.down.bias": "layers.4.mlp.Wo.bias",
        "layer.3.out.weight": "layers.3.attn.Wo.weight", "final_norm.scale": "final_norm.weight",
    }.items():  # fmt: skip
        assert np.array_equal(found[name], raw[tensor]), name
    assert len(found) == len(raw)
    assert not {"position", "segment", "layer.0.norm1.scale"} & found.keys()
