"""The compiled encoders of every architecture on every instruction set, against the reference in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastflow
from fastflow.kernels import isa as instructions
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.panels import NotFinite

from support.encoders import assert_states, with_windows
from support.exact import exact_and_plain
from support.packed import pack, random_encoder, random_modernbert, random_mpnet, text_lengths
from support.tolerances import UNIT

SHORT = [17, 1, 64, 33, 2, 16]
LONG = [17, 1, 129, 64, 33, 2, 16, 128, 130, 15, 31, 32, 63, 65]
MADE = {"mpnet": random_mpnet, "modernbert": random_modernbert}
SHARED = [(256, 4, 1024), (48, 12, 97), (32, 1, 33), (96, 2, 65)]  # hidden, heads, intermediate


@pytest.mark.parametrize("widths", [(312, 12, 1200), (7, 7, 1), (1, 1, 3), *SHARED], ids=str)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_hidden_states_at_every_width(float_isa, widths, activation):
    made, texts = random_encoder(3, 2, *widths, activation), pack(SHORT, seed=widths[0])
    if widths[0] == 1:  # LayerNorm leaves nothing of a single column but its bias
        found = CpuEncoder(*made, "mean", (0, 1, 2), isa=float_isa).states(*texts)
        plain = exact_and_plain(*made, *texts, (0, 1, 2))[1]
        assert all(np.array_equal(found[layer], plain[layer]) for layer in found)
    else:
        assert_states(made, texts, float_isa)


@pytest.mark.slow
@pytest.mark.parametrize("family", MADE)
@pytest.mark.parametrize("widths", [(312, 12, 300), (12, 6, 1), (60, 3, 40), *SHARED], ids=str)
def test_hidden_states_of_other_architectures(float_isa, family, widths):
    assert_states(MADE[family](3, 3, *widths), pack(LONG, seed=widths[0]), float_isa, threads=2)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("half", [False, True])
def test_gates_biases_and_words_in_half(float_isa, activation, half):
    made = random_modernbert(5, 2, 72, 3, 100, activation, biases=True, half=half)
    assert_states(made, pack([33, 1, 64, 5], seed=1), float_isa)


@pytest.mark.slow
def test_hidden_states_at_the_width_of_bert_base():
    assert_states(random_encoder(3, 1, 768, 12, 3072), pack([20, 130, 70], seed=1))  # more rows than a block


@pytest.mark.parametrize("threads", [1, 2, 3])
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
    for isa in instructions.usable_isas():
        assert_states(made, pack(lengths, seed), isa, threads)


def test_the_last_layer_is_normalised_and_no_other():
    weights, shape = random_modernbert(5, 3, 64, 2, 90)
    weights["final_norm.scale"] = np.ones(64, np.float32)
    ids, offsets = pack([40, 7], seed=3)
    states = CpuEncoder(weights, shape, "mean", (1, 2, 3)).states(ids, offsets)
    away = {layer: np.abs(state.std(axis=1) - 1).max() for layer, state in states.items()}
    assert away[3] <= 1e-3
    assert min(away[1], away[2]) > 0.1
    fewer = CpuEncoder(weights, shape, "mean", (2,)).states(ids, offsets)[2]  # the highest here
    assert np.array_equal(fewer, states[2])


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


@pytest.mark.parametrize("made", [random_encoder(0, 1, 32, 4, 64), random_modernbert(0, 1, 32, 4, 64, positions=70)])
def test_a_text_may_be_as_long_as_the_positions(made):
    encoder, most = CpuEncoder(*made, "mean", (1,)), made[1].positions
    assert np.isfinite(encoder(*pack([most, 3], 0))).all()
    with pytest.raises(ValueError, match="text 1 has no tokens, too many"):
        encoder(*pack([3, most + 1], 0))


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


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"mode": "pooler"}, "the encoder has no pooler"),
        ({"mode": "median"}, "pooling 'median' is not known; known are mean, "),
        ({"dtype": "float16"}, "dtype 'float16' does not run here; usable are float32, bfloat16, int8"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
    ],
)
def test_choices_that_cannot_be_packed(choice, message):
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    without = {name: array for name, array in weights.items() if not name.startswith("pooler")}
    with pytest.raises(ValueError, match=message):
        CpuEncoder(without, shape, **{"mode": "mean", "layers": (1,)} | choice)
