"""Tiles of AMX against their emulation, and products of two instruction sets with the same bits."""

from fractions import Fraction

import numpy as np
import pytest

from fastflow.kernels import _cpu, processor
from fastflow.kernels._cpu import BF16, FLOAT, INT8, INT8_SIGNED, INT8_TILES
from fastflow.kernels.encoder import PoolingSpec
from fastflow.kernels.encoder import cpu as cpu_encoder
from fastflow.kernels.encoder.cpu import CpuEncoder, choose, describe
from fastflow.kernels.stored import to_bfloat16

from support.packed import pack, random_encoder


def number_of(name):
    number, usable, _, _ = _cpu.isas()[name]
    if not usable:
        pytest.skip(f"this machine has no {name}")
    return number


@pytest.fixture(params=processor.TILES)
def tiles(request):
    """The number of each instruction set with tiles."""
    return number_of(request.param)


def round_to_float32(value):
    """Round a Fraction to the nearest float32, ties to even, subnormals flushed, as a Fraction."""
    if value == 0:
        return value
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    step = Fraction(2) ** (exponent - 23)
    rounded = round(value / step) * step
    return rounded if abs(rounded) >= Fraction(2) ** -126 else Fraction(0)


def dot_bf16(a, b, c):
    """c + (even + odd), chains of fused multiply-adds from zero; a (R, 32), b (16, 32) bfloat16, c (R, 16)."""

    def exact(x):
        return Fraction(float(x)) if abs(x) >= 2.0**-126 else Fraction(0)

    out = np.empty((len(a), 16), np.float32)
    for r in range(len(a)):
        for n in range(16):
            chains = [Fraction(0), Fraction(0)]
            for k in range(16):
                for odd in (0, 1):
                    product = exact(a[r, 2 * k + odd]) * exact(b[k, 2 * n + odd])
                    chains[odd] = round_to_float32(product + chains[odd])
            out[r, n] = float(round_to_float32(exact(c[r, n]) + round_to_float32(sum(chains))))
    return out


def multiply(number, whole, a, b, c):
    out = np.ascontiguousarray(c).view(np.uint8).copy()
    _cpu.try_tile(number, whole, a.view(np.uint8), b.view(np.uint8), out)
    return out.view(c.dtype)


@pytest.mark.parametrize(("scale", "seed"), [(1.0, 0), (1.0, 1), (2.0**-65, 2), (2.0**-127, 3)])
def test_a_tile_of_bfloat16_has_the_documented_bits(tiles, scale, seed):
    rng = np.random.default_rng(seed)
    # products of similar and of very different size, some flushed, and subnormal operands
    a, b = (
        to_bfloat16((rng.normal(size=(16, 32)) * 4.0 ** rng.integers(-6, 6, (16, 32))).astype(np.float32)) for _ in "ab"
    )
    wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in (a, b)]
    wide[0] = (wide[0] * np.float32(scale)).view(np.float32)
    a = (wide[0].view(np.uint32) >> 16).astype(np.uint16)
    wide[0] = (a.astype(np.uint32) << 16).view(np.float32)
    c = (rng.normal(size=(16, 16)) * scale).astype(np.float32)
    some = [0, 5, 15]  # rows: fractions are slow
    found = multiply(tiles, False, a, b, c)
    want = dot_bf16(wide[0][some], wide[1], c[some])
    assert np.isfinite(found).all()
    assert np.array_equal(found[some], want)
    if scale >= 2.0**-65:
        assert np.count_nonzero(want) > 40
        one_chain = (
            wide[0].astype(np.float64)[:, None, :] * wide[1].reshape(16, 16, 2).swapaxes(0, 1).reshape(16, 32)
        ).sum(2)
        assert np.abs(found - one_chain - c).max() <= 1e-5 * np.abs(one_chain).max()


def test_a_tile_of_bytes_is_exact(tiles):
    rng = np.random.default_rng(4)
    for a_bound, b_bound in ((127, 127), (128, 128), (3, 128)):
        a = rng.integers(-a_bound, a_bound, (16, 64)).astype(np.int8)
        b = rng.integers(-b_bound, b_bound, (64, 16)).astype(np.int8)
        c = rng.integers(-(2**20), 2**20, (16, 16)).astype(np.int32)
        packed = np.ascontiguousarray(b.reshape(16, 4, 16).swapaxes(1, 2)).reshape(16, 64)
        assert np.array_equal(multiply(tiles, True, a, packed, c), c + a.astype(np.int32) @ b.astype(np.int32))


def test_the_processor_and_the_emulation_agree():
    if processor.amx_missing():
        pytest.skip(f"no AMX here: {processor.amx_missing()}")
    rng = np.random.default_rng(5)
    for whole in (False, True):
        for _ in range(200):
            a, b = rng.integers(0, 256, (2, 16, 64)).astype(np.uint8)
            c = rng.normal(size=(16, 16)).astype(np.float32)
            hard, soft = (multiply(_cpu.isas()[name][0], whole, a, b, c) for name in processor.TILES)
            same = (hard.view(np.int32) == soft.view(np.int32)) | (np.isnan(hard) & np.isnan(soft) & (not whole))
            assert same.all()


def encode(monkeypatch, name, form, dtype, work, widths, attention=None):
    """Hidden states with products of ``form`` on one instruction set, None without such products."""
    number, usable, _, _ = _cpu.isas()[name]
    if not usable or form not in _cpu.formats(number):
        return None
    monkeypatch.setitem(cpu_encoder.DTYPES, dtype, (form,))
    if attention is not None:
        monkeypatch.setattr(cpu_encoder, "choose_attention", lambda isa, form: attention)
    encoder = CpuEncoder(*random_encoder(7, 2, *widths), PoolingSpec("mean", (1, 2)), dtype, threads=2, isa=name)
    return encoder.states(*work)


@pytest.mark.parametrize("widths", [(96, 4, 130), (48, 12, 33)])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("neon", INT8_SIGNED), ("neon-mm", INT8_SIGNED)),
        (("avx2", INT8), ("avx2", INT8_SIGNED)),
        (("avx512", INT8), ("amx-emulated", INT8_TILES)),
        (("amx", INT8_TILES), ("amx-emulated", INT8_TILES)),
        (("amx", BF16), ("amx-emulated", BF16)),
    ],
)
def test_two_ways_to_the_same_bits(monkeypatch, one, other, widths):
    dtype = "bfloat16" if one[1] == BF16 else "int8"
    work = pack([1, 17, 64, 130, 33, 2, 16, 97, 100], 3)
    attention = None if one[0] == "amx" else FLOAT  # only the products' bits are equal
    found, want = (encode(monkeypatch, *way, dtype, work, widths, attention) for way in (one, other))
    if found is None or want is None:
        pytest.skip(f"this machine has no {one if found is None else other}")
    for layer in want:
        assert np.isfinite(found[layer]).all()
        assert want[layer].std() > 0.1
        assert np.array_equal(found[layer], want[layer])


def test_products_in_bfloat16_run_beside_attention_in_float32(monkeypatch, isa):  # whose own self-test failed
    work = pack([1, 17, 64, 130], 3)
    found, want = (encode(monkeypatch, isa, BF16, "bfloat16", work, (96, 4, 130), a) for a in (FLOAT, None))
    if want is None:
        pytest.skip(f"{isa} has no bfloat16 products here")
    for layer in want:
        assert np.abs(found[layer] - want[layer]).max() < 0.02 * np.abs(want[layer]).max()


def test_the_emulation_runs_only_by_name(monkeypatch):
    monkeypatch.delenv("FASTFLOW_ISA", raising=False)
    assert "amx-emulated" not in processor.usable_isas()
    assert choose("float32")[0] not in processor.TILES
    for dtype in ("bfloat16", "int8"):
        assert (choose(dtype)[0] == "amx") == (not processor.amx_missing())


def test_the_reason_is_named_if_amx_cannot_run():
    if not processor.amx_missing():
        pytest.skip("this machine has AMX")
    assert not _cpu.isas()["amx"][1]
    said = r"instruction set 'amx' cannot run on this machine \(.*AMX.*\); usable here: .*portable"
    with pytest.raises(ValueError, match=said):
        choose("int8", "amx")
    assert describe("avx512", BF16) == f"avx512 with bfloat16 dot products (not AMX: {processor.amx_missing()})"
    assert describe("avx512", FLOAT) == "avx512"
    if "avx512" in processor.usable_isas():
        assert "AMX" not in describe("avx512", BF16, "avx512")


def test_a_flow_under_amx_is_that_of_avx512():
    number_of("amx-emulated")
    assert processor.isa("amx-emulated") == "avx512"
    assert choose("float32", "amx-emulated") == ("amx-emulated", FLOAT)
