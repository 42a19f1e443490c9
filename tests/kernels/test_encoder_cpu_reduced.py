"""The encoder in bfloat16 and int8: against an emulation in float64."""

import weakref
from pathlib import Path

import numpy as np
import pytest

import fastflow
from fastflow.backends.precision import NORMALISED, UNEVEN
from fastflow.kernels import processor
from fastflow.kernels._cpu import APART, BF16, BF16_WIDE, FLOAT, INT8, attention_formats, formats
from fastflow.kernels.encoder import PLAIN, Outliers, PoolingSpec, reference
from fastflow.kernels.encoder import cpu as cpu_encoder
from fastflow.kernels.encoder.cpu import CpuEncoder, choose, choose_attention, find_outlying, smooth
from fastflow.kernels.stored import quantise

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
