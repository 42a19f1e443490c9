"""The layout of a plan for the CPU: aligned, counted, and with every weight of the plan in it once."""

import numpy as np
import pytest

from fastflow.kernels._cpu import GATE, OP, PRODUCT
from fastflow.kernels.flow.cpu import ALIGN, Program
from fastflow.plan.fold import fold

from support import stages as make

VECTOR, TILE = 8, 4


def program(stages, dim, vector=VECTOR):
    return Program(fold(stages, dim), vector, TILE)


@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize("vector", [4, 8, 16])
def test_operations_stay_within_scratch_and_weights(coupling, vector):
    rng = np.random.default_rng(0)
    made = program([make.whiten(rng, 50, 44), make.flow(rng, 44, 2, 2, 9, coupling)], 50, vector)
    weights, ops, table = made.arrays()
    assert (made.inputs, made.outputs) == (50, 44)
    assert ops.dtype == OP
    assert weights.dtype == np.float32
    assert weights.ctypes.data % 64 == 0
    assert (ops["to"] + ops["columns"]).max() <= made.stride
    assert made.result + made.outputs <= made.stride
    for name in ("weights", "bias"):
        assert (ops[name] % ALIGN == 0).all(), "vectors begin on a cache line"
        assert ops[name].max() < len(weights)
    assert ops["table"].max() < len(table)
    assert made.stride // ALIGN % 2 == 1, "rows of scratch fall into different cache sets"


def test_every_weight_of_a_product_is_there_and_counted():
    rng = np.random.default_rng(1)
    stage = make.whiten(rng, 20, 13)
    (plan,) = fold([stage], 20)
    made = program([stage], 20)
    weights, ops, _ = made.arrays()
    products = ops[ops["kind"] == PRODUCT]
    matrix = plan.L if plan.L is not None else plan.S
    assert len(products) == 1
    assert made.cost == matrix.size
    held = weights[products["weights"][0] :][: 20 * 16]
    assert np.isclose(np.abs(held).sum(), np.abs(matrix).sum(), rtol=1e-6)
    assert np.count_nonzero(held) == np.count_nonzero(matrix.astype(np.float32)), "the rest is padding"


def test_only_affine_steps_are_gated():
    rng = np.random.default_rng(2)
    for coupling, gates in (("additive", 0), ("affine", 4)):
        _, ops, _ = program([make.flow(rng, 32, 2, 2, 8, coupling)], 32).arrays()
        products = ops[ops["kind"] == PRODUCT]
        assert np.count_nonzero(products["mode"] & GATE) == gates, coupling


def test_large_weights_are_read_once_for_four_tiles():
    rng = np.random.default_rng(3)
    assert program([make.whiten(rng, 32, 32)], 32).block == TILE
    assert program([make.whiten(rng, 600, 600)], 600).block == 4 * TILE
