"""Pooling and the modules after it in the compiled encoder, on every instruction set, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.encoder.texts import ACTIVATIONS, MODES, Dense, Norm, Unit, apply_head, pool

from support.exact import exact_and_plain
from support.packed import pack, random_encoder, token_weights
from support.tolerances import FUSED_FACTOR, FUSED_FLOOR

LENGTHS = [17, 1, 64, 33, 2, 16, 130, 15, 63, 1, 31, 65, 32]
HIDDEN = 72
EVERY = "+".join(MODES)


@pytest.fixture(scope="module")
def work():
    weights, shape = random_encoder(5, 3, HIDDEN, 3, 130)
    ids, offsets = pack(LENGTHS, seed=2)
    return weights, shape, ids, offsets


def defined(work, dtype, mode, layers, shares=None, table=None, skip=0, head=()):
    _, _, ids, offsets = work
    states = exact_and_plain(*work, layers)[dtype == np.float32]
    weights = None if table is None else table[ids]
    shares = [1 / len(layers)] * len(layers) if shares is None else shares
    parts = [
        sum(share * pool(states[i], offsets, part, weights, skip) for share, i in zip(shares, layers, strict=True))
        for part in mode.split("+")
    ]
    return apply_head(head, np.concatenate(parts, axis=1).astype(dtype))


def assert_pools(work, isa, mode, layers, skip=0, **options):
    weights, shape, ids, offsets = work
    named = {"shares": options.get("shares"), "token_weights": options.get("table"), "head": options.get("head", ())}
    encoder = CpuEncoder(weights, shape, mode, layers, threads=2, isa=isa, **named)
    found = encoder(ids, offsets, skip)
    want = defined(work, np.float64, mode, layers, skip=skip, **options)
    plain = defined(work, np.float32, mode, layers, skip=skip, **options)
    assert found.shape == want.shape == (len(LENGTHS), encoder.outputs)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(want))
    seen = np.isfinite(want)
    allowed = FUSED_FACTOR * np.abs(plain[seen] - want[seen]).max() + FUSED_FLOOR
    assert np.abs(found[seen] - want[seen]).max() <= allowed
    return encoder, found


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("mode", [*MODES, EVERY, "lasttoken+cls"])
def test_pooling(work, float_isa, mode, skip, weighted):
    assert_pools(work, float_isa, mode, (3,), skip, table=token_weights(1) if weighted else None)


@pytest.mark.parametrize("mode", ["mean", "cls+weightedmean+mean_sqrt_len_tokens", "lasttoken"])
def test_layers_by_their_shares(work, float_isa, mode):
    assert_pools(work, float_isa, mode, (3, 0, 2), 1, shares=[0.75, -0.5, 1.5])


def test_a_token_of_weight_zero_counts_for_nothing(work, float_isa):
    table = token_weights(1)
    table[::2] = 0
    assert_pools(work, float_isa, EVERY.replace("max+", ""), (3,), table=table)
    weights, shape, ids, offsets = work
    for mode in ("mean", "mean_sqrt_len_tokens", "weightedmean", "cls", "lasttoken"):
        nothing = CpuEncoder(weights, shape, mode, (3,), token_weights=np.zeros_like(table), isa=float_isa)
        np.testing.assert_array_equal(nothing(ids, offsets), 0)


def dense(out, inputs, activation="identity", residual=False, seed=0):
    rng = np.random.default_rng(seed + out + inputs)

    def draw(*size):
        return (rng.normal(size=size) * size[-1] ** -0.5).astype(np.float32)

    projection = draw(out, inputs) if residual and out != inputs else None
    return Dense(draw(out, inputs), draw(out), activation, residual, projection)


def norm(width):
    rng = np.random.default_rng(width)
    return Norm((1 + 0.2 * rng.normal(size=width)).astype(np.float32), rng.normal(size=width).astype(np.float32), 1e-2)


HEADS = {
    "unit": [Unit()],
    "narrower": [dense(40, HIDDEN, "tanh"), Unit()],
    "wider": [Unit(), dense(200, HIDDEN, "gelu"), dense(33, 200)],
    "norm": [norm(HIDDEN), dense(HIDDEN, HIDDEN, "relu"), norm(HIDDEN), Unit()],
    "residual": [dense(HIDDEN, HIDDEN, "identity", True), dense(HIDDEN, HIDDEN, "gelu", True), Unit()],
    "projected": [dense(50, HIDDEN, "identity", True), dense(20, 50, "tanh", True), dense(70, 20, "silu", True)],
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("layers", [(3,), (1, 3)])
def test_heads(work, float_isa, head, layers):
    assert_pools(work, float_isa, "mean", layers, head=head)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("residual", [False, True])
def test_activations(work, activation, residual):
    assert_pools(work, None, "cls", (3,), head=[dense(HIDDEN, HIDDEN, activation, residual), norm(HIDDEN)])


def test_concatenated_poolings_of_two_layers_before_a_head(work, float_isa):
    assert_pools(work, float_isa, "mean+cls+lasttoken", (0, 2), 2, head=[dense(31, 3 * HIDDEN, "sigmoid"), Unit()])


@pytest.mark.parametrize("mode", [EVERY, "mean"])
def test_a_text_has_the_same_bits_whatever_its_company(work, isa, mode):
    weights, shape, ids, offsets = work
    width = HIDDEN * len(mode.split("+"))
    head = [norm(width), dense(41, width, "mish", True), dense(41, 41, "tanh"), Unit()]
    mode_head = {"head": head, "token_weights": token_weights(1), "isa": isa}
    want = CpuEncoder(weights, shape, mode, (3,), threads=1, **mode_head)(ids, offsets)
    for threads in (2, 3):
        encoder = CpuEncoder(weights, shape, mode, (3,), threads=threads, **mode_head)
        np.testing.assert_array_equal(encoder(ids, offsets), want)
        for text in range(len(LENGTHS)):
            alone = ids[offsets[text] : offsets[text + 1]]
            np.testing.assert_array_equal(encoder(alone, np.array([0, len(alone)])), want[text : text + 1])


def test_states_that_are_not_finite_are_not_passed_over_by_a_maximum(work):
    weights, shape, ids, offsets = work
    broken = dict(weights)
    broken["layer.2.norm2.bias"] = np.where(np.arange(HIDDEN) == 5, np.float32(3e38), weights["layer.2.norm2.bias"])
    broken["layer.2.norm2.scale"] = np.where(np.arange(HIDDEN) == 5, np.float32(3e38), weights["layer.2.norm2.scale"])
    with pytest.raises(ValueError, match=r"layer\.2\.norm2"):  # weights so large are refused before
        CpuEncoder(broken, shape, "max", (3,))
    huge = CpuEncoder(weights, shape, "max", (3,), token_weights=np.full(200, 1e30, np.float32))
    assert np.isfinite(huge(ids, offsets)).all()


@pytest.mark.parametrize(
    ("mode", "layers", "head", "message"),
    [
        ("median", (3,), (), "pooling 'median' is not known; known are mean"),
        ("mean+pooler", (3,), (), "pooling 'pooler' is not known"),
        ("max", (1, 3), (), "pooling 'max' is of one layer, not of several"),
        ("pooler", (3,), [Unit()], "pooling 'pooler' runs without modules behind it"),
    ],
)
def test_what_cannot_run_is_refused(work, mode, layers, head, message):
    weights, shape, _, _ = work
    with pytest.raises(ValueError, match=message):
        CpuEncoder(weights, shape, mode, layers, head=head)


def test_skip_is_not_negative(work):
    weights, shape, ids, offsets = work
    with pytest.raises(ValueError, match="skip must be at least 0, not -1"):
        CpuEncoder(weights, shape, "mean", (1,))(ids, offsets, -1)
