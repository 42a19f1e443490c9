"""Encoder directories: the forms of checkpoints, and ModernBERT's configuration. Refusals: test_refusals_encoder.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from fastflow import Runtime
from fastflow.errors import FastflowError, UnsupportedArchitecture
from fastflow.model.encoder import LONGEST, encoder_shape, encoder_size, max_tokens, read_config
from fastflow.model.encoder.weights import biases, load_weights

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


# ---- ModernBERT: read as transformers 5 reads it, older fields too; the rest is refused by name

BASE = {
    "model_type": "modernbert", "num_hidden_layers": 7, "hidden_size": 48, "num_attention_heads": 4,
    "intermediate_size": 72, "max_position_embeddings": 8192, "vocab_size": 100, "local_attention": 128,
}  # fmt: skip
HERE = Path("somewhere")


def shape(**settings):
    config = {**BASE, **settings}
    return encoder_shape({name: value for name, value in config.items() if value is not ...}, HERE)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"global_attn_every_n_layers": 2},
        {"global_attn_every_n_layers": 1, "local_attention": 33},
        {"global_attn_every_n_layers": 100, "global_rope_theta": 1000.0, "local_rope_theta": 20},
        {"layer_types": ["full_attention", "sliding_attention"] * 3 + ["full_attention"]},
        {"layer_types": ["sliding_attention"] * 7, "global_attn_every_n_layers": 3},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 7.0}}},
        {"rope_parameters": {"sliding_attention": {"rope_theta": 7.0}}, "local_rope_theta": 9.0},
        {"rope_parameters": {"sliding_attention": {"rope_type": "default"}}, "local_rope_theta": 9.0},
        {"rope_parameters": None, "rope_scaling": None, "local_rope_theta": 9.0, "norm_eps": 1e-3},
        {"sliding_window": 64},
    ],
)
def test_windows_and_bases_are_those_of_transformers(settings):
    config = transformers.ModernBertConfig(**json.loads(json.dumps({**BASE, **settings})))
    found = shape(**settings)
    local = [kind == "sliding_attention" for kind in config.layer_types]
    assert found.windows == tuple(config.sliding_window if near else None for near in local)
    assert found.rotary == tuple(config.rope_parameters[kind]["rope_theta"] for kind in config.layer_types)
    assert (found.eps, found.layers, found.pre_norm, found.gated) == (config.norm_eps, 7, True, True)
    assert max_tokens(found) == encoder_size({**BASE, **settings}, HERE).max_tokens == 8192


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_activation": "silu"}, "field hidden_activation: activation 'silu' is not supported"),
        ({"layer_types": ["full_attention"] * 6 + ["chunked_attention"]}, "layer_types 'chunked_attention' is not"),
        ({"layer_types": ["full_attention"] * 6 + [["x"]]}, r"layer_types \['x'\] is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_scaling .* is not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_parameters.full_attention 'yarn'"),
        ({"rope_parameters": {"sliding_attention": {"type": "linear"}}}, "rope_parameters.sliding_attention 'linear'"),
        ({"rope_parameters": {"full_attention": {"factor": 2}}}, "rope_parameters.full_attention {'factor': 2} is not"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"head_dim": 16}, "head_dim 16 is not supported"),
        ({"sliding_window": 128}, "sliding_window 128 is not supported"),
    ],
)
def test_what_only_pytorch_may_run(settings, message):
    with pytest.raises(UnsupportedArchitecture, match=message):
        shape(**settings)
    assert encoder_size({**BASE, **settings}, HERE).max_tokens == 8192


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers: must be at most 1000"),
        ({"num_hidden_layers": 7.0}, "num_hidden_layers: missing or not a whole number"),
        ({"hidden_size": ...}, "hidden_size: missing"),
        ({"num_attention_heads": 5}, "5 heads do not divide 48"),
        ({"num_attention_heads": 16}, "num_attention_heads: leaves 3 dimensions to a head"),
        ({"max_position_embeddings": LONGEST + 1}, f"max_position_embeddings: must be at most {LONGEST}"),
        ({"max_position_embeddings": 1}, "max_position_embeddings: leaves room for 1 tokens"),
        ({"local_attention": 0}, "local_attention: must be at least 1"),
        ({"local_attention": None}, "local_attention: missing or not a whole number"),
        ({"intermediate_size": "72"}, "intermediate_size: missing or not a whole number"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers: must be at least 1"),
        ({"layer_types": []}, "layer_types: must be a list of 7 types"),
        ({"layer_types": "full_attention"}, "layer_types: must be a list of 7 types"),
        ({"norm_eps": -1}, "norm_eps: must be a number from 0 to 1"),
        ({"norm_eps": float("nan")}, "norm_eps: must be a number"),
        ({"global_rope_theta": 0}, "global_rope_theta: must be a number from 1 to 1e"),
        ({"local_rope_theta": None}, "local_rope_theta: must be a number"),
        ({"local_rope_theta": float("inf")}, "local_rope_theta: must be a number"),
        ({"rope_parameters": {"full_attention": {"rope_theta": True}}}, "full_attention.rope_theta: must be a number"),
        ({"rope_parameters": {"rope_theta": 10.0}}, "field rope_parameters: must be an object of full_attention and"),
        ({"rope_parameters": [1]}, "field rope_parameters: must be an object of"),
        ({"rope_parameters": {"full_attention": None}}, "field rope_parameters.full_attention: must be an object"),
        ({"rope_parameters": {"full_attention": 3}}, "field rope_parameters.full_attention: must be an object"),
        ({"position_embedding_type": "relative_key"}, "only absolute position embeddings"),
    ],
)
def test_a_field_that_cannot_be_run_is_named(settings, message):
    with pytest.raises(FastflowError, match=message) as caught:
        shape(**settings)
    assert not isinstance(caught.value, UnsupportedArchitecture)  # PyTorch would ignore it, or fail too


def test_biases_are_false_unless_said():
    assert biases({}, HERE) == {"attention": False, "mlp": False, "norm": False}
    assert biases({"norm_bias": True, "mlp_bias": False}, HERE)["norm"]
    with pytest.raises(FastflowError, match="field mlp_bias: must be true or false, not 1"):
        biases({"mlp_bias": 1}, HERE)
