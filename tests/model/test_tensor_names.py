"""Tensors of MPNet and ModernBERT in the forms checkpoints come in; what is missing, misshapen or denied is named."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.architecture import encoder_shape, read_config
from fastflow.model.weights import load_weights

from support.builders import make_encoder

TEXTS = ["the dog sleeps near it.", "two", "she sings quietly and the old river turns"]
BACKENDS = ("cpu", "reference", "torch")


@pytest.fixture
def copy(encoders, tmp_path):
    return lambda family: shutil.copytree(encoders(family), tmp_path / family)


def rewrite(directory, change):
    path = directory / "model.safetensors"
    tensors = change(load_file(path))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})
    return directory


def embed(directory, backend):
    return Runtime(directory, backend=backend).encode(TEXTS)


@pytest.mark.parametrize(("family", "prefix"), [("mpnet", "mpnet."), ("modernbert", "model.")])
def test_a_prefix_and_the_tensors_of_a_head(copy, encoders, family, prefix):
    head = {"lm_head.bias": torch.zeros(3), "head.norm.weight": torch.ones(32), "decoder.bias": torch.zeros(3)}
    directory = rewrite(copy(family), lambda tensors: {f"{prefix}{name}": t for name, t in tensors.items()} | head)
    assert np.array_equal(embed(directory, "reference"), embed(encoders(family), "reference"))


def test_each_weight_is_its_tensor(tmp_path):
    directory = make_encoder(tmp_path, "modernbert", attention_bias=True, mlp_bias=True, norm_bias=True)
    raw = {name: tensor.numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("mpnet", "encoder.relative_attention_bias.weight"),
        ("mpnet", "encoder.layer.2.attention.attn.k.weight"),
        ("mpnet", "encoder.layer.1.attention.LayerNorm.bias"),
        ("modernbert", "layers.1.attn_norm.weight"),
        ("modernbert", "layers.2.mlp.Wi.weight"),
        ("modernbert", "final_norm.weight"),
    ],
)
def test_a_tensor_that_is_missing_or_misshapen_is_named(copy, family, name, backend):
    directory = copy(family)
    whole = load_file(directory / "model.safetensors")
    rewrite(directory, lambda tensors: tensors | {name: tensors[name][..., :-1]})
    with pytest.raises(FastflowError, match=rf"{name} has shape .* config\.json needs"):
        embed(directory, backend)
    rewrite(directory, lambda _: {key: tensor for key, tensor in whole.items() if key != name})
    with pytest.raises(FastflowError, match=f"the weights lack tensor {name}"):
        embed(directory, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("layers.2.attn.Wqkv.bias", "config.json, field attention_bias, has none"),
        ("layers.0.mlp.Wo.bias", "config.json, field mlp_bias, has none"),
        ("layers.3.mlp_norm.bias", "config.json, field norm_bias, has none"),
        ("final_norm.bias", "config.json, field norm_bias, has none"),
        ("layers.0.attn_norm.weight", "the first layer of a ModernBERT has no such LayerNorm"),
    ],
)
def test_a_tensor_that_would_be_left_out_is_refused(copy, name, why, backend):
    directory = rewrite(copy("modernbert"), lambda tensors: tensors | {name: torch.ones(32)})
    with pytest.raises(FastflowError, match=f"the weights hold tensor {name}, and {why}"):
        embed(directory, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_of_buckets_that_mpnet_s_code_does_not_obey(tmp_path, backend):
    directory = make_encoder(tmp_path, "mpnet", relative_attention_num_buckets=64)
    with pytest.raises(FastflowError, match=r"config\.json, field relative_attention_num_buckets: must be 32"):
        embed(directory, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["mpnet", "modernbert"])
def test_a_pickle_is_never_opened(copy, family, backend):
    directory = copy(family)
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    with pytest.raises(FastflowError, match=r"no model\.safetensors; convert pytorch_model\.bin"):
        embed(directory, backend)
