"""Attention in bytes: against its definition in float64, and where bytes alone would lose too much."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.kernels import _cpu
from fastflow.kernels import isa as instructions
from fastflow.kernels.encoder import cpu

from support import in_bytes
from support.exact import attention, remembered
from support.heads import LENGTHS, LONG, one_head, random_head, table
from support.packed import pack, random_encoder, rounded

attention_in_bytes = remembered(in_bytes.attention)


@pytest.fixture
def byte_isa(isa):
    """Every instruction set whose attention can be in bytes."""
    if _cpu.INT8 not in _cpu.attention_formats(instructions.isas()[isa][0]):
        pytest.skip(f"{isa} has no attention in bytes here")
    return isa


def in_bytes_of(isa, qkv, window=None, bias=None, half=False):
    return one_head(isa, qkv, window, bias, _cpu.INT8, half)


def exact_of(qkv, window=None, bias=None):
    return attention(qkv, np.array([0, len(qkv)]), 1, window, bias)[0]


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 0, 1, 31, 64])
@pytest.mark.parametrize("reach", [None, 40])
@pytest.mark.parametrize("size", [32, 40])
def test_attention_in_bytes(byte_isa, window, reach, size):
    """Against its definition in float64: what is left is a byte near a tie that is rounded the other way."""
    bias = None if reach is None else table(reach)
    for tokens in (*LENGTHS, *LONG):
        qkv, offsets = random_head(tokens, size, tokens), np.array([0, tokens])
        found, exact = in_bytes_of(byte_isa, qkv, window, bias), exact_of(qkv, window, bias)
        want = attention_in_bytes(qkv.astype(np.float64), offsets, 1, window, bias)
        assert np.isfinite(found).all()
        lost = np.abs(want - exact).mean()
        assert lost > 1e-3  # it is not bfloat16 under another name
        near = 0.1 if tokens <= _cpu.KEYS else 0.6  # a block's terms are bytes below its own maximum, not the row's
        assert np.abs(found - want).mean() <= near * lost
        assert np.abs(found - exact).max() <= 0.04 * np.abs(qkv).max()
        assert np.abs(found - exact).mean() <= 0.01 * np.abs(exact).max()


def test_results_in_bfloat16_are_the_others_rounded(byte_isa):
    for tokens in (*LENGTHS, *LONG):
        qkv = random_head(tokens, 40, tokens)
        wide, half = (in_bytes_of(byte_isa, qkv, half=half) for half in (False, True))
        assert np.array_equal(half, rounded(wide))
        assert tokens == 1 or not np.array_equal(half, wide)


@pytest.mark.parametrize("height", [1, 3, 8, 14])
@pytest.mark.parametrize("place", [0, 5, 399])
def test_one_token_that_most_attend_to_does_not_hide_the_others(byte_isa, height, place):
    """Its value is nothing, so that terms of an e^height-th of the largest make up the result."""
    qkv = np.clip(random_head(400, 32, spread=0.5), -2, 2)
    qkv[:, :32] += 1
    qkv[place, 32:64] = height / np.sqrt(32)
    qkv[10:12, 64:] = [[2], [-2]]  # an offset of 0, so that a value of 0 is a byte without error
    qkv[place, 64:] = 0
    found, exact = in_bytes_of(byte_isa, qkv), exact_of(rounded(qkv))
    assert np.abs(found - exact).mean() <= 0.1 * np.abs(exact).mean()


@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize("apart", [1, 2, 3, 16])
@pytest.mark.parametrize("height", [5.8, 6.6])
def test_many_small_terms_that_are_alike_keep_their_share(byte_isa, height, apart, window):
    """Hundreds of terms of 0.77 or 0.35, which would all be rounded up to 1, or all down to 0."""
    qkv = np.zeros((400, 96), np.float32)
    qkv[:, :32], qkv[:, 64:] = 1 / np.sqrt(32), 1
    qkv[::apart, 64:] = 2
    few = [0, 33, 66, 115, 213]  # on which the text rests, in lanes of their own
    qkv[few, 32:64] = height + np.linspace(0, 0.2, 5)[:, None] / np.sqrt(32)
    qkv[few, 64:] = -1
    found, exact = in_bytes_of(byte_isa, qkv, window), exact_of(qkv, window)
    assert np.abs(found - exact).max() <= 0.04


@pytest.mark.parametrize("rising", [False, True])
@pytest.mark.parametrize("window", [None, 500])
def test_the_maximum_moves_from_block_to_block(byte_isa, rising, window):
    qkv = random_head(1300, 16, spread=0.5)
    ramp = np.linspace(-30, 30, len(qkv)) * (1 if rising else -1)
    qkv[:, 0], qkv[:, 16] = 4, ramp.astype(np.float32)  # scores from -30 to 30 along the keys
    found, exact = in_bytes_of(byte_isa, qkv, window), exact_of(qkv, window)
    want = attention_in_bytes(qkv.astype(np.float64), np.array([0, len(qkv)]), 1, window)
    lost = np.abs(want - exact).mean()
    assert lost < 0.2 * np.abs(exact).mean()  # of keys from -30 to 30 in 255 steps
    assert np.abs(found - want).mean() <= 0.5 * lost


def test_shares_add_up_to_one_and_a_window_of_one_token_gives_its_value(byte_isa):
    qkv = random_head(600, 32)
    values = qkv[:, 64:].copy()
    qkv[:, 64:] = 1
    assert np.array_equal(in_bytes_of(byte_isa, qkv), np.ones((600, 32)))
    qkv[:, 64:] = values
    step = np.ptp(values, axis=0) / 254
    assert (np.abs(in_bytes_of(byte_isa, qkv, 0) - rounded(values)) <= 0.501 * step).all()
    assert np.array_equal(in_bytes_of(byte_isa, qkv[:1]), rounded(values[:1]))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tokens", [1, 20, 600])
def test_a_number_that_is_not_finite_is_not_lost(byte_isa, wrong, tokens):
    """Bytes hold none: of a query in its row, of a key or a value in all rows."""
    for part in range(3):
        for channel in (0, 17, 31):
            qkv = random_head(tokens, 32)
            qkv[tokens // 2, 32 * part + channel] = wrong
            rows = np.isfinite(in_bytes_of(byte_isa, qkv)).all(axis=1)
            if part == 0:
                assert np.array_equal(np.flatnonzero(~rows), [tokens // 2])
            else:
                assert not rows.any()


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e15])
def test_bytes_follow_the_range_of_each_channel(byte_isa, scale):
    qkv = random_head(100, 32)
    plain = in_bytes_of(byte_isa, qkv)
    qkv[:, 64:] *= np.float32(scale)
    assert np.abs(in_bytes_of(byte_isa, qkv) / scale - plain).max() <= 0.05
    qkv[:, 32:64] = 3  # keys without a range: every share is the same
    assert np.abs(in_bytes_of(byte_isa, qkv) / scale - qkv[:, 64:].mean(axis=0) / scale).max() <= 0.05


def test_int8_attends_in_bytes_from_some_length(byte_isa):
    """Shorter texts have the bits of attention in bfloat16, if the processor has that."""
    name, form = cpu.choose("int8", byte_isa)
    number = instructions.isas()[name][0]
    assert cpu.attends(number, form) == _cpu.INT8
    weights, shape = random_encoder(3, 1, 64, 2, 64)
    ids, offsets = pack([_cpu.BYTES_FROM - 1, _cpu.BYTES_FROM], seed=5)
    found = cpu.CpuEncoder(weights, shape, "mean", (1,), "int8", isa=byte_isa)(ids, offsets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "attends", lambda *_: _cpu.BF16)
        if _cpu.BF16 in _cpu.attention_formats(number):
            other = cpu.CpuEncoder(weights, shape, "mean", (1,), "int8", isa=byte_isa)(ids, offsets)
            assert np.array_equal(found[0], other[0])
            assert not np.array_equal(found[1], other[1])
