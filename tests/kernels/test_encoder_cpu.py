"""The compiled encoder on every instruction set of this machine, against the reference in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastflow
from fastflow.kernels import isa as instructions
from fastflow.kernels.encoder import reference
from fastflow.kernels.encoder.cpu import CpuEncoder

from support.exact import exact_and_plain
from support.packed import pack, random_encoder, text_lengths
from support.tolerances import FUSED_FACTOR, FUSED_FLOOR, UNIT


def assert_right(found, exact, plain):
    """No hidden state errs more than twice as much as the reference in float32 does."""
    assert found.keys() == exact.keys()
    for layer, state in found.items():
        assert state.dtype == np.float32
        assert np.isfinite(state).all()
        assert exact[layer].std() > 0.1  # the comparison is of something
        error, allowed = (np.abs(s[layer] - exact[layer]).max() for s in (found, plain))
        assert error <= FUSED_FACTOR * allowed + FUSED_FLOOR


@pytest.mark.parametrize(
    ("hidden", "heads", "intermediate"),
    [(312, 12, 1200), (256, 4, 1024), (48, 12, 97), (32, 1, 33), (7, 7, 1), (1, 1, 3), (96, 2, 65)],
)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_hidden_states_at_every_width(float_isa, hidden, heads, intermediate, activation):
    weights, shape = random_encoder(3, 2, hidden, heads, intermediate, activation)
    ids, offsets = pack([17, 1, 64, 33, 2, 16], seed=hidden)
    found = CpuEncoder(weights, shape, "mean", (0, 1, 2), isa=float_isa).states(ids, offsets)
    exact, plain = exact_and_plain(weights, shape, ids, offsets, (0, 1, 2))
    if hidden == 1:  # LayerNorm leaves nothing of a single column but its bias
        assert all(np.array_equal(found[layer], plain[layer]) for layer in found)
    else:
        assert_right(found, exact, plain)


@pytest.mark.slow
def test_hidden_states_at_the_width_of_bert_base():
    weights, shape = random_encoder(3, 1, 768, 12, 3072)
    ids, offsets = pack([20, 130, 70], seed=1)  # more rows than a block
    found = CpuEncoder(weights, shape, "mean", (0, 1)).states(ids, offsets)
    assert_right(found, *exact_and_plain(weights, shape, ids, offsets, (0, 1)))


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
    weights, shape = random_encoder(
        seed, layers, heads * size, heads, intermediate, activation, width=width, pad_id=pad_id, half=half
    )
    ids, offsets = pack(lengths, seed)
    wanted = tuple(range(layers + 1))
    exact, plain = exact_and_plain(weights, shape, ids, offsets, wanted)
    for name in instructions.usable_isas():
        encoder = CpuEncoder(weights, shape, "mean", wanted, threads=threads, isa=name)
        assert_right(encoder.states(ids, offsets), exact, plain)


@pytest.mark.parametrize(("mode", "layers"), [("mean", (1, 3)), ("mean", (3, 0)), ("cls", (2,)), ("pooler", (3,))])
@pytest.mark.parametrize("threads", [1, 2])
def test_pooled_vectors(float_isa, mode, layers, threads):
    weights, shape = random_encoder(5, 3, 72, 3, 130)
    ids, offsets = pack([9, 130, 1, 33, 2, 63, 64, 65, 7], seed=2)
    found = CpuEncoder(weights, shape, mode, layers, threads=threads, isa=float_isa)(ids, offsets)
    states, plain = exact_and_plain(weights, shape, ids, offsets, layers)
    wide = {name: array.astype(np.float64) for name, array in weights.items()}

    def pool(states, weights):
        if mode == "mean":
            return np.mean([reference.pool_mean(states[i], offsets) for i in layers], axis=0)
        first = reference.pool_first(states[layers[0]], offsets)
        return reference.pooler(first, weights) if mode == "pooler" else first

    exact, plain = pool(states, wide), pool(plain, weights)
    assert found.shape == exact.shape
    assert np.isfinite(found).all()
    assert np.abs(found - exact).max() <= FUSED_FACTOR * np.abs(plain - exact).max() + FUSED_FLOOR


@pytest.fixture(scope="module")
def exactly(sentences):
    """Texts, one empty and one too long, and what the model in the package gives of them in float64."""
    texts = [*sentences[:100], "", " ".join(sentences[:20])]
    exact = fastflow.Runtime(backend="reference", dtype="float64")
    with pytest.warns(UserWarning, match="are cut"):
        return texts, exact.encode(texts, normalize_embeddings=True)


@pytest.mark.slow
def test_the_default_model_is_exact_to_float32(float_isa, exactly, monkeypatch):
    monkeypatch.setenv("FASTFLOW_ISA", float_isa)  # a Runtime takes no argument of that kind
    texts, want = exactly
    runtime = fastflow.Runtime(backend="cpu", dtype="float32", threads=2)
    with pytest.warns(UserWarning, match="are cut"):
        found = runtime.encode(texts, normalize_embeddings=True)
    assert float_isa in " ".join(runtime.info()["details"])
    assert np.isfinite(found).all()
    assert np.abs(found - want).max() <= UNIT


def test_what_cannot_be_encoded_is_named(float_isa):
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    encoder = CpuEncoder(weights, shape, "mean", (1,), isa=float_isa)
    ids, offsets = pack([3, 4, 5], 0)
    assert encoder(np.empty(0, np.int32), np.zeros(1, np.int64)).shape == (0, 32)
    for place, wrong in ((4, -1), (4, len(weights["word"])), (6, 2**31 - 1)):
        bad = ids.copy()
        bad[place] = wrong
        with pytest.raises(ValueError, match="text 1 has no tokens, too many, or an id outside the vocabulary"):
            encoder(bad, offsets)
    with pytest.raises(ValueError, match="text 1 has no tokens"):
        encoder(ids, np.array([0, 3, 3, 12]))
    with pytest.raises(ValueError, match="offsets must start at 0 and end at the number of ids"):
        encoder(ids, np.array([0, 3, 7, 11]))
    with pytest.raises(ValueError, match="text 0 has no tokens, too many"):
        encoder(*pack([shape.positions + 1], 0))
    assert np.isfinite(encoder(*pack([shape.positions], 0))).all()


def test_choices_that_cannot_be_packed():
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    without = {name: array for name, array in weights.items() if not name.startswith("pooler")}
    for settings_, message in (
        ({"weights": without, "mode": "pooler"}, "the encoder has no pooler"),
        ({"mode": "median"}, "pooling 'median' is not known; known are mean, "),
        ({"dtype": "float16"}, "dtype 'float16' does not run here; usable are float32, bfloat16, int8"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
    ):
        arguments = {"weights": weights, "shape": shape, "mode": "mean", "layers": (1,)} | settings_
        with pytest.raises(ValueError, match=message):
            CpuEncoder(**arguments)
