"""MPNet and ModernBERT compiled, on every instruction set of this machine, against the reference in float64."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from fastflow.kernels import isa as instructions
from fastflow.kernels._cpu import BF16_WIDE, FLOAT
from fastflow.kernels.encoder import reference
from fastflow.kernels.encoder.cpu import DTYPES, CpuEncoder, attends, choose
from fastflow.kernels.panels import NotFinite

from support.exact import exact_and_plain
from support.in_bytes import EMULATED
from support.packed import bits, coarse, pack, random_modernbert, random_mpnet, rounded, select
from support.tolerances import FUSED_FACTOR, FUSED_FLOOR

LENGTHS = [17, 1, 129, 64, 33, 2, 16, 128, 130, 15, 31, 32, 63, 65]
MADE = {"mpnet": random_mpnet, "modernbert": random_modernbert}
WIDTHS = [(312, 12, 300), (256, 4, 1024), (48, 12, 97), (32, 1, 33), (12, 6, 1), (96, 2, 65), (60, 3, 40)]


def assert_right(found, exact, plain):
    """No hidden state errs more than twice as much as the reference in float32 does."""
    assert found.keys() == exact.keys()
    for layer, state in found.items():
        assert np.isfinite(state).all()
        assert exact[layer].std() > 0.1  # the comparison is of something
        error, allowed = (np.abs(s[layer] - exact[layer]).max() for s in (found, plain))
        assert error <= FUSED_FACTOR * allowed + FUSED_FLOOR, layer


@pytest.mark.slow
@pytest.mark.parametrize("family", MADE)
@pytest.mark.parametrize(("hidden", "heads", "intermediate"), WIDTHS)
def test_hidden_states_at_every_width(float_isa, family, hidden, heads, intermediate):
    weights, shape = MADE[family](3, 3, hidden, heads, intermediate)
    ids, offsets = pack(LENGTHS, seed=hidden)
    found = CpuEncoder(weights, shape, "mean", (0, 1, 2, 3), isa=float_isa, threads=2).states(ids, offsets)
    assert_right(found, *exact_and_plain(weights, shape, ids, offsets, (0, 1, 2, 3)))


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("half", [False, True])
def test_gates_biases_and_words_in_half(float_isa, activation, half):
    weights, shape = random_modernbert(5, 2, 72, 3, 100, activation, biases=True, half=half)
    ids, offsets = pack([33, 1, 64, 5], seed=1)
    found = CpuEncoder(weights, shape, "mean", (0, 1, 2), isa=float_isa).states(ids, offsets)
    assert_right(found, *exact_and_plain(weights, shape, ids, offsets, (0, 1, 2)))


@pytest.mark.parametrize(("mode", "layers"), [("mean", (0, 3)), ("mean", (1, 3)), ("mean", (2,)), ("cls", (3,))])
@pytest.mark.parametrize("family", MADE)
def test_pooled_vectors(float_isa, family, mode, layers):
    weights, shape = MADE[family](5, 3, 72, 3, 130)
    ids, offsets = pack(LENGTHS, seed=2)
    found = CpuEncoder(weights, shape, mode, layers, threads=2, isa=float_isa)(ids, offsets)

    def pool(states):
        if mode == "cls":
            return reference.pool_first(states[layers[0]], offsets)
        return np.mean([reference.pool_mean(states[i], offsets) for i in layers], axis=0)

    exact, plain = (pool(states) for states in exact_and_plain(weights, shape, ids, offsets, layers))
    assert np.isfinite(found).all()
    assert np.abs(found - exact).max() <= FUSED_FACTOR * np.abs(plain - exact).max() + FUSED_FLOOR


def test_the_last_layer_is_normalised_and_no_other():
    weights, shape = random_modernbert(5, 3, 64, 2, 90)
    weights["final_norm.scale"] = np.ones(64, np.float32)
    ids, offsets = pack([40, 7], seed=3)
    states = CpuEncoder(weights, shape, "mean", (1, 2, 3)).states(ids, offsets)
    deviations = {layer: state.std(axis=1) for layer, state in states.items()}
    assert np.abs(deviations[3] - 1).max() <= 1e-3
    assert min(np.abs(deviations[layer] - 1).max() for layer in (1, 2)) > 0.1
    fewer = CpuEncoder(weights, shape, "mean", (2,)).states(ids, offsets)[2]  # the highest here
    assert np.array_equal(fewer, states[2])


def emulated(weights, shape, ids, offsets, weight, operand, attention=reference.attention):
    """The reference's last state in float64, its products, and attention, in a lower precision."""

    class Product(np.ndarray):
        def __rmatmul__(self, x):
            return operand(x) @ weight(np.asarray(self).T).T

    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    wide |= {n: a.view(Product) for n, a in wide.items() if n.startswith("layer.") and n.endswith(".weight")}
    with mock.patch.object(reference, "attention", attention):
        return reference.encode(wide, ids, offsets, shape, (shape.layers,), np.dtype(np.float64))[shape.layers]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("family", MADE)
@pytest.mark.parametrize(("hidden", "heads", "intermediate"), [(64, 4, 97), (256, 4, 500), (48, 12, 33)])
def test_products_are_those_of_the_format(isa, family, dtype, hidden, heads, intermediate):
    name, form = choose(dtype, isa)
    wide, attended = form == BF16_WIDE, attends(instructions.isas()[name][0], form)
    coarser = attended != FLOAT
    layers = 1 if coarser else 2  # so many numbers of attention are near a tie that a second layer's are others
    weights, shape = MADE[family](3, layers, hidden, heads, intermediate, half=True)
    ids, offsets = pack([17, 1, 64, 33, 2, 16], seed=5)
    found = CpuEncoder(weights, shape, "mean", (layers,), dtype, threads=2, isa=isa).states(ids, offsets)[layers]
    functions = {"bfloat16": (rounded, (lambda x: x) if wide else rounded), "int8": (coarse, coarse)}[dtype]
    want = emulated(weights, shape, ids, offsets, *functions, EMULATED[attended])
    full = emulated(weights, shape, ids, offsets, lambda x: x, lambda x: x)
    assert np.isfinite(found).all()
    lost = np.abs(want - full)  # what the format costs: far more than float32 rounding
    assert lost.mean() > 1e-4
    assert np.abs(found - full).max() <= FUSED_FACTOR * lost.max()
    near = 0.3 if coarser else 0.5  # a sum near a tie may be rounded the other way; attention in float32 gives 0.58
    assert np.abs(found - want).mean() <= near * lost.mean()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", MADE)
def test_a_text_has_the_same_bits_in_any_company(isa, family, dtype):
    weights, shape = MADE[family](1, 2, 104, 4, 300)
    lengths = [int(n) for n in np.random.default_rng(0).permutation([*LENGTHS, *range(1, 26)])]
    ids, offsets = pack(lengths, 4)
    encoder = CpuEncoder(weights, shape, "mean", (1, 2), dtype, threads=1, isa=isa)
    want = encoder(ids, offsets)
    assert np.isfinite(want).all()
    assert len(np.unique(want.round(4), axis=0)) > 35
    backwards = np.arange(len(lengths))[::-1]
    alone = [0, 3, 30, int(np.argmax(lengths)), int(np.argmin(lengths))]
    for threads in (1, 2, 3):
        encoder.threads = threads
        assert np.array_equal(bits(encoder(ids, offsets)), bits(want)), threads
        assert np.array_equal(bits(encoder(*select(ids, offsets, backwards))[::-1]), bits(want)), threads
        for row in alone:
            assert np.array_equal(bits(encoder(*select(ids, offsets, [row]))[0]), bits(want)[row]), (threads, row)


def test_a_text_may_be_as_long_as_the_positions():
    weights, shape = random_modernbert(0, 1, 32, 4, 64, positions=70)
    encoder = CpuEncoder(weights, shape, "mean", (1,))
    assert np.isfinite(encoder(*pack([70, 3], 0))).all()
    with pytest.raises(ValueError, match="text 1 has no tokens, too many"):
        encoder(*pack([3, 71], 0))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("made", "name"),
    [(random_mpnet, "relative"), (random_modernbert, "final_norm.scale"), (random_modernbert, "layer.1.norm1.scale")],
)
def test_what_is_not_finite_is_named(made, name, value):
    weights, shape = made(5, 2, 64, 4, 97)
    weights[name] = np.array(weights[name])
    weights[name][(-1,) * weights[name].ndim] = value
    for layers in ((0,), (2,)):  # also if it is not used
        with pytest.raises(NotFinite, match=f"the weight {name} holds NaN or infinity"):
            CpuEncoder(weights, shape, "mean", layers)
