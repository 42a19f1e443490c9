"""The NumPy reference encoder against transformers: every family, activation and awkward length."""

import math

import numpy as np
import pytest
import torch

from fastflow.kernels.encoder import reference
from fastflow.model.architecture import encoder_shape, read_config
from fastflow.model.weights import load_weights

from support.builders import FAMILIES, make_encoder
from support.states import assert_same, ours, random_tokens
from support.tolerances import COMPANY

LENGTHS = (65, 1, 2, 3, 7, 8, 9, 9, 15, 16, 17, 31, 32, 33, 63, 64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_equals_transformers(encoders, family, dtype):
    assert_same(encoders(family), random_tokens(encoders(family), LENGTHS), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("bert", {"hidden_act": "gelu_new"}),
        ("bert", {"hidden_act": "relu"}),
        ("roberta", {"hidden_act": "gelu_pytorch_tanh"}),
        ("distilbert", {"activation": "relu"}),
        ("electra", {"embedding_size": 32}),
        ("bert", {"layer_norm_eps": 1e-3}),
    ],
)
def test_variants_equal_transformers(tmp_path, family, setting, dtype):
    make_encoder(tmp_path, family, **setting)
    assert_same(tmp_path, random_tokens(tmp_path, (17, 3, 8)), dtype)


def test_a_literal_padding_token_in_a_text_is_numbered_as_roberta_does(encoders):
    tokens = random_tokens(encoders("roberta"), (6, 9))
    tokens.ids[[2, 8, 14]] = 1
    assert_same(encoders("roberta"), tokens, "float32")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_text_alone_equals_the_text_in_company(encoders, family, dtype):
    directory = encoders(family)
    tokens = random_tokens(directory, LENGTHS)
    together = ours(directory, tokens, dtype, (3,))[3]
    for i, (start, stop) in enumerate(zip(tokens.offsets, tokens.offsets[1:], strict=False)):
        alone = ours(directory, tokens.select(np.array([i])), dtype, (3,))[3]
        assert np.abs(alone - together[start:stop]).max() <= COMPANY[dtype]


def test_only_wanted_layers_are_kept_and_no_text_is_no_work(bert):
    tokens = random_tokens(bert, (4, 5))
    assert set(ours(bert, tokens, "float32", (1, 3))) == {1, 3}
    nothing = tokens.select(np.empty(0, np.int64))
    assert ours(bert, nothing, "float32", (3,))[3].shape == (0, 32)


def test_the_reference_changes_none_of_its_arguments(bert):
    config = read_config(bert)
    shape = encoder_shape(config, bert)
    weights = load_weights(bert, config, shape, np.float32)
    for array in weights.values():
        array.flags.writeable = False
    tokens = random_tokens(bert, (4, 9))
    for array in tokens[:3]:
        array.flags.writeable = False
    assert np.isfinite(reference.encode(weights, *tokens[:2], shape, (0, 3), np.dtype(np.float32))[3]).all()


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 4e-7), (np.float64, 1e-13)])
def test_erf_is_as_exact_as_it_says(dtype, bound):
    x = np.r_[np.linspace(-7, 7, 20001), 0.0, 1e-30, -1e-30, 1e6, -1e6].astype(dtype)
    assert reference.erf(x).dtype == dtype
    assert np.abs(reference.erf(x) - np.array([math.erf(v) for v in x])).max() <= bound


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "relu"])
def test_activations_equal_pytorch(kind):
    x = np.linspace(-12, 12, 4001)
    tensor = torch.from_numpy(x)
    expected = {
        "gelu": torch.nn.functional.gelu(tensor),
        "gelu_tanh": torch.nn.functional.gelu(tensor, approximate="tanh"),
        "relu": torch.relu(tensor),
    }[kind]
    assert np.abs(reference.activate(x, kind) - expected.numpy()).max() <= 1e-12
