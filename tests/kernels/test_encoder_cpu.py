"""The compiled encoder on every instruction set: near float64, pooled as defined, and with the right refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.kernels import processor
from fastflow.kernels.encoder import MODES, WORDS, Dense, Norm, PoolingSpec, Unit
from fastflow.kernels.encoder.cpu import DTYPES, CpuEncoder
from fastflow.kernels.encoder.reference import encode
from fastflow.kernels.encoder.texts import ACTIVATIONS, pool

from support.encoders import assert_pools, assert_states, with_windows
from support.exact import exact_and_plain
from support.packed import (
    VOCABULARY,
    pack,
    random_encoder,
    random_modernbert,
    random_mpnet,
    text_lengths,
    token_weights,
)
from support.tolerances import FUSED_FLOOR

LONG = [17, 1, 129, 64, 33, 2, 16, 128, 130, 15, 31, 32, 63, 65]
LENGTHS = [17, 1, 64, 33, 2, 16, 130, 15, 63, 1, 31, 65, 32]
TEXTS = pack(LENGTHS, seed=2)
OTHERS = {"mpnet": random_mpnet, "modernbert": random_modernbert}
SHARED = [(256, 4, 1024), (48, 12, 97), (32, 1, 33), (96, 2, 65)]  # hidden, heads, intermediate
HIDDEN = 72
MADE = random_encoder(5, 3, HIDDEN, 3, 130)
EVERY = "+".join(MODES)


@pytest.mark.parametrize("widths", [(312, 12, 1200), (7, 7, 1), (1, 1, 3), *SHARED], ids=str)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_hidden_states_at_every_width(float_isa, widths, activation):
    made, texts = random_encoder(3, 2, *widths, activation), pack([17, 1, 64, 33, 2, 16], seed=widths[0])
    if widths[0] == 1:  # LayerNorm leaves only the bias of a single column
        found = CpuEncoder(*made, PoolingSpec("mean", (0, 1, 2)), isa=float_isa).states(*texts)
        plain = exact_and_plain(*made, *texts, (0, 1, 2))[1]
        assert all(np.array_equal(found[layer], plain[layer]) for layer in found)
    else:
        assert_states(made, texts, float_isa)


@pytest.mark.slow
@pytest.mark.parametrize("family", OTHERS)
@pytest.mark.parametrize("widths", [(312, 12, 300), (12, 6, 1), (60, 3, 40), *SHARED], ids=str)
def test_hidden_states_of_other_architectures(float_isa, family, widths):
    assert_states(OTHERS[family](3, 3, *widths), pack(LONG, seed=widths[0]), float_isa, threads=2)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("half", [False, True])
def test_gates_biases_and_words_in_half(float_isa, activation, half):
    made = random_modernbert(5, 2, 72, 3, 100, activation, biases=True, half=half)
    assert_states(made, pack([33, 1, 64, 5], seed=1), float_isa)


@pytest.mark.slow
def test_hidden_states_at_the_width_of_bert_base():
    assert_states(random_encoder(3, 1, 768, 12, 3072), pack([20, 130, 70], seed=1))  # more rows than a block


@pytest.mark.parametrize("threads", [1, 3])
def test_layers_with_windows_and_biases(isa, threads):
    assert_states(with_windows(2, 72, 3, 100, (20, 7)), pack([17, 130, 1, 64, 2, 100], seed=5), isa, threads)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    layers=st.integers(1, 3), heads=st.integers(1, 6), size=st.integers(2, 40), intermediate=st.integers(1, 150),
    activation=st.sampled_from(["gelu", "gelu_tanh", "relu"]), lengths=text_lengths,
    width=st.sampled_from([None, 5, 24]), pad_id=st.sampled_from([None, 1]), half=st.booleans(),
    seed=st.integers(0, 99), threads=st.integers(1, 3),
)  # fmt: skip
def test_hidden_states_of_random_encoders(
    layers, heads, size, intermediate, activation, lengths, width, pad_id, half, seed, threads
):
    form = {"width": width, "pad_id": pad_id, "half": half}
    made = random_encoder(seed, layers, heads * size, heads, intermediate, activation, **form)
    for isa in processor.usable_isas():
        assert_states(made, pack(lengths, seed), isa, threads)


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
WEIGHTS = token_weights(1)
FEW = WEIGHTS * (np.arange(VOCABULARY, dtype=np.float32) % 2)
# name -> (pooling, tokens that it leaves out)
POOLED = {
    **{f"every mode, skip {skip}{', weighted' * (w is not None)}": (PoolingSpec(EVERY, (3,), None, w), skip)
       for skip in (0, 3) for w in (None, WEIGHTS)},
    **{f"{mode} weighted": (PoolingSpec(mode, (3,), None, WEIGHTS), 3) for mode in (*MODES, "lasttoken+cls")},
    **{f"mean weighted of {layers}": (PoolingSpec("mean", layers, None, WEIGHTS), 0)
       for layers in ((WORDS,), (1, 3), (3, WORDS, 0))},
    "weights of 0": (PoolingSpec(EVERY.replace("max+", ""), (3,), None, FEW), 0),
    "only weights of 0": (PoolingSpec(EVERY.replace("max+", ""), (3,), None, 0 * WEIGHTS), 0),
    "shares": (PoolingSpec(EVERY.replace("max+", ""), (3, 0, 2), [0.75, -0.5, 1.5]), 1),
    **{f"{name} of two layers": (PoolingSpec("mean", (1, 3), head=head), 0) for name, head in HEADS.items()},
    "a head of one layer": (PoolingSpec("mean", (3,), head=HEADS["narrower"]), 0),
    "poolings of two layers and a head": (
        PoolingSpec("mean+cls+lasttoken", (0, 2), head=[dense(31, 3 * HIDDEN, "sigmoid"), Unit()]), 2
    ),
    "two layers": (PoolingSpec("mean", (1, 3)), 0),
    "the embeddings too": (PoolingSpec("mean", (3, 0)), 0),
    "cls of an inner layer": (PoolingSpec("cls", (2,)), 0),
    "pooler": (PoolingSpec("pooler", (3,)), 0),
}  # fmt: skip


@pytest.mark.parametrize("case", POOLED)
def test_pooling_and_heads(float_isa, case):
    pooling, skip = POOLED[case]
    assert_pools(MADE, TEXTS, pooling, float_isa, skip=skip)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation):
    for residual in (False, True):
        head = [dense(HIDDEN, HIDDEN, activation, residual), norm(HIDDEN)]
        assert_pools(MADE, TEXTS, PoolingSpec("cls", (3,), head=head))


@pytest.mark.parametrize("family", OTHERS)
def test_pooling_of_other_architectures(float_isa, family):
    for layers in ((0, 2, 3), (1, 2)):  # a norm after the last layer is not of another one
        assert_pools(OTHERS[family](5, 3, HIDDEN, 3, 130), TEXTS, PoolingSpec("mean+cls", layers), float_isa)


@pytest.mark.parametrize(("hidden", "layers"), [(104, (3, WORDS, 1)), (7, (0, 2))])  # whole vectors; a remainder
@pytest.mark.parametrize("dtype", DTYPES)
def test_weighted_means_are_of_the_same_states(isa, dtype, hidden, layers):
    made, table = random_encoder(1, 3, hidden, 1, 97), token_weights(2)
    weighted, plain = (
        CpuEncoder(*made, PoolingSpec("mean", layers, None, t), dtype, 2, isa=isa) for t in (table, None)
    )
    states = weighted.states(*TEXTS)
    assert states.keys() == set(layers)
    for layer, state in plain.states(*TEXTS).items():
        assert np.array_equal(states[layer], state)
    for encoder, weights in ((weighted, table[TEXTS[0]]), (plain, None)):
        want = np.mean([pool(states[i].astype(np.float64), TEXTS[1], "mean", weights) for i in layers], axis=0)
        assert np.abs(encoder(*TEXTS) - want).max() <= FUSED_FLOOR


def plain_mean(x):
    """One text's float32 mean: runs of 16 tokens, then the runs in order."""
    whole = np.zeros(x.shape[1], np.float32)
    for run in range(0, len(x), 16):
        part = np.zeros_like(whole)
        for row in x[run : run + 16]:
            part += row
        whole += part
    return whole / np.float32(len(x))


@pytest.mark.parametrize("layers", [(WORDS,), (3, 0, 2)])
def test_without_weights_the_bits_are_a_plain_means(isa, layers):
    encoder = CpuEncoder(*MADE, PoolingSpec("mean", layers), isa=isa)
    states = encoder.states(*TEXTS)
    want = np.zeros((len(LENGTHS), HIDDEN), np.float32)
    for layer in sorted(layers):  # in the order of computation
        for i, text in enumerate(np.split(states[layer], TEXTS[1][1:-1])):
            want[i] += plain_mean(text) * np.float32(1 / len(layers))
    assert np.array_equal(encoder(*TEXTS), want)


def test_only_ratios_of_weights_count(isa):
    def encode(table):
        return CpuEncoder(*MADE, PoolingSpec("mean", (1, 3), None, table), isa=isa)(*TEXTS)

    want, plain = encode(WEIGHTS), encode(None)
    assert np.isfinite(want).all()
    for power in (-90, 90):  # allowed, and exact
        assert np.array_equal(encode(np.ldexp(WEIGHTS, power)), want)
    assert np.array_equal(encode(np.full(VOCABULARY, 0.25, np.float32)), plain)
    for extreme in (1e-30, 1e30):
        assert np.abs(encode(np.full(VOCABULARY, extreme, np.float32)) - plain).max() <= FUSED_FLOOR


def test_the_table_is_copied():
    table = token_weights(1)
    tables = (np.repeat(table, 2)[::2], table)
    strided, encoder = (CpuEncoder(*MADE, PoolingSpec("mean", (1,), None, t)) for t in tables)
    want = encoder(*TEXTS)
    table[:] = 1
    assert np.array_equal(encoder(*TEXTS), want)
    assert np.array_equal(strided(*TEXTS), want)


@pytest.mark.parametrize("made", [MADE, random_encoder(2, 1, 32, 4, 64, pad_id=1, width=24)])
def test_the_second_segment_begins_at_any_token(isa, made):
    weights, shape = made[0] | {"second": made[0]["segment"][::-1].copy()}, made[1]
    seconds = np.array([0, 1, 64, 40, 1, 7, 130, 14, 1, 99, 2, 64, 5])
    encoder = CpuEncoder(weights, shape, PoolingSpec("mean", (0, 1)), threads=2, isa=isa)
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    hidden = encode(wide, *TEXTS, shape, (0, 1), np.dtype(np.float64), seconds=seconds)
    exact = np.mean([pool(hidden[layer], TEXTS[1], "mean") for layer in (0, 1)], axis=0)
    assert np.abs(encoder(*TEXTS, 0, seconds) - exact).max() < 2e-5
    plain = CpuEncoder(*made, PoolingSpec("mean", (0, 1)), threads=2, isa=isa)
    np.testing.assert_array_equal(encoder(*TEXTS), plain(*TEXTS))
    for other, wrong in ((plain, seconds), (encoder, seconds[1:])):
        with pytest.raises(ValueError, match="seconds need an encoder with positions of two segments, and a number"):
            other(*TEXTS, 0, wrong)


def test_texts_that_cannot_be_encoded_are_named(float_isa):
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    encoder = CpuEncoder(weights, shape, PoolingSpec("mean", (1,)), isa=float_isa)
    ids, offsets = pack([3, 4, 5], 0)
    assert encoder(np.empty(0, np.int32), np.zeros(1, np.int64)).shape == (0, 32)
    for place, wrong in ((4, -1), (4, len(weights["word"])), (6, 2**31 - 1)):
        bad = ids.copy()
        bad[place] = wrong
        with pytest.raises(ValueError, match="text 1 has no tokens, too many, or an id outside the vocabulary"):
            encoder(bad, offsets)
    for wrong, message in (
        ([0, 3, 3, 12], "text 1 has no tokens"),
        ([0, 3, 7, 11], "offsets must start at 0 and end at the number of ids"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder(ids, np.array(wrong))
    with pytest.raises(ValueError, match="skip must be at least 0, not -1"):
        encoder(ids, offsets, -1)


@pytest.mark.parametrize("made", [random_encoder(0, 1, 32, 4, 64), random_modernbert(0, 1, 32, 4, 64, positions=70)])
def test_a_text_may_be_as_long_as_the_positions(made):
    encoder, most = CpuEncoder(*made, PoolingSpec("mean", (1,))), made[1].positions
    assert np.isfinite(encoder(*pack([most, 3], 0))).all()
    with pytest.raises(ValueError, match="text 1 has no tokens, too many"):
        encoder(*pack([3, most + 1], 0))
