"""Mean pooling in the compiled encoder on every instruction set: weighted by a table of tokens, and plain."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.backends.cpu import CpuBackend
from fastflow.backends.reference import ReferenceBackend
from fastflow.errors import UsageError
from fastflow.kernels.encoder import reference
from fastflow.kernels.encoder.cpu import DTYPES, CpuEncoder
from fastflow.kernels.encoder.reference import WORDS
from fastflow.model.kinds import Model
from fastflow.model.tokens import Tokenizer
from fastflow.stages.pooling import Pooling

from support.exact import exact_and_plain
from support.packed import VOCABULARY, pack, random_encoder, random_modernbert, token_weights
from support.tolerances import FUSED_FACTOR, FUSED_FLOOR, UNIT

LENGTHS = [17, 1, 64, 33, 2, 16, 130, 15, 63, 1, 31, 65, 32]
LAYERS = [(3,), (0,), (WORDS,), (1, 3), (3, 0, 2), (3, WORDS, 1)]


def pooled(states, offsets, table, ids, layers):
    """The definition, in the dtype of the states."""
    weights = None if table is None else table[ids]
    return np.mean([reference.pool_mean(states[i], offsets, weights) for i in layers], axis=0)


def largest(difference):
    assert np.isfinite(difference).all()
    return np.abs(difference).max()


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("threads", [1, 2])
def test_weighted_vectors(isa, layers, threads):
    weights, shape = random_encoder(5, 3, 72, 3, 130)
    ids, offsets = pack(LENGTHS, seed=2)
    table = token_weights(1)
    found = CpuEncoder(weights, shape, "mean", layers, threads=threads, token_weights=table, isa=isa)(ids, offsets)
    exact, plain = exact_and_plain(weights, shape, ids, offsets, layers)
    want = pooled(exact, offsets, table, ids, layers)
    assert found.dtype == np.float32
    assert largest(want - pooled(exact, offsets, None, ids, layers)) > 0.1  # the weights matter
    allowed = FUSED_FACTOR * largest(pooled(plain, offsets, table, ids, layers) - want) + FUSED_FLOOR
    assert largest(found - want) <= allowed


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [104, 7])  # whole vectors and a remainder, on each instruction set
def test_weighted_means_are_of_the_very_states(isa, dtype, layers, hidden):
    weights, shape = random_encoder(1, 3, hidden, 1, 97)
    ids, offsets = pack(LENGTHS, seed=3)
    table = token_weights(2)
    weighted = CpuEncoder(weights, shape, "mean", layers, dtype, 2, token_weights=table, isa=isa)
    plain = CpuEncoder(weights, shape, "mean", layers, dtype, 2, isa=isa)
    states = weighted.states(ids, offsets)
    assert states.keys() == set(layers)
    for layer, state in plain.states(ids, offsets).items():
        assert np.array_equal(states[layer], state)  # weights are of the pooling alone
    exact = {layer: state.astype(np.float64) for layer, state in states.items()}
    for encoder, used in ((weighted, table), (plain, None)):
        assert largest(encoder(ids, offsets) - pooled(exact, offsets, used, ids, layers)) <= FUSED_FLOOR


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
    weights, shape = random_encoder(5, 3, 72, 3, 130)
    ids, offsets = pack(LENGTHS, seed=2)
    encoder = CpuEncoder(weights, shape, "mean", layers, isa=isa)
    states = encoder.states(ids, offsets)
    want = np.zeros((len(LENGTHS), 72), np.float32)
    for layer in sorted(layers):  # as they come
        for i, text in enumerate(np.split(states[layer], offsets[1:-1])):
            want[i] += plain_mean(text) * np.float32(1 / len(layers))
    assert np.array_equal(encoder(ids, offsets), want)


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
    ids, offsets = pack(LENGTHS, seed=4)
    found = CpuEncoder(weights, shape, "mean", layers, isa=isa).states(ids, offsets)
    want = words_defined(weights, shape.position_start, ids)
    exact, plain = exact_and_plain(weights, shape, ids, offsets, layers)
    assert largest(exact[WORDS] - want) <= 1e-10
    assert largest(found[WORDS] - want) <= FUSED_FACTOR * largest(plain[WORDS] - want) + FUSED_FLOOR
    same = [found[WORDS][ids == token] for token in np.unique(ids)]
    assert all((rows == rows[0]).all() for rows in same)  # whatever its place
    assert largest(want - exact.get(0, 0)) > 0.5


def test_without_a_position_table_words_are_layer_0(isa):
    weights, shape = random_modernbert(5, 2, 64, 4, 97)
    states = CpuEncoder(weights, shape, "mean", (WORDS, 0), isa=isa).states(*pack(LENGTHS, seed=2))
    assert np.array_equal(states[WORDS], states[0])


def test_only_ratios_of_weights_count(isa):
    weights, shape = random_encoder(5, 3, 72, 3, 130)
    work = pack(LENGTHS, seed=2)

    def encode(table):
        return CpuEncoder(weights, shape, "mean", (1, 3), token_weights=table, isa=isa)(*work)

    table = token_weights(1)
    want = encode(table)
    assert np.isfinite(want).all()
    for power in (-90, 90):  # within what is allowed, and exact
        assert np.array_equal(encode(np.ldexp(table, power)), want)
    for alike in (1.0, 0.25):
        assert np.array_equal(encode(np.full(VOCABULARY, alike, np.float32)), encode(None))
    for extreme in (1e-30, 1e30):
        assert largest(encode(np.full(VOCABULARY, extreme, np.float32)) - encode(None)) <= FUSED_FLOOR


def test_the_table_is_copied():
    weights, shape = random_encoder(5, 1, 72, 3, 130)
    work, table = pack(LENGTHS, seed=2), token_weights(1)
    strided = CpuEncoder(weights, shape, "mean", (1,), token_weights=np.repeat(table, 2)[::2])
    encoder = CpuEncoder(weights, shape, "mean", (1,), token_weights=table)
    want = encoder(*work)
    table[:] = 1
    assert np.array_equal(encoder(*work), want)
    assert np.array_equal(strided(*work), want)


def changed(value):
    table = token_weights(1)
    table[7] = value
    return table


@pytest.mark.parametrize(
    ("table", "mode", "message"),
    [
        (token_weights(1), "pooler", "token weights cannot run with pooling 'pooler'"),
        (token_weights(1)[1:], "mean", r"must be float32 of shape \(200,\), not float32 of \(199,\)"),
        (token_weights(1)[:, None], "mean", r"must be float32 of shape \(200,\), not float32 of \(200, 1\)"),
        (token_weights(1).astype(np.float64), "mean", r"must be float32 of shape \(200,\), not float64"),
        *((changed(v), "mean", "every token weight must be between 1e-30 and 1e") for v in (-1, np.nan, np.inf)),
        *((changed(v), "mean", "every token weight must be between 1e-30 and 1e") for v in (1e-40, 1e-31, 2e30)),
    ],
)
def test_weights_that_cannot_be_used(table, mode, message):
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    with pytest.raises(ValueError, match=message):
        CpuEncoder(weights, shape, mode, (1,), token_weights=table)


@pytest.fixture
def tokens(bert, sentences):
    """The first text has nothing but [CLS] and [SEP]."""
    return Tokenizer(bert, 64)(["", *sentences[:40], " ".join(sentences[:20]), "dog", ""])


def weighted_model(bert, table, layers=(1, 3)):
    return Model(bert, bert, Pooling("mean", layers, table), 64, (), "")


@pytest.fixture
def table(bert):
    return np.resize(token_weights(3), Tokenizer(bert, 64).size)


def through(backend, tokens):
    return backend.pool(tokens)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("layers", [(3,), (1, 3)])
def test_the_backend_weighs_tokens(forced_isa, bert, tokens, table, layers):
    model = weighted_model(bert, table, layers)
    want = through(ReferenceBackend(model, "float64", "cpu", None), tokens)
    plain = through(ReferenceBackend(weighted_model(bert, None, layers), "float64", "cpu", None), tokens)
    found = through(CpuBackend(model, "float32", "cpu", 2), tokens)
    assert np.diff(tokens.offsets)[[0, -1]].tolist() == [2, 2]
    assert np.abs(unit(want) - unit(plain)).max(axis=1).min() > 1e-3  # for every text, of specials alone too
    assert largest(unit(found) - unit(want)) <= UNIT
    assert np.array_equal(found[0], found[-1])


def test_the_backend_refuses_weights_beyond_float32(bert, table):
    table[9] = 1e-38
    with pytest.raises(UsageError, match="every token weight must be between 1e-30 and 1e"):
        CpuBackend(weighted_model(bert, table), "float32", "cpu", None)
