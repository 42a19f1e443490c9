"""Pooling and the modules after it in the compiled encoder, on every instruction set, against float64."""

import numpy as np
import pytest

from fastflow.backends.cpu import CpuBackend
from fastflow.backends.reference import ReferenceBackend
from fastflow.errors import UsageError
from fastflow.kernels.encoder.cpu import DTYPES, CpuEncoder
from fastflow.kernels.encoder.shape import WORDS, Dense, Norm, Unit
from fastflow.kernels.encoder.texts import ACTIVATIONS, MODES, pool
from fastflow.model.kinds import Model
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.stages.pooling import Pooling

from support.encoders import assert_near, assert_pools, defined
from support.exact import exact_and_plain
from support.packed import VOCABULARY, pack, random_encoder, random_modernbert, random_mpnet, token_weights
from support.tolerances import FUSED_FLOOR, UNIT

LENGTHS = [17, 1, 64, 33, 2, 16, 130, 15, 63, 1, 31, 65, 32]
TEXTS = pack(LENGTHS, seed=2)
HIDDEN = 72
MADE = random_encoder(5, 3, HIDDEN, 3, 130)
EVERY = "+".join(MODES)
LAYERS = [(3,), (0,), (WORDS,), (1, 3), (3, 0, 2), (3, WORDS, 1)]


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
THREE = "cls+weightedmean+mean_sqrt_len_tokens"
# mode, layers, options: of the pooling, and of the modules after it
POOLED = {
    **{
        f"{mode}, skip {skip}{', weighted' * weighted}": (
            mode, (3,), {"skip": skip} | ({"token_weights": token_weights(1)} if weighted else {})
        )
        for mode in (*MODES, EVERY, "lasttoken+cls") for skip in (0, 3) for weighted in (False, True)
    },
    **{f"{mode} by shares": (mode, (3, 0, 2), {"skip": 1, "shares": [0.75, -0.5, 1.5]})
       for mode in ("mean", THREE, "lasttoken")},
    **{f"{name} of {layers}": ("mean", layers, {"head": head})
       for name, head in HEADS.items() for layers in ((3,), (1, 3))},
    "poolings of two layers and a head": (
        "mean+cls+lasttoken", (0, 2), {"skip": 2, "head": [dense(31, 3 * HIDDEN, "sigmoid"), Unit()]}
    ),
    "two layers": ("mean", (1, 3), {}),
    "the embeddings too": ("mean", (3, 0), {"threads": 1}),
    "cls of an inner layer": ("cls", (2,), {}),
    "pooler": ("pooler", (3,), {}),
    "pooler on one thread": ("pooler", (3,), {"threads": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", POOLED)
def test_pooling_and_heads(float_isa, case):
    mode, layers, options = POOLED[case]
    assert_pools(MADE, TEXTS, mode, layers, float_isa, **options)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("residual", [False, True])
def test_activations(activation, residual):
    assert_pools(MADE, TEXTS, "cls", (3,), head=[dense(HIDDEN, HIDDEN, activation, residual), norm(HIDDEN)])


@pytest.mark.parametrize(("mode", "layers"), [("mean", (0, 3)), ("mean", (1, 3)), ("mean", (2,)), ("cls", (3,))])
@pytest.mark.parametrize("made", [random_mpnet, random_modernbert])
def test_other_architectures(float_isa, made, mode, layers):
    assert_pools(made(5, 3, HIDDEN, 3, 130), TEXTS, mode, layers, float_isa)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("threads", [1, 2])
def test_weighted_means_on_every_instruction_set(isa, layers, threads):
    want = assert_pools(MADE, TEXTS, "mean", layers, isa, threads, token_weights=token_weights(1))
    plain = defined(MADE, TEXTS, np.float64, "mean", layers)
    assert np.abs(want - plain).max() > 0.1  # the weights matter


def test_a_token_of_weight_zero_counts_for_nothing(float_isa):
    table = token_weights(1)
    table[::2] = 0
    assert_pools(MADE, TEXTS, EVERY.replace("max+", ""), (3,), float_isa, token_weights=table)
    for mode in sorted(set(MODES) - {"max"}):
        nothing = CpuEncoder(*MADE, mode, (3,), token_weights=np.zeros_like(table), isa=float_isa)
        np.testing.assert_array_equal(nothing(*TEXTS), 0)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [104, 7])  # whole vectors and a remainder, on each instruction set
def test_weighted_means_are_of_the_very_states(isa, dtype, layers, hidden):
    made, table = random_encoder(1, 3, hidden, 1, 97), token_weights(2)
    weighted, plain = (CpuEncoder(*made, "mean", layers, dtype, 2, token_weights=t, isa=isa) for t in (table, None))
    states = weighted.states(*TEXTS)
    assert states.keys() == set(layers)
    for layer, state in plain.states(*TEXTS).items():
        assert np.array_equal(states[layer], state)  # weights are of the pooling alone
    for encoder, weights in ((weighted, table[TEXTS[0]]), (plain, None)):
        want = np.mean([pool(states[i].astype(np.float64), TEXTS[1], "mean", weights) for i in layers], axis=0)
        assert np.abs(encoder(*TEXTS) - want).max() <= FUSED_FLOOR


def plain_mean(x):
    """Of one text's states, in float32: runs of 16 tokens, and the runs in order."""
    whole = np.zeros(x.shape[1], np.float32)
    for run in range(0, len(x), 16):
        part = np.zeros_like(whole)
        for row in x[run : run + 16]:
            part += row
        whole += part
    return whole / np.float32(len(x))


@pytest.mark.parametrize("layers", LAYERS)
def test_without_weights_the_bits_are_those_of_a_plain_mean(isa, layers):
    encoder = CpuEncoder(*MADE, "mean", layers, isa=isa)
    states = encoder.states(*TEXTS)
    want = np.zeros((len(LENGTHS), HIDDEN), np.float32)
    for layer in sorted(layers):  # as they come
        for i, text in enumerate(np.split(states[layer], TEXTS[1][1:-1])):
            want[i] += plain_mean(text) * np.float32(1 / len(layers))
    assert np.array_equal(encoder(*TEXTS), want)


def test_only_ratios_of_weights_count(isa):
    def encode(table):
        return CpuEncoder(*MADE, "mean", (1, 3), token_weights=table, isa=isa)(*TEXTS)

    table = token_weights(1)
    want = encode(table)
    assert np.isfinite(want).all()
    for power in (-90, 90):  # within what is allowed, and exact
        assert np.array_equal(encode(np.ldexp(table, power)), want)
    for equal in (1.0, 0.25):
        assert np.array_equal(encode(np.full(VOCABULARY, equal, np.float32)), encode(None))
    for extreme in (1e-30, 1e30):
        assert np.abs(encode(np.full(VOCABULARY, extreme, np.float32)) - encode(None)).max() <= FUSED_FLOOR


def words_defined(weights, start, ids):
    """(N, D) in float64: the mean of the position table from row ``start`` on for every token."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = w["word"][ids] + w["position"][start:].sum(axis=0) / (len(w["position"]) - start) + w["segment"]
    x = x - x.mean(axis=1, keepdims=True)
    x = x / x.std(axis=1, keepdims=True) * w["embed_norm.scale"] + w["embed_norm.bias"]
    return x @ w["projection.weight"].T + w["projection.bias"] if "projection.weight" in w else x


@pytest.mark.parametrize("layers", [(WORDS,), (0, WORDS, 2)])
@pytest.mark.parametrize("hidden", [104, 7])  # as above
@pytest.mark.parametrize("settings", [{}, {"pad_id": 1}, {"width": 40}, {"width": 9, "half": True}])
def test_words_have_the_mean_position(isa, settings, hidden, layers):
    weights, shape = random_encoder(3, 2, hidden, 1, 130, **settings)
    weights["position"][: shape.position_start] = 1000  # rows of padding, which no text uses
    ids, offsets = TEXTS
    found = CpuEncoder(weights, shape, "mean", layers, isa=isa).states(ids, offsets)
    want = words_defined(weights, shape.position_start, ids)
    exact, plain = exact_and_plain(weights, shape, ids, offsets, layers)
    assert np.abs(exact[WORDS] - want).max() <= 1e-10
    assert_near(found[WORDS], want, plain[WORDS])
    same = [found[WORDS][ids == token] for token in np.unique(ids)]
    assert all((rows == rows[0]).all() for rows in same)  # whatever its place
    assert np.abs(want - exact.get(0, 0)).max() > 0.5


def test_without_a_position_table_words_are_layer_0(isa):
    states = CpuEncoder(*random_modernbert(5, 2, 64, 4, 97), "mean", (WORDS, 0), isa=isa).states(*TEXTS)
    assert np.array_equal(states[WORDS], states[0])


def test_the_table_is_copied():
    table = token_weights(1)
    strided, encoder = (CpuEncoder(*MADE, "mean", (1,), token_weights=t) for t in (np.repeat(table, 2)[::2], table))
    want = encoder(*TEXTS)
    table[:] = 1
    assert np.array_equal(encoder(*TEXTS), want)
    assert np.array_equal(strided(*TEXTS), want)


def test_states_that_are_not_finite_are_not_passed_over_by_a_maximum():
    weights, shape = MADE
    fifth = np.arange(HIDDEN) == 5
    names = ("layer.2.norm2.bias", "layer.2.norm2.scale")
    broken = weights | {name: np.where(fifth, np.float32(3e38), weights[name]) for name in names}
    with pytest.raises(ValueError, match=r"layer\.2\.norm2"):  # weights so large are refused before
        CpuEncoder(broken, shape, "max", (3,))
    huge = CpuEncoder(weights, shape, "max", (3,), token_weights=np.full(200, 1e30, np.float32))
    assert np.isfinite(huge(*TEXTS)).all()


def changed(value):
    table = token_weights(1)
    table[7] = value
    return {"token_weights": table}


@pytest.mark.parametrize(
    ("mode", "layers", "options", "message"),
    [
        ("median", (3,), {}, "pooling 'median' is not known; known are mean"),
        ("mean+pooler", (3,), {}, "pooling 'pooler' is not known"),
        ("max", (1, 3), {}, "pooling 'max' is of one layer, not of several"),
        ("cls+max", (1,), {"shares": [0.5]}, "pooling 'max' takes its layer whole, not a share of it"),
        ("pooler", (3,), {"head": [Unit()]}, "pooling 'pooler' runs without modules behind it"),
        ("pooler", (1,), {"token_weights": token_weights(1)}, "token weights cannot run with pooling 'pooler'"),
        ("mean", (1,), {"token_weights": token_weights(1)[1:]}, r"float32 of shape \(200,\), not float32 of \(199,\)"),
        ("mean", (1,), {"token_weights": token_weights(1)[:, None]}, r"of shape \(200,\), not float32 of \(200, 1\)"),
        ("mean", (1,), {"token_weights": token_weights(1).astype(float)}, r"float32 of shape \(200,\), not float64"),
        *(("mean", (1,), changed(v), "every token weight must be between 1e-30 and 1e") for v in (-1, np.nan, np.inf)),
        *(("mean", (1,), changed(v), "every token weight must be between 1e-30 and 1e") for v in (1e-40, 1e-31, 2e30)),
    ],
)
def test_what_cannot_run_is_refused(mode, layers, options, message):
    with pytest.raises(ValueError, match=message):
        CpuEncoder(*MADE, mode, layers, **options)


def test_skip_is_not_negative():
    with pytest.raises(ValueError, match="skip must be at least 0, not -1"):
        CpuEncoder(*MADE, "mean", (1,))(*TEXTS, -1)


@pytest.fixture
def table(bert):
    return np.resize(token_weights(3), Tokenizer(bert, 64).size)


def weighted_model(bert, table, layers=(1, 3)):
    return Model(bert, bert, Pooling("mean", layers, table), 64, (), "")


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("layers", [(3,), (1, 3)])
def test_the_backend_weighs_tokens(forced_isa, bert, sentences, table, layers):
    texts = ["", *sentences[:40], " ".join(sentences[:20]), "dog", ""]  # the first has nothing but [CLS] and [SEP]
    tokens = Tokenizer(bert, 64)(texts)
    want, plain = (
        unit(ReferenceBackend(weighted_model(bert, t, layers), "float64", "cpu", None).pool(tokens))
        for t in (table, None)
    )
    found = CpuBackend(weighted_model(bert, table, layers), "float32", "cpu", 2).pool(tokens)
    assert np.diff(tokens.offsets)[[0, -1]].tolist() == [2, 2]
    assert np.abs(want - plain).max(axis=1).min() > 1e-3  # for every text, of specials alone too
    assert np.abs(unit(found) - want).max() <= UNIT
    assert np.array_equal(found[0], found[-1])
    table[9] = 1e-38
    with pytest.raises(UsageError, match="every token weight must be between 1e-30 and 1e"):
        CpuBackend(weighted_model(bert, table), "float32", "cpu", None)
