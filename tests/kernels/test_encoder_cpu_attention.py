"""Attention with windows and biases by distance on every instruction set: in float32, in bfloat16 and in bytes."""

import numpy as np
import pytest

from fastflow.kernels import _cpu, processor
from fastflow.kernels.encoder import PoolingSpec, cpu
from fastflow.kernels.encoder.cpu_layers import assemble
from fastflow.kernels.encoder.cpu_layout import Products

from support import halved, in_bytes
from support.encoders import assert_near
from support.exact import attention, remembered
from support.heads import LENGTHS, LONG, one_head, random_head, table
from support.packed import pack, random_encoder, rounded

DEFINED = {_cpu.BF16: remembered(halved.attention), _cpu.INT8: remembered(in_bytes.attention)}
EVERY_LENGTH = (*LENGTHS, *LONG)


def skip_without(isa, form):
    if form not in _cpu.attention_formats(processor.isas()[isa][0]):
        pytest.skip(f"{isa} has no attention of format {form} here")
    return form


@pytest.fixture(params=[_cpu.BF16, _cpu.INT8], ids=["bfloat16", "bytes"])
def form(request, isa):
    return skip_without(isa, request.param)


@pytest.fixture
def byte_isa(isa):
    """Every instruction set with attention in bytes."""
    skip_without(isa, _cpu.INT8)
    return isa


def attend_in_bytes(isa, qkv, window=None, bias=None):
    return one_head(isa, qkv, window, bias, _cpu.INT8)


def attend_exactly(qkv, window=None, bias=None):
    return attention(qkv, np.array([0, len(qkv)]), 1, window, bias)[0]


def assert_attends(isa, qkv, window=None, bias=None):
    """float32 attention is near the reference."""
    assert_near(one_head(isa, qkv, window, bias), *attention(qkv, np.array([0, len(qkv)]), 1, window, bias))


def measure(isa, form, qkv, window=None, bias=None):
    """The mean loss of the definition of ``form``; the kernel's result, the definition's, and the exact one."""
    found, exact = one_head(isa, qkv, window, bias, form), attend_exactly(qkv, window, bias)
    want = DEFINED[form](qkv.astype(np.float64), np.array([0, len(qkv)]), 1, window, bias)
    assert np.isfinite(found).all()
    return np.abs(want - exact).mean(), found, want, exact


@pytest.mark.parametrize("reach", [None, 0, 3, 128])
def test_windows_and_biases_at_every_length(float_isa, reach):
    bias = None if reach is None else table(reach)
    for tokens in LENGTHS:
        for window in (None, 0, 1, 16, 31, 130):
            assert_attends(float_isa, random_head(tokens, 32, tokens), window, bias)


@pytest.mark.parametrize("tokens", LONG)
def test_long_texts(float_isa, tokens):
    for window, bias in ((None, None), (None, table(128)), (64, table(128)), (300, None), (600, table(128))):
        assert_attends(float_isa, random_head(tokens, 24, tokens), window, bias)


# least mean loss; near: at most this part of it is left, in one block of keys and in several, whose terms are rounded
# below the block's own maximum; far: at most this part of the largest input is lost anywhere
BOUNDS = {_cpu.BF16: (1e-4, 0.3, 0.6, 2**-6), _cpu.INT8: (1e-3, 0.1, 0.6, 0.04)}


@pytest.mark.parametrize(("window", "reach"), [(None, None), (0, 40), (31, 40), (64, None)])
def test_reduced_attention_is_its_definition(isa, form, window, reach):
    """What is left is a term or byte near a tie that is rounded the other way."""
    least, near, near_by_blocks, far = BOUNDS[form]
    bias = None if reach is None else table(reach)
    for tokens in EVERY_LENGTH:
        qkv = random_head(tokens, 40, tokens)
        lost, found, want, exact = measure(isa, form, qkv, window, bias)
        assert lost > least, "it is a wider format"
        assert np.abs(found - want).mean() <= (near if tokens <= _cpu.KEYS else near_by_blocks) * lost
        assert np.abs(found - exact).max() <= far * np.abs(qkv).max()
        assert form == _cpu.BF16 or np.abs(found - exact).mean() <= 0.01 * np.abs(exact).max()


def test_results_in_bfloat16_are_the_others_rounded(isa, form):
    for tokens in EVERY_LENGTH:
        qkv = random_head(tokens, 40, tokens)
        wide, half = (one_head(isa, qkv, form=form, half=half) for half in (False, True))
        assert np.array_equal(half, rounded(wide))
        assert tokens == 1 or not np.array_equal(half, wide)


@pytest.mark.parametrize("window", [None, 64])
def test_shares_add_up_to_one(isa, form, window):
    qkv = random_head(600, 32)
    qkv[:, 64:] = 1
    assert np.abs(one_head(isa, qkv, window, None, form) - 1).max() <= (0 if form == _cpu.INT8 else 1e-6)


@pytest.mark.parametrize(("rising", "window"), [(False, None), (True, None), (True, 500)])
def test_the_maximum_moves_from_block_to_block(isa, rising, window):
    qkv = random_head(1300, 16, spread=0.5)
    ramp = np.linspace(-30, 30, len(qkv)) * (1 if rising else -1)
    qkv[:, 0], qkv[:, 16] = 4, ramp.astype(np.float32)  # scores from -30 to 30 along the keys
    assert_attends(isa, qkv, window)
    if _cpu.INT8 in _cpu.attention_formats(processor.isas()[isa][0]):
        lost, found, want, exact = measure(isa, _cpu.INT8, qkv, window)
        assert lost < 0.2 * np.abs(exact).mean()  # keys from -30 to 30 in 255 steps
        assert np.abs(found - want).mean() <= 0.5 * lost


def test_one_token_that_most_attend_to_does_not_hide_the_others(byte_isa):
    """Its value is 0, so terms of an e^height-th of the largest make up the result."""
    for height, place in ((1, 0), (3, 399), (8, 5), (14, 0), (14, 399)):
        qkv = np.clip(random_head(400, 32, spread=0.5), -2, 2)
        qkv[:, :32] += 1
        qkv[place, 32:64] = height / np.sqrt(32)
        qkv[10:12, 64:] = [[2], [-2]]  # an offset of 0, so that a value of 0 is an exact byte
        qkv[place, 64:] = 0
        found, exact = attend_in_bytes(byte_isa, qkv), attend_exactly(rounded(qkv))
        assert np.abs(found - exact).mean() <= 0.1 * np.abs(exact).mean(), (height, place)


@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize("height", [5.8, 6.6])
def test_many_small_equal_terms_keep_their_share(byte_isa, height, window):
    """Hundreds of terms of 0.77 or 0.35, which would all be rounded up to 1, or all down to 0."""
    for apart in (1, 2, 3, 16):
        qkv = np.zeros((400, 96), np.float32)
        qkv[:, :32], qkv[:, 64:] = 1 / np.sqrt(32), 1
        qkv[::apart, 64:] = 2
        few = [0, 33, 66, 115, 213]  # the dominant keys, in different lanes
        qkv[few, 32:64] = height + np.linspace(0, 0.2, 5)[:, None] / np.sqrt(32)
        qkv[few, 64:] = -1
        assert np.abs(attend_in_bytes(byte_isa, qkv, window) - attend_exactly(qkv, window)).max() <= 0.04, apart


def test_bytes_of_a_window_of_one_token_are_its_value(byte_isa):
    qkv = random_head(600, 32)
    step = np.ptp(qkv[:, 64:], axis=0) / 254
    assert (np.abs(attend_in_bytes(byte_isa, qkv, 0) - rounded(qkv[:, 64:])) <= 0.501 * step).all()
    assert np.array_equal(attend_in_bytes(byte_isa, qkv[:1]), rounded(qkv[:1, 64:]))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tokens", [1, 20, 600])
def test_a_number_that_is_not_finite_is_not_lost(byte_isa, wrong, tokens):
    """Bytes hold none: a query spoils its row, a key or a value all rows."""
    for part, channel in ((0, 0), (0, 31), (1, 17), (1, 0), (2, 31), (2, 17)):
        qkv = random_head(tokens, 32)
        qkv[tokens // 2, 32 * part + channel] = wrong
        spoilt = np.flatnonzero(~np.isfinite(attend_in_bytes(byte_isa, qkv)).all(axis=1))
        assert np.array_equal(spoilt, [tokens // 2] if part == 0 else np.arange(tokens))


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e15])
def test_bytes_follow_the_range_of_each_channel(byte_isa, scale):
    qkv = random_head(100, 32)
    plain = attend_in_bytes(byte_isa, qkv)
    qkv[:, 64:] *= np.float32(scale)
    assert np.abs(attend_in_bytes(byte_isa, qkv) / scale - plain).max() <= 0.05
    qkv[:, 32:64] = 3  # keys without a range: every share is the same
    assert np.abs(attend_in_bytes(byte_isa, qkv) / scale - qkv[:, 64:].mean(axis=0) / scale).max() <= 0.05


def test_int8_attends_in_bytes_from_some_length(byte_isa, monkeypatch):
    """Shorter texts have the bits of attention in bfloat16, if the processor has that."""
    name, form = cpu.choose("int8", byte_isa)
    number = processor.isas()[name][0]
    assert cpu.choose_attention(number, form) == _cpu.INT8
    made, texts = random_encoder(3, 1, 64, 2, 64), pack([_cpu.BYTES_FROM - 1, _cpu.BYTES_FROM], seed=5)
    found = cpu.CpuEncoder(*made, PoolingSpec("mean", (1,)), "int8", isa=byte_isa)(*texts)
    monkeypatch.setattr(cpu, "choose_attention", lambda *_: _cpu.BF16)
    if _cpu.BF16 in _cpu.attention_formats(number):
        other = cpu.CpuEncoder(*made, PoolingSpec("mean", (1,)), "int8", isa=byte_isa)(*texts)
        assert np.array_equal(found[0], other[0])
        assert not np.array_equal(found[1], other[1])


def test_attention_that_does_not_fit_is_refused(float_isa):
    number, _, vector, _ = processor.isas()[float_isa]
    size = 2 * vector
    qkv, out = np.zeros((3, 3 * size), np.float32), np.zeros((3, size), np.float32)
    wrong = [np.zeros(shape, np.float32) for shape in ((2, size), (3, size + 1), (3, 0))]
    bias = np.zeros(2 * _cpu.BIAS_MARGIN, np.float32)
    calls = [((number, _cpu.FLOAT, qkv, other, -1, None), {}, "attention maps") for other in wrong]
    calls += [
        ((number, _cpu.FLOAT, qkv, out, -1, bias), {}, "a table of biases has"),
        ((number, _cpu.FLOAT, qkv, out, -1, None), {"half": True}, "results are bfloat16 where"),
        ((99, _cpu.FLOAT, qkv, out, -1, None), {}, "instruction set 99 has no attention of format 0"),
    ]
    for arguments, options, message in calls:
        with pytest.raises(ValueError, match=message):
            _cpu.attend_head(*arguments, **options)
    program = assemble(*random_encoder(0, 1, 32, 4, 64), PoolingSpec("mean", (0,)), Products(32, _cpu.FLOAT))
    for bias in (table(3, heads=3), np.zeros((4, 6), np.float32)):
        with pytest.raises(ValueError, match="a table of biases is"):
            program.attend("wide", "context", bias=bias)


@pytest.mark.parametrize(("window", "reach"), [(None, None), (0, 40), (31, None), (300, 40)])
def test_attention_of_amx_and_of_its_emulation_agree(window, reach):
    if processor.amx_missing():
        pytest.skip(f"no AMX here: {processor.amx_missing()}")
    bias = None if reach is None else table(reach)
    for tokens in EVERY_LENGTH:
        for half in (False, True):
            qkv = random_head(tokens, 40, tokens)
            hard, soft = (one_head(name, qkv, window, bias, _cpu.BF16, half) for name in processor.TILES)
            assert np.array_equal(hard, soft)
