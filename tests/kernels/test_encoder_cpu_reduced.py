"""The encoder in bfloat16 and int8: against an emulation in float64, and tiles of AMX against their emulation."""

import weakref
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import fastflow
from fastflow.backends.precision import NORMALISED, UNEVEN
from fastflow.kernels import _cpu, processor
from fastflow.kernels._cpu import (
    APART,
    BF16,
    BF16_WIDE,
    FLOAT,
    INT8,
    INT8_SIGNED,
    INT8_TILES,
    attention_formats,
    formats,
)
from fastflow.kernels.encoder import PLAIN, Outliers, PoolingSpec, reference
from fastflow.kernels.encoder import cpu as cpu_encoder
from fastflow.kernels.encoder.cpu import CpuEncoder, choose, choose_attention, describe, find_outlying, smooth
from fastflow.kernels.stored import quantise, to_bfloat16

from support.encoders import emulated, same
from support.in_bytes import EMULATED
from support.packed import coarse, pack, random_encoder, random_modernbert, random_mpnet, rounded
from support.tolerances import FUSED_FACTOR, UNIT

REDUCED = ("bfloat16", "int8")
TEXTS = pack([17, 1, 64, 33, 2, 16], seed=5)


def attention_of(dtype, isa):
    name, form = choose(dtype, isa)
    return choose_attention(processor.isas()[name][0], form)


def cost(made, texts, dtype, isa):
    """The last state in float64: exact, and with the products and attention of ``dtype`` on ``isa``."""
    wide = choose(dtype, isa)[1] == BF16_WIDE
    functions = {"bfloat16": (rounded, same if wide else rounded), "int8": (coarse, coarse)}[dtype]
    return emulated(made, texts, same, same), emulated(made, texts, *functions, EMULATED[attention_of(dtype, isa)])


@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize("widths", [(64, 4, 97), (256, 4, 1024), (48, 12, 33), (16, 1, 1)], ids=str)
def test_products_are_those_of_the_format(monkeypatch, isa, dtype, widths):
    made, forms = random_encoder(3, 1, *widths, half=True), set()
    for order in (1, -1):  # another processor prefers another format
        monkeypatch.setattr(cpu_encoder, "formats", lambda number, order=order: formats(number)[::order])
        form, of = choose(dtype, isa)[1], attention_of(dtype, isa)
        forms.add(form)
        found = CpuEncoder(*made, PoolingSpec("mean", (1,)), dtype, threads=2, isa=isa).states(*TEXTS)[1]
        full, want = cost(made, TEXTS, dtype, isa)
        assert np.isfinite(found).all()
        lost = np.abs(want - full).mean()  # what the format costs: far more than float32 rounding
        assert lost > 1e-4
        ties = form == BF16 or of != FLOAT
        near = 0.3 if ties else 0.02  # a sum near a tie may be rounded the other way as an operand; a shorter GELU
        assert np.abs(found - want).mean() <= near * lost
        assert np.abs(found - want).max() <= (8 if of == INT8 else 5) * lost
    assert forms == set(cpu_encoder.DTYPES[dtype]) & set(formats(processor.isas()[isa][0]))


@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize("made", [random_mpnet, random_modernbert])
@pytest.mark.parametrize("widths", [(64, 4, 97), (48, 12, 33)], ids=str)
def test_products_of_other_architectures(isa, made, dtype, widths):
    coarser = attention_of(dtype, isa) != FLOAT
    layers = 1 if coarser else 2  # so many numbers of attention are near a tie that a second layer's are others
    made = made(3, layers, *widths, half=True)
    found = CpuEncoder(*made, PoolingSpec("mean", (layers,)), dtype, threads=2, isa=isa).states(*TEXTS)[layers]
    full, want = cost(made, TEXTS, dtype, isa)
    assert np.isfinite(found).all()
    lost = np.abs(want - full)
    assert lost.mean() > 1e-4
    assert np.abs(found - full).max() <= FUSED_FACTOR * lost.max()
    near = 0.3 if coarser else 0.5  # a sum near a tie may be rounded the other way; attention in float32 gives 0.58
    assert np.abs(found - want).mean() <= near * lost.mean()


def watch_operands(made, names, of):
    """Return {product: ``of(name, operand)``} of the reference, for the products that end with ``names``."""
    weights, shape = made
    found = {}

    def watch(name, operand):
        if name.endswith(names):
            found[name] = of(name, operand)

    reference.encode(weights, *TEXTS, shape, (2,), np.dtype(np.float32), watch)
    return found


def make_uneven(widths, by=60):
    """An encoder with one large column after every LayerNorm, and its factors by ``smooth``."""
    weights, shape = random_encoder(3, 2, *widths, half=True)
    for name in weights:
        if name.endswith(("embed_norm.scale", "norm1.scale", "norm2.scale")):
            weights[name] = weights[name].copy()
            weights[name][5] *= by
    largest = watch_operands((weights, shape), NORMALISED, lambda name, operand: np.abs(operand).max(axis=0))
    return (weights, shape), smooth(largest)


def int8_of(made, isa=None, outliers=PLAIN):
    encoder = CpuEncoder(*made, PoolingSpec("mean", (2,)), "int8", threads=2, isa=isa, outliers=outliers)
    return encoder.states(*TEXTS)[2]


def distance(one, other):
    return np.abs(one - other).mean()


@pytest.mark.parametrize("widths", [(64, 4, 97), (48, 12, 33)], ids=str)
def test_smoothed_products_are_those_of_smoothed_operands(isa, widths):
    made, smoothing = make_uneven(widths)
    assert set(smoothing) == {f"layer.{i}.{name}" for i in (0, 1) for name in ("qkv", "up")}
    assert all(by[5] >= 4 and np.array_equal(np.exp2(np.log2(by)), by) for by in smoothing.values())
    found, rough = int8_of(made, isa, Outliers(smoothing)), int8_of(made, isa)
    want = emulated(made, TEXTS, coarse, coarse, EMULATED[attention_of("int8", isa)], smoothing)
    full = emulated(made, TEXTS, same, same)
    assert distance(found, want) <= 0.5 * distance(want, full)
    assert distance(found, full) <= 0.8 * distance(rough, full)


def make_spiked(widths, count):
    """``make_uneven``, and in every layer ``count`` columns of ``down`` with large operands and large weights."""
    (weights, shape), smoothing = make_uneven(widths, by=4)
    columns = slice(3, 3 + count)
    for i in range(shape.layers):
        for name in ("up.bias", "down.weight", "down.bias"):
            weights[f"layer.{i}.{name}"] = weights[f"layer.{i}.{name}"].copy()
        weights[f"layer.{i}.up.bias"][columns] += 100
        weights[f"layer.{i}.down.weight"][:, columns] *= 10
        weights[f"layer.{i}.down.bias"] -= 100 * weights[f"layer.{i}.down.weight"][:, columns].sum(axis=1)

    def terms(name, operand):
        return np.abs(operand).max(axis=0) * np.abs(weights[f"{name}.weight"]).max(axis=0)

    return (weights, shape), smoothing, find_outlying(watch_operands((weights, shape), UNEVEN, terms))


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize(("widths", "count"), [((64, 4, 97), 1), ((48, 12, 33), APART)], ids=str)
def test_columns_apart_are_multiplied_in_float32(isa, widths, count, smooth):
    made, smoothing, apart = make_spiked(widths, count)
    smoothing = smoothing if smooth else {}
    assert set(apart) == {f"layer.{i}.{name}" for i in (0, 1) for name in ("qkv", "up", "down")}
    assert all(set(range(3, 3 + count)) <= set(apart[f"layer.{i}.down"]) for i in (0, 1))
    assert all(np.array_equal(columns, np.unique(columns)) and len(columns) == APART for columns in apart.values())
    found, rough = (int8_of(made, isa, Outliers(smoothing, columns)) for columns in (apart, {}))
    want = emulated(made, TEXTS, coarse, coarse, EMULATED[attention_of("int8", isa)], smoothing, apart)
    full = emulated(made, TEXTS, same, same)
    assert distance(found, want) <= 0.5 * distance(want, full)
    assert distance(found, full) <= 0.2 * distance(rough, full)


@pytest.mark.parametrize("form", ["whole", "parts", "half"])
def test_columns_apart_of_weights_in_any_form(form):
    (weights, shape), smoothing, apart = make_spiked((64, 4, 97), 1)
    for name in (f"{name}.weight" for name in apart):
        weights[name] = weights[name].astype(np.float16).astype(np.float32)
    stored = dict(weights)
    for name in (f"{name}.weight" for name in apart):
        if form == "half":
            stored[name] = weights[name].astype(np.float16)
        elif form == "parts" and ".qkv." in name:
            stored[name] = tuple(np.split(weights[name], 3))
    found, want = (int8_of((w, shape), None, Outliers(smoothing, apart)) for w in (stored, weights))
    assert np.array_equal(found, want)


def test_packed_formats_round_to_nearest():
    values = np.array([[1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20, 0.0, 3.3895314e38, 1e-40]], np.float32)
    assert rounded(values).tolist() == [
        [1.0, 1.0, 1 + 2**-6, -1 - 2**-7, 0.0, 3.3895313892515355e38, rounded(values)[0, 6]]
    ]
    whole, scale = quantise(np.array([[127.0, -63.4, 63.6, 0.4], [0, 0, 0, 0]], np.float32))
    assert whole.tolist() == [[127, -63, 64, 0], [0, 0, 0, 0]]
    assert scale.tolist() == [1.0, 0.0]


@pytest.fixture(scope="module")
def exactly(sentences):
    exact = fastflow.Runtime("untuned", backend="reference", dtype="float64")
    return exact.encode([*sentences[:64], ""], normalize_embeddings=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", *REDUCED])
def test_the_model_without_layers_is_exact_to_float32(forced_isa, dtype, sentences, exactly):
    """In every dtype, because it has no layers."""
    runtime = fastflow.Runtime("untuned", backend="cpu", dtype=dtype, threads=2)
    assert runtime.info()["dtype"] == dtype
    assert forced_isa in " ".join(runtime.info()["details"])
    found = runtime.encode([*sentences[:64], ""], normalize_embeddings=True)
    assert np.isfinite(found).all()
    assert np.abs(found - exactly).max() <= UNIT


def test_weights_take_half_and_a_quarter_of_the_bytes():
    weights, shape = random_encoder(3, 2, 256, 4, 1024)
    sizes = [CpuEncoder(weights, shape, PoolingSpec("mean", (2,)), dtype).nbytes for dtype in ("float32", *REDUCED)]
    assert sizes[1] <= 0.52 * sizes[0]
    assert sizes[2] <= 0.28 * sizes[0]


def test_what_runs_is_chosen_by_what_the_machine_has(monkeypatch):
    monkeypatch.delenv("FASTFLOW_ISA", raising=False)
    assert choose("bfloat16", "portable") == ("portable", BF16_WIDE)
    assert choose("bfloat16")[1] in (BF16, BF16_WIDE)
    usable = formats(processor.isas()["avx512"][0])
    cpuinfo = Path("/proc/cpuinfo")
    if BF16 in usable and cpuinfo.exists():
        intel = "GenuineIntel" in cpuinfo.read_text(encoding="utf-8")  # whose dot products are slower than widening
        assert choose("bfloat16", "avx512") == ("avx512", BF16_WIDE if intel else BF16)
    assert choose("int8")[0] in (*processor.usable_isas(), *(["amx"] if not processor.amx_missing() else []))
    with pytest.raises(ValueError, match="dtype 'int4' does not run here; usable are float32, bfloat16, int8"):
        choose("int4")


def test_attention_is_in_bfloat16_and_bytes_if_the_processor_multiplies_them(isa):
    number = processor.isas()[isa][0]
    own = BF16 in attention_formats(number)
    assert own == (isa in ("avx512", "amx", "amx-emulated") and BF16 in formats(processor.isas()["avx512"][0]))
    assert attention_of("float32", isa) == FLOAT
    bytewise = INT8 in attention_formats(number)
    assert bytewise == (isa == "avx512" and INT8 in formats(processor.isas()["avx512"][0]))
    assert attention_of("bfloat16", isa) == (BF16 if own and choose("bfloat16", isa)[1] == BF16 else FLOAT)
    assert attention_of("int8", isa) == (INT8 if bytewise else BF16 if own else FLOAT)
    assert choose_attention(number, BF16_WIDE) == FLOAT  # whose operands are float32 everywhere


def test_packing_lets_go_of_the_unpacked_weights():
    weights, shape = random_encoder(3, 2, 64, 4, 128)
    kept = weakref.ref(weights["layer.0.up.weight"])
    encoder = CpuEncoder(weights, shape, PoolingSpec("mean", (2,)), "int8")
    del weights
    assert kept() is None
    assert np.isfinite(encoder(*pack([3, 40], 0))).all()


def test_a_word_beyond_half_precision_stays_what_it_is():
    weights, shape = random_encoder(3, 1, 64, 4, 128)
    weights["word"][7, 3] = 1e6
    ids, offsets = np.array([7, 7, 9], np.int32), np.array([0, 3])
    exact, found = (
        CpuEncoder(weights, shape, PoolingSpec("mean", (0,)), dtype)(ids, offsets) for dtype in ("float32", "bfloat16")
    )
    assert np.array_equal(exact, found)


def emulated_number():
    number, usable, _, _ = _cpu.isas()["amx-emulated"]
    if not usable:
        pytest.skip("this machine has no amx-emulated")
    return number


@pytest.fixture(params=processor.TILES)
def tiles(request):
    """The number of each instruction set with tiles."""
    number, usable, _, _ = _cpu.isas()[request.param]
    if not usable:
        pytest.skip(f"this machine has no {request.param}")
    return number


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
    emulated_number()
    assert processor.isa("amx-emulated") == "avx512"
    assert choose("float32", "amx-emulated") == ("amx-emulated", FLOAT)
