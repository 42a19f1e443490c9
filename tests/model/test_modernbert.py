"""ModernBERT's configuration: read as transformers 5 reads it, older fields too; the rest is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from fastflow.errors import FastflowError, UnsupportedArchitecture
from fastflow.model.encoder.architecture import encoder_shape, encoder_size, max_tokens
from fastflow.model.encoder.modernbert import LONGEST, biases

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


def test_what_transformers_saves_is_read_the_same(tmp_path):
    config = transformers.ModernBertConfig(**BASE, global_attn_every_n_layers=4, local_rope_theta=33.0)
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert encoder_shape(saved, HERE) == shape(global_attn_every_n_layers=4, local_rope_theta=33.0)


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
