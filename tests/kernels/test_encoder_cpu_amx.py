"""Tiles of AMX and their emulation, and that products of bytes agree to the last bit on all instruction sets."""

from fractions import Fraction

import numpy as np
import pytest

from fastflow.kernels import _cpu
from fastflow.kernels import isa as instructions
from fastflow.kernels._cpu import BF16, FLOAT, INT8, INT8_SIGNED, INT8_TILES
from fastflow.kernels.encoder import cpu as cpu_encoder
from fastflow.kernels.encoder.cpu import CpuEncoder, choose, described
from fastflow.kernels.panels import to_bfloat16

from support.heads import LENGTHS, LONG, one_head, random_head, table
from support.packed import pack, random_encoder


@pytest.fixture(params=instructions.TILES)
def tiles(request):
    """Number of each instruction set with tiles; those this machine lacks are reported as not run."""
    number, usable, _, _ = _cpu.isas()[request.param]
    if not usable:
        pytest.skip(f"this machine has no {request.param}")
    return number


def nearest(value):
    """A Fraction as the nearest float32, ties to even, subnormals flushed: itself a Fraction."""
    if value == 0:
        return value
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    step = Fraction(2) ** (exponent - 23)
    rounded = round(value / step) * step
    return rounded if abs(rounded) >= Fraction(2) ** -126 else Fraction(0)


def dot_bf16(a, b, c):
    """c + (even + odd), each a chain of fused multiply-adds from zero; a (R, 32), b (16, 32) bfloat16, c (R, 16)."""

    def exact(x):
        return Fraction(float(x)) if abs(x) >= 2.0**-126 else Fraction(0)

    out = np.empty((len(a), 16), np.float32)
    for r in range(len(a)):
        for n in range(16):
            chains = [Fraction(0), Fraction(0)]
            for k in range(16):
                for odd in (0, 1):
                    product = exact(a[r, 2 * k + odd]) * exact(b[k, 2 * n + odd])
                    chains[odd] = nearest(product + chains[odd])
            out[r, n] = float(nearest(exact(c[r, n]) + nearest(sum(chains))))
    return out


def multiply(number, whole, a, b, c):
    out = np.ascontiguousarray(c).view(np.uint8).copy()
    _cpu.try_tile(number, whole, a.view(np.uint8), b.view(np.uint8), out)
    return out.view(c.dtype)


@pytest.mark.parametrize(("scale", "seed"), [(1.0, 0), (1.0, 1), (2.0**-65, 2), (2.0**-127, 3)])
def test_a_tile_of_bfloat16_has_the_documented_bits(tiles, scale, seed):
    rng = np.random.default_rng(seed)
    # products of like and of wildly different size, down to those that are flushed; and operands that are subnormal
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
    if instructions.amx_missing():
        pytest.skip(f"no AMX here: {instructions.amx_missing()}")
    rng = np.random.default_rng(5)
    for whole in (False, True):
        for _ in range(200):
            a, b = rng.integers(0, 256, (2, 16, 64)).astype(np.uint8)
            c = rng.normal(size=(16, 16)).astype(np.float32)
            hard, soft = (multiply(_cpu.isas()[name][0], whole, a, b, c) for name in instructions.TILES)
            same = (hard.view(np.int32) == soft.view(np.int32)) | (np.isnan(hard) & np.isnan(soft) & (not whole))
            assert same.all()


def encode(monkeypatch, name, form, dtype, work, widths, attention=None):
    """Hidden states with products of one format on one instruction set, ``attention`` its own or in a format by name;
    None if there are no such products."""
    number, usable, _, _ = _cpu.isas()[name]
    if not usable or form not in _cpu.formats(number):
        return None
    monkeypatch.setitem(cpu_encoder.DTYPES, dtype, (form,))
    if attention is not None:
        monkeypatch.setattr(cpu_encoder, "attends", lambda isa, form: attention)
    encoder = CpuEncoder(*random_encoder(7, 2, *widths), "mean", (1, 2), dtype, threads=2, isa=name)
    return encoder.states(*work)


@pytest.mark.parametrize("widths", [(96, 4, 130), (256, 4, 1024), (48, 12, 33)])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("avx2", INT8), ("avx2", INT8_SIGNED)),
        (("avx512", INT8), ("amx-emulated", INT8_TILES)),
        (("amx", INT8_TILES), ("amx-emulated", INT8_TILES)),
        (("amx", BF16), ("amx-emulated", BF16)),
    ],
)
def test_two_ways_to_the_same_bits(monkeypatch, one, other, widths):
    dtype = "bfloat16" if one[1] == BF16 else "int8"
    work = pack([1, 17, 64, 130, 33, 2, 16, 97, 100], 3)
    attention = None if one[0] == "amx" else FLOAT  # products are the same here; attention is of other instructions
    found, want = (encode(monkeypatch, *way, dtype, work, widths, attention) for way in (one, other))
    if found is None or want is None:
        pytest.skip(f"this machine has no {one if found is None else other}")
    for layer in want:
        assert np.isfinite(found[layer]).all()
        assert want[layer].std() > 0.1
        assert np.array_equal(found[layer], want[layer])


def test_the_emulation_runs_only_by_name(monkeypatch):
    monkeypatch.delenv("FASTFLOW_ISA", raising=False)
    assert "amx-emulated" not in instructions.usable_isas()
    assert choose("float32")[0] not in instructions.TILES
    for dtype in ("bfloat16", "int8"):
        assert (choose(dtype)[0] == "amx") == (not instructions.amx_missing())


def test_what_is_said_where_amx_cannot_run():
    if not instructions.amx_missing():
        pytest.skip("this machine has AMX")
    assert not _cpu.isas()["amx"][1]
    said = r"instruction set 'amx' cannot run on this machine \(.*AMX.*\); usable here: .*portable"
    with pytest.raises(ValueError, match=said):
        choose("int8", "amx")
    assert described("avx512", BF16) == f"avx512 with bfloat16 dot products (not AMX: {instructions.amx_missing()})"
    assert described("avx512", FLOAT) == "avx512"
    if "avx512" in instructions.usable_isas():
        assert "AMX" not in described("avx512", BF16, "avx512")


def test_a_flow_under_amx_is_that_of_avx512():
    if not _cpu.isas()["amx-emulated"][1]:
        pytest.skip("this machine has no amx-emulated")
    assert instructions.isa("amx-emulated") == "avx512"
    assert choose("float32", "amx-emulated") == ("amx-emulated", FLOAT)


def test_a_tile_checks_what_it_is_given():
    tile, short = np.zeros((16, 64), np.uint8), np.zeros((16, 63), np.uint8)
    number, usable, _, _ = _cpu.isas()["amx-emulated"]
    for wrong in (0, _cpu.isas()["avx512"][0], 99, -1):
        with pytest.raises(ValueError, match=f"instruction set {wrong} has no tiles"):
            _cpu.try_tile(wrong, True, tile, tile, tile)
    if usable:
        with pytest.raises(ValueError, match="a tile has 16 rows of 64 bytes"):
            _cpu.try_tile(number, True, tile, short, tile)


@pytest.mark.parametrize("window", [None, 0, 31, 300])
@pytest.mark.parametrize("reach", [None, 40])
def test_attention_of_the_processor_and_of_the_emulation_agree(window, reach):
    if instructions.amx_missing():
        pytest.skip(f"no AMX here: {instructions.amx_missing()}")
    bias = None if reach is None else table(reach)
    for tokens in (*LENGTHS, *LONG):
        for half in (False, True):
            qkv = random_head(tokens, 40, tokens)
            hard, soft = (one_head(name, qkv, window, bias, BF16, half) for name in instructions.TILES)
            assert np.array_equal(hard, soft)
