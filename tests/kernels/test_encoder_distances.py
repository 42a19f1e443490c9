"""Positions inside attention against transformers: MPNet's buckets, ModernBERT's rotary angles and windows."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.modernbert.modeling_modernbert import ModernBertRotaryEmbedding
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from fastflow.kernels.encoder.distances import buckets, relative_bias, rotary_angles, rotary_table, rotate

from support.builders import make_encoder
from support.states import assert_same, random_tokens

LENGTHS = (200, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 65, 128, 129, 130)  # vectors' widths and windows' edges
LONG = {"max_position_embeddings": 256}
LOCAL = {**LONG, "num_hidden_layers": 4, "local_attention": 128}


def test_buckets_are_those_of_transformers():
    distances = np.arange(-9000, 9001)
    want = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances)).numpy()
    assert np.array_equal(buckets(distances), want)
    assert len(set(want)) == 31  # none is at distance 0 on the side of later keys


def test_biases_are_in_the_order_of_distances():
    table = np.arange(64.0).reshape(32, 2)
    found = relative_bias(table)
    assert found.shape == (2, 257)
    assert found[0, 126:131].tolist() == [4, 2, 0, 34, 36]  # rows 2, 1, 0 after the query, 17 and 18 before it
    assert np.array_equal(found[1], found[0] + 1)
    assert (found[0, 0], found[0, -1]) == (30, 62)  # and what is farther has these, see the test before


@pytest.mark.parametrize("head", [2, 6, 10, 32, 64, 96])
@pytest.mark.parametrize("base", [10000.0, 160000.0])
def test_angles_are_those_of_transformers_to_the_last_place(head, base):
    settings = {"full_attention": {"rope_type": "default", "rope_theta": base}}
    config = transformers.ModernBertConfig(hidden_size=2 * head, num_attention_heads=2, rope_parameters=settings)
    want, scaling = ModernBertRotaryEmbedding.compute_default_rope_parameters(config, layer_type="full_attention")
    assert scaling == 1
    found = rotary_angles(2, head, base)[1]
    assert found.dtype == np.float32
    assert np.abs(found.view(np.int32) - want.numpy().view(np.int32)).max() <= 1  # PyTorch rounds less well
    assert np.array_equal(rotary_angles(8192, head, base)[8191], np.float32(8191) * found)


def test_a_rotation_keeps_lengths_and_gives_products_of_distances():
    x = np.random.default_rng(0).normal(size=(1, 40, 12))
    same = np.repeat(x[:, :1], 40, axis=1)  # one query and one key at all positions
    turned = rotate(same, 10000.0)
    assert np.abs(np.linalg.norm(turned, axis=-1) - np.linalg.norm(same, axis=-1)).max() <= 1e-12
    products = turned[0] @ turned[0].T
    assert np.abs(products[:-1, :-1] - products[1:, 1:]).max() <= 1e-5  # angles are rounded to float32
    cos, sin = rotary_table(40, 12, 10000.0)
    assert np.array_equal(cos[0], np.ones(6))
    assert np.array_equal(sin[0], np.zeros(6))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "attention"), [("float32", "eager"), ("float64", None)])
@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("mpnet", {"max_position_embeddings": 258}),
        ("mpnet", {**LONG, "num_hidden_layers": 1, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
        ("modernbert", LOCAL),
        ("modernbert", {**LOCAL, "local_attention": 33, "hidden_size": 40, "intermediate_size": 50}),
        ("modernbert", {**LOCAL, "local_attention": 1}),
        ("modernbert", {**LOCAL, "attention_bias": True, "mlp_bias": True, "norm_bias": True}),
        ("modernbert", {**LOCAL, "hidden_activation": "gelu_pytorch_tanh", "norm_eps": 1e-2}),
        ("modernbert", {**LOCAL, "global_attn_every_n_layers": 1}),
        ("modernbert", {**LOCAL, "global_attn_every_n_layers": 2, "local_rope_theta": 77.0, "global_rope_theta": 5.0}),
        ("modernbert", {**LOCAL, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    ],
)
def test_texts_as_long_as_windows_and_longer(tmp_path, family, setting, dtype, attention):
    make_encoder(tmp_path, family, **setting)
    assert_same(tmp_path, random_tokens(tmp_path, LENGTHS), dtype, attention)


def test_fields_as_transformers_4_wrote_them(tmp_path):
    settings: dict[str, Any] = {"global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 60.0}
    make_encoder(tmp_path, "modernbert", **LOCAL, **settings)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for name in ("layer_types", "rope_parameters", *settings):
        config.pop(name, None)
    path.write_text(json.dumps({**config, **settings, "position_embedding_type": "absolute", "layer_norm_eps": 1e-5}))
    assert_same(tmp_path, random_tokens(tmp_path, (70, 3, 40)), "float64")


def test_a_literal_padding_token_keeps_mpnet_s_own_position(encoders):
    tokens = random_tokens(encoders("mpnet"), (6, 9))
    tokens.ids[[2, 8, 14]] = 1
    assert_same(encoders("mpnet"), tokens, "float64")
