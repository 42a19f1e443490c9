"""Tensors of MPNet and ModernBERT in the forms checkpoints come in."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from fastflow import Runtime
from fastflow.model.architecture import encoder_shape, read_config
from fastflow.model.weights import load_weights

from support.builders import make_encoder
from support.refusals import copy_of

TEXTS = ["the dog sleeps near it.", "two", "she sings quietly and the old river turns"]


@pytest.mark.parametrize(("family", "prefix"), [("mpnet", "mpnet."), ("modernbert", "model.")])
def test_a_prefix_and_the_tensors_of_a_head(encoders, tmp_path, family, prefix):
    head = {"lm_head.bias": np.zeros(3), "head.norm.weight": np.ones(32), "decoder.bias": np.zeros(3)}

    def renamed(tensors):
        return {f"{prefix}{name}": tensor for name, tensor in tensors.items()} | head

    directory = copy_of(encoders(family), tmp_path / family, "model.safetensors", renamed)
    found, want = (Runtime(each, backend="reference").encode(TEXTS) for each in (directory, encoders(family)))
    assert np.array_equal(found, want)


def test_each_weight_is_its_tensor(tmp_path):
    directory = make_encoder(tmp_path, "modernbert", attention_bias=True, mlp_bias=True, norm_bias=True)
    raw = load_file(directory / "model.safetensors")
    config = read_config(directory)
    found = load_weights(directory, config, encoder_shape(config, directory), np.float32)
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
