"""The steps of the layers, in their order; their results are compared with the reference in test_encoder_cpu.py."""

import numpy as np
import pytest

from fastflow.kernels._cpu import ATTEND, EMBED, FIRST, FLOAT, LINEAR, NORM, OUTPUT, PACK, POOL
from fastflow.kernels.encoder.cpu_layers import assemble

from support.packed import random_encoder

LAYER = [LINEAR, PACK, ATTEND, LINEAR, NORM, LINEAR, LINEAR, NORM]


def kinds(mode: str, layers: tuple[int, ...], depth: int = 2) -> list[int]:
    weights, shape = random_encoder(5, depth, 64, 4, 97)
    _, _, steps, _ = assemble(weights, shape, mode, layers, 32, FLOAT).arrays()
    return steps[:, 0].tolist()


@pytest.mark.parametrize(
    ("layers", "steps"),
    [
        ((0,), [EMBED, POOL]),
        ((-1,), [EMBED, POOL]),
        ((-1, 0), [EMBED, POOL, EMBED, POOL]),
        ((1, -1), [EMBED, POOL, EMBED, *LAYER, POOL]),
        ((1,), [EMBED, *LAYER, POOL]),
        ((2,), [EMBED, *LAYER, *LAYER, POOL]),
        ((0, 2), [EMBED, POOL, *LAYER, *LAYER, POOL]),
        ((2, 1), [EMBED, *LAYER, POOL, *LAYER, POOL]),
    ],
)
def test_layers_are_computed_as_far_as_the_highest_that_is_pooled(layers, steps):
    assert kinds("mean", layers) == steps


@pytest.mark.parametrize("layer", [0, -1])
def test_an_embedding_layer_alone_needs_neither_products_nor_their_buffers(layer):
    weights, shape = random_encoder(5, 2, 64, 4, 97)
    memory, linears, _, strides = assemble(weights, shape, "mean", (layer,), 32, FLOAT).arrays()
    assert len(linears) == 0
    assert len(strides) == 2
    assert len(memory) < 1024  # LayerNorm and the layer's share


def test_the_pooler_is_a_product_on_the_first_tokens():
    assert kinds("pooler", (1,), 1) == [EMBED, *LAYER, FIRST, LINEAR, OUTPUT]


def test_an_encoder_without_pooler_is_refused():
    weights, shape = random_encoder(5, 1, 64, 4, 97)
    weights = {name: array for name, array in weights.items() if not name.startswith("pooler")}
    with pytest.raises(ValueError, match="the encoder has no pooler"):
        assemble(weights, shape, "pooler", (1,), 32, FLOAT)


def test_queries_are_scaled_before_they_are_multiplied():
    weights, shape = random_encoder(5, 1, 64, 4, 97)
    program = assemble(weights, shape, "mean", (1,), 32, FLOAT)
    factors = {matrix.name: matrix.factor for matrix in program.matrices}
    assert np.isclose(factors.pop("layer.0.qkv.weight"), 1 / np.sqrt(64 / 4))
    assert set(factors.values()) == {1.0}
