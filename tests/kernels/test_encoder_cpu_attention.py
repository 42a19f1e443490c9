"""Attention with windows and biases by distance on every instruction set, against the reference in float64."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.kernels import _cpu
from fastflow.kernels import isa as instructions
from fastflow.kernels.encoder.cpu import DTYPES, CpuEncoder
from fastflow.kernels.encoder.cpu_layers import assemble

from support import halved
from support.exact import attention, exact_and_plain, remembered
from support.heads import LENGTHS, LONG, one_head, random_head, table
from support.packed import pack, random_encoder, rounded
from support.tolerances import FUSED_FACTOR, FUSED_FLOOR

attention_in_bfloat16 = remembered(halved.attention)
WINDOWS = (None, 0, 1, 15, 16, 31, 32, 64, 130)


def assert_attends(isa, qkv, window=None, bias=None):
    """The kernel errs at most twice as much as the reference in float32 does."""
    offsets = np.array([0, len(qkv)])
    found = one_head(isa, qkv, window, bias)
    exact, plain = attention(qkv, offsets, 1, window, bias)
    assert np.isfinite(found).all()
    assert np.abs(found - exact).max() <= FUSED_FACTOR * np.abs(plain - exact).max() + FUSED_FLOOR


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("reach", [None, 0, 3, 128])
def test_windows_and_biases_at_every_length(float_isa, window, reach):
    bias = None if reach is None else table(reach)
    for tokens in LENGTHS:
        assert_attends(float_isa, random_head(tokens, 32, tokens), window, bias)


@pytest.mark.parametrize("tokens", LONG)
@pytest.mark.parametrize("window", [None, 64, 300, 600])
def test_long_texts(float_isa, tokens, window):
    assert_attends(float_isa, random_head(tokens, 24, tokens), window)
    assert_attends(float_isa, random_head(tokens, 24, tokens), window, table(128))


@pytest.fixture
def half_isa(isa):
    """Every instruction set whose attention can be in bfloat16."""
    if _cpu.BF16 not in _cpu.attention_formats(instructions.isas()[isa][0]):
        pytest.skip(f"{isa} has no attention in bfloat16 here")
    return isa


@pytest.mark.parametrize("window", [None, 0, 31, 64])
@pytest.mark.parametrize("reach", [None, 40])
def test_attention_in_bfloat16(half_isa, window, reach):
    """Against its definition in float64: what is left is a term near a tie that is rounded the other way."""
    bias = None if reach is None else table(reach)
    for tokens in (*LENGTHS, *LONG):
        qkv, offsets = random_head(tokens, 40, tokens), np.array([0, tokens])
        found = one_head(half_isa, qkv, window, bias, _cpu.BF16)
        want = attention_in_bfloat16(qkv.astype(np.float64), offsets, 1, window, bias)
        exact, _ = attention(qkv, offsets, 1, window, bias)
        assert np.isfinite(found).all()
        lost = np.abs(want - exact).mean()
        assert lost > 1e-4  # it is not float32 under another name
        near = 0.3 if tokens <= _cpu.KEYS else 0.6  # a block's terms are rounded below its own maximum, not the row's
        assert np.abs(found - want).mean() <= near * lost
        assert np.abs(found - exact).max() <= 2**-6 * np.abs(qkv).max()


def test_results_in_bfloat16_are_the_others_rounded(half_isa):
    for tokens in (*LENGTHS, *LONG):
        qkv = random_head(tokens, 40, tokens)
        wide, half = (one_head(half_isa, qkv, form=_cpu.BF16, half=half) for half in (False, True))
        assert np.array_equal(half, rounded(wide))
        assert tokens == 1 or not np.array_equal(half, wide)


def test_shares_in_bfloat16_add_up_to_one(half_isa):
    qkv = random_head(600, 32)
    qkv[:, 64:] = 1
    assert np.abs(one_head(half_isa, qkv, None, None, _cpu.BF16) - 1).max() <= 1e-6
    assert np.abs(one_head(half_isa, qkv, 64, None, _cpu.BF16) - 1).max() <= 1e-6


@pytest.mark.parametrize("rising", [False, True])
def test_the_maximum_moves_from_block_to_block(float_isa, rising):
    qkv = random_head(1300, 16, spread=0.5)
    ramp = np.linspace(-30, 30, len(qkv)) * (1 if rising else -1)
    qkv[:, 0], qkv[:, 16] = 4, ramp.astype(np.float32)  # scores from -30 to 30 along the keys
    assert_attends(float_isa, qkv)
    assert_attends(float_isa, qkv, 500)


def test_a_window_hides_what_is_beyond_it(float_isa):
    qkv = random_head(200, 32)
    spoilt = qkv.copy()
    spoilt[100, 32:] *= 9
    for window in (0, 7, 64):
        same = (one_head(float_isa, qkv, window) == one_head(float_isa, spoilt, window)).all(axis=1)
        assert np.array_equal(np.flatnonzero(~same), np.arange(100 - window, 101 + window))


def test_a_window_of_one_token_gives_its_value(float_isa):
    qkv = random_head(70, 16)
    assert np.abs(one_head(float_isa, qkv, 0) - qkv[:, 32:]).max() <= 1e-6


def test_a_bias_is_of_key_minus_query(float_isa):
    """A bias that admits one distance alone moves the values by that distance."""
    qkv = random_head(90, 16)
    for distance in (-3, 0, 5):
        bias = np.full((1, 41), -60, np.float32)
        bias[0, 20 + distance] = 60
        rows = np.arange(5, 85)
        found = one_head(float_isa, qkv, None, bias)[rows]
        assert np.abs(found - qkv[rows + distance, 32:]).max() <= 1e-6


def test_beyond_its_reach_a_bias_is_that_of_its_ends(float_isa):
    qkv, near = random_head(150, 16), table(3)
    far = np.pad(near, ((0, 0), (160, 160)), mode="edge")
    assert np.array_equal(one_head(float_isa, qkv, None, near), one_head(float_isa, qkv, None, far))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_encoder_whose_layers_have_windows_and_biases(isa, threads):
    """As steps of an encoder: hidden states against the reference, and the same bits in any company."""
    weights, shape = random_encoder(3, 2, 72, 3, 100)
    weights |= {"relative": np.random.default_rng(0).normal(0, 2, (32, 3)).astype(np.float32)}
    shape = shape._replace(windows=(20, 7))
    ids, offsets = pack([17, 130, 1, 64, 2, 100], seed=5)
    encoder = CpuEncoder(weights, shape, "mean", (2,), threads=threads, isa=isa)
    found = encoder.states(ids, offsets)[2]
    exact, plain = (states[2] for states in exact_and_plain(weights, shape, ids, offsets, (2,)))
    assert np.isfinite(found).all()
    assert np.abs(found - exact).max() <= FUSED_FACTOR * np.abs(plain - exact).max() + FUSED_FLOOR
    for i in range(6):
        alone = encoder.states(ids[offsets[i] : offsets[i + 1]], np.array([0, offsets[i + 1] - offsets[i]]))[2]
        assert np.array_equal(alone, found[offsets[i] : offsets[i + 1]])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_text_has_the_same_bits_however_many_threads_share_it(monkeypatch, isa, dtype):
    monkeypatch.setattr("support.packed.POSITIONS", 1100)
    weights, shape = random_encoder(3, 2, 32, 2, 64)
    weights |= {"relative": np.random.default_rng(9).normal(0, 2, (32, 2)).astype(np.float32)}
    shape = shape._replace(windows=(300, 300))
    ids, offsets = pack([193, 200, 5, 1100, 192, 700], seed=5)
    encoder = CpuEncoder(weights, shape, "mean", (2,), dtype, threads=1, isa=isa)
    want = encoder(ids, offsets)
    assert np.isfinite(want).all()
    for i in range(6):
        text = ids[offsets[i] : offsets[i + 1]]
        for encoder.threads in (1, 2, 5):  # a text alone is shared by all
            assert np.array_equal(encoder(text, np.array([0, len(text)]))[0], want[i]), (i, encoder.threads)
    for encoder.threads in (2, 5):
        assert np.array_equal(encoder(ids, offsets), want), encoder.threads
        two = encoder(ids[: offsets[2]], offsets[:3])  # two long texts in a group
        assert np.array_equal(two, want[:2]), encoder.threads


def test_attention_that_does_not_fit_is_refused(float_isa):
    number, _, vector, _ = instructions.isas()[float_isa]
    size = 2 * vector
    qkv, out = np.zeros((3, 3 * size), np.float32), np.zeros((3, size), np.float32)
    for wrong in (np.zeros((2, size), np.float32), np.zeros((3, size + 1), np.float32), np.zeros((3, 0), np.float32)):
        with pytest.raises(ValueError, match="attention maps"):
            _cpu.attend_head(number, _cpu.FLOAT, qkv, wrong, -1, None)
    with pytest.raises(ValueError, match="a table of biases has"):
        _cpu.attend_head(number, _cpu.FLOAT, qkv, out, -1, np.zeros(2 * _cpu.BIAS_MARGIN, np.float32))
    with pytest.raises(ValueError, match="results are bfloat16 where"):
        _cpu.attend_head(number, _cpu.FLOAT, qkv, out, -1, None, half=True)
    with pytest.raises(ValueError, match="instruction set 99 has no attention of format 0"):
        _cpu.attend_head(99, _cpu.FLOAT, qkv, out, -1, None)
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    program = assemble(weights, shape, "mean", (0,), 32, _cpu.FLOAT)
    for bias in (table(3, heads=3), np.zeros((4, 6), np.float32)):
        with pytest.raises(ValueError, match="a table of biases is"):
            program.attend("wide", "context", bias=bias)
