"""The encoder's definition in NumPy against transformers: every family, activation, length, position and pooling."""

import json
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.modernbert.modeling_modernbert import ModernBertRotaryEmbedding
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from fastflow.kernels.encoder import (
    MODES,
    WORDS,
    Dense,
    Norm,
    Unit,
    buckets,
    fold_head,
    head_width,
    reference,
    relative_bias,
    rotary_angles,
)
from fastflow.kernels.encoder.texts import ACTIVATIONS, apply_head, pool
from fastflow.model.encoder import encoder_shape, read_config
from fastflow.model.encoder.weights import load_weights

from support.builders import FAMILIES, make_encoder
from support.packed import pack, random_encoder
from support.states import assert_same, ours, random_tokens

LENGTHS = (65, 1, 2, 3, 7, 8, 9, 9, 15, 16, 17, 31, 32, 33, 63, 64)


VARIANTS = [  # family, its settings
    *((family, {}) for family in FAMILIES),
    ("bert", {"hidden_act": "gelu_new"}),
    ("bert", {"hidden_act": "relu"}),
    ("roberta", {"hidden_act": "gelu_pytorch_tanh"}),
    ("distilbert", {"activation": "relu"}),
    ("electra", {"embedding_size": 32}),
    ("bert", {"layer_norm_eps": 1e-3}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("family", "setting"), VARIANTS)
def test_every_layer_equals_transformers(tmp_path, family, setting, dtype):
    make_encoder(tmp_path, family, **setting)
    assert_same(tmp_path, random_tokens(tmp_path, LENGTHS), dtype)


def define_words(weights, start, ids):
    """(N, D) in float64: the mean of the position table from row ``start`` on for every token."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["word"][ids] + w["position"][start:].sum(axis=0) / (len(w["position"]) - start) + w["segment"]
    x = x - x.mean(axis=1, keepdims=True)
    x = x / x.std(axis=1, keepdims=True) * w["embed_norm.scale"] + w["embed_norm.bias"]
    return x @ w["projection.weight"].T + w["projection.bias"] if "projection.weight" in w else x


@pytest.mark.parametrize("form", [{}, {"pad_id": 1}, {"width": 40}, {"width": 9, "half": True}], ids=str)
def test_words_have_the_mean_position(form):
    weights, shape = random_encoder(3, 2, 104, 1, 130, **form)
    weights["position"][: shape.position_start] = 1000  # rows of padding, which no text uses
    ids, offsets = pack([17, 3], 2)
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    found = reference.encode(wide, ids, offsets, shape, (WORDS, 0), np.dtype(np.float64))
    want = define_words(weights, shape.position_start, ids)
    assert np.abs(found[WORDS] - want).max() <= 1e-10
    assert np.abs(want - found[0]).max() > 0.5


@pytest.mark.parametrize(("family", "dtype"), [("roberta", "float32"), ("mpnet", "float64")])
def test_a_literal_padding_token_in_a_text_is_numbered_as_the_family_does(encoders, family, dtype):
    tokens = random_tokens(encoders(family), (6, 9))
    tokens.ids[[2, 8, 14]] = 1
    assert_same(encoders(family), tokens, dtype)


def test_only_wanted_layers_are_kept_and_no_argument_changes(bert):
    tokens = random_tokens(bert, (4, 5))
    assert set(ours(bert, tokens, "float32", (1, 3))) == {1, 3}
    assert ours(bert, tokens.select(np.empty(0, np.int64)), "float32", (3,))[3].shape == (0, 32)
    config = read_config(bert)
    shape = encoder_shape(config, bert)
    weights = load_weights(bert, config, shape, np.float32)
    for array in (*weights.values(), *tokens[:3]):
        array.flags.writeable = False
    assert np.isfinite(reference.encode(weights, *tokens[:2], shape, (0, 3), np.dtype(np.float32))[3]).all()


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 4e-7), (np.float64, 1e-13)])
def test_erf_is_as_exact_as_it_says(dtype, bound):
    x = np.r_[np.linspace(-7, 7, 20001), 0.0, 1e-30, -1e-30, 1e6, -1e6].astype(dtype)
    assert reference.erf(x).dtype == dtype
    assert np.abs(reference.erf(x) - np.array([math.erf(v) for v in x])).max() <= bound


AT_THE_EDGES = (200, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 65, 128, 129, 130)  # vectors' widths and windows' edges
LONG = {"max_position_embeddings": 256}
LOCAL = {**LONG, "num_hidden_layers": 4, "local_attention": 128}


def test_buckets_equal_transformers_and_biases_in_the_order_of_distances():
    distances = np.arange(-9000, 9001)
    want = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances)).numpy()
    assert np.array_equal(buckets(distances), want)
    assert len(set(want)) == 31  # none is at distance 0 on the side of later keys
    found = relative_bias(np.arange(64.0).reshape(32, 2))
    assert found.shape == (2, 257)
    assert found[0, 126:131].tolist() == [4, 2, 0, 34, 36]  # rows 2, 1, 0 after the query, 17 and 18 before it
    assert np.array_equal(found[1], found[0] + 1)
    assert (found[0, 0], found[0, -1]) == (30, 62)  # and what is farther has these


@pytest.mark.parametrize("head", [2, 6, 10, 32, 64, 96])
@pytest.mark.parametrize("base", [10000.0, 160000.0])
def test_angles_equal_transformers_to_the_last_place(head, base):
    settings = {"full_attention": {"rope_type": "default", "rope_theta": base}}
    config = transformers.ModernBertConfig(hidden_size=2 * head, num_attention_heads=2, rope_parameters=settings)
    want, scaling = ModernBertRotaryEmbedding.compute_default_rope_parameters(config, layer_type="full_attention")
    assert scaling == 1
    found = rotary_angles(2, head, base)[1]
    assert found.dtype == np.float32
    assert np.abs(found.view(np.int32) - want.numpy().view(np.int32)).max() <= 1  # PyTorch rounds less well
    assert np.array_equal(rotary_angles(8192, head, base)[8191], np.float32(8191) * found)


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
    assert_same(tmp_path, random_tokens(tmp_path, AT_THE_EDGES), dtype, attention)


def test_fields_as_transformers_4_wrote_them(tmp_path):
    settings: dict[str, Any] = {"global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 60.0}
    make_encoder(tmp_path, "modernbert", **LOCAL, **settings)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for name in ("layer_types", "rope_parameters", *settings):
        config.pop(name, None)
    path.write_text(json.dumps({**config, **settings, "position_embedding_type": "absolute", "layer_norm_eps": 1e-5}))
    assert_same(tmp_path, random_tokens(tmp_path, (70, 3, 40)), "float64")


OFFSETS = np.array([0, 1, 4, 9])
NAMES = {
    "identity": "Identity", "tanh": "Tanh", "relu": "ReLU", "gelu": "GELU", "sigmoid": "Sigmoid", "silu": "SiLU",
    "elu": "ELU", "leaky_relu": "LeakyReLU", "softplus": "Softplus", "softsign": "Softsign", "relu6": "ReLU6",
    "hardtanh": "Hardtanh", "mish": "Mish",
}  # fmt: skip


@pytest.fixture
def states():
    return np.random.default_rng(0).normal(size=(9, 4))


def by_hand(x, mode, w, skip):
    """Pool one text as Sentence Transformers' documentation describes."""
    kept = [i for i in range(len(x)) if i >= skip]
    weights = np.ones(len(x)) if w is None else w
    if mode == "cls":
        i = kept[0] if kept else 0
        return x[i] * weights[i]
    if mode == "lasttoken":
        return x[-1] * weights[-1] if kept else np.zeros_like(x[0])
    if mode == "max":
        return np.max([x[i] * weights[i] for i in kept], axis=0) if kept else np.full_like(x[0], -np.inf)
    factor = [i + 1 if mode == "weightedmean" else 1 for i in range(len(x))]
    total = sum((x[i] * weights[i] * factor[i] for i in kept), np.zeros_like(x[0]))
    divisor = sum(factor[i] for i in kept) if w is None else w.sum()
    return total / (np.sqrt(max(divisor, 1e-9)) if mode == "mean_sqrt_len_tokens" else max(divisor, 1e-9))


@pytest.mark.parametrize("mode", MODES)
def test_pooling(states, mode):
    for table in (None, np.array([2, 0.5, 0, 3, 1, 0, 0, 0.25, 4.0])):
        for skip in (0, 1, 2, 9):
            found = pool(states, OFFSETS, mode, table, skip)
            for i in range(3):
                rows = slice(OFFSETS[i], OFFSETS[i + 1])
                want = by_hand(states[rows], mode, None if table is None else table[rows], skip)
                np.testing.assert_allclose(found[i], want, rtol=1e-12, atol=1e-15)
    assert pool(states[:0], np.array([0]), mode).shape == (0, 4)
    assert pool(states.astype(np.float32), OFFSETS, mode, np.ones(9, np.float32), 1).dtype == np.float32
    if mode != "max":
        np.testing.assert_array_equal(pool(states, OFFSETS, mode, np.zeros(9)), 0)


def test_activations_equal_torchs():
    assert set(NAMES) == set(ACTIVATIONS)
    x, gelu = np.linspace(-30, 30, 2001), torch.nn.functional.gelu
    pairs = {name: (ACTIVATIONS[name], getattr(torch.nn, kind)()) for name, kind in NAMES.items()}
    for kind, want in (("gelu", gelu), ("gelu_tanh", partial(gelu, approximate="tanh")), ("relu", torch.relu)):
        pairs[f"of layers: {kind}"] = partial(reference.activate, kind=kind), want
    for name, (found, want) in pairs.items():
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(found(x), want(torch.from_numpy(x)).numpy(), 1e-11, 1e-11, err_msg=name)


def dense(out, inputs, activation="identity", residual=False, projected=False):
    rng = np.random.default_rng(out + inputs)
    projection = rng.normal(size=(out, inputs)) if projected else None
    return Dense(rng.normal(size=(out, inputs)), rng.normal(size=out), activation, residual, projection)


@pytest.mark.parametrize(
    ("module", "width"),
    [
        (dense(3, 4, "tanh"), 3),
        (dense(4, 4, "gelu", residual=True), 4),
        (dense(3, 4, "relu", residual=True, projected=True), 3),
        (Unit(), 4),
        (Norm(np.array([1.0, 2, 3, 4]), np.array([0.5, 0, 0, 1])), 4),
    ],
)
def test_modules_equal_torchs(states, module, width):
    x = torch.from_numpy(states)
    if isinstance(module, Dense):
        y = torch.nn.functional.linear(x, torch.from_numpy(module.weight), torch.from_numpy(module.bias))
        y = getattr(torch.nn, NAMES[module.activation])()(y)
        if module.residual:
            y = y + (x if module.projection is None else x @ torch.from_numpy(module.projection).T)
    elif isinstance(module, Unit):
        y = torch.nn.functional.normalize(x, p=2, dim=-1)
    else:
        y = torch.nn.functional.layer_norm(x, (4,), torch.from_numpy(module.scale), torch.from_numpy(module.bias))
    np.testing.assert_allclose(apply_head([module], states), y.numpy(), rtol=1e-11, atol=1e-12)
    assert head_width([module], 4) == width


def test_affine_neighbours_become_one_if_that_is_less_work(states):
    chain = [dense(5, 4), dense(5, 5, residual=True), dense(2, 5, residual=True, projected=True), Unit(), dense(2, 2)]
    found = fold_head(chain)
    assert [type(module) for module in found] == [Dense, Unit, Dense]
    assert (found[0].weight.shape, found[0].residual) == ((2, 4), False)
    np.testing.assert_allclose(apply_head(found, states), apply_head(chain, states), rtol=1e-11)
    assert len(fold_head([dense(1, 4), dense(6, 1)])) == 2, "a bottleneck is less work as it is"
    assert len(fold_head([dense(4, 4, "tanh"), dense(4, 4)])) == 2
    np.testing.assert_array_equal(apply_head([Unit()], np.zeros((2, 3))), 0)
