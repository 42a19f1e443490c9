"""The encoder in bfloat16 and int8: its arithmetic against an emulation in float64, and its quality against float32."""

import weakref
from pathlib import Path

import numpy as np
import pytest

import fastflow
from fastflow.backends.precision import NORMALISED, UNEVEN
from fastflow.kernels import isa as instructions
from fastflow.kernels._cpu import APART, BF16, BF16_WIDE, FLOAT, INT8, attention_formats, formats
from fastflow.kernels.encoder import cpu as cpu_encoder
from fastflow.kernels.encoder import reference
from fastflow.kernels.encoder.cpu import CpuEncoder, attends, choose, outlying, smoothed
from fastflow.kernels.panels import quantised

from support.encoders import emulated, same
from support.in_bytes import EMULATED
from support.packed import coarse, pack, random_encoder, random_modernbert, random_mpnet, rounded
from support.tolerances import COSINE, FUSED_FACTOR

REDUCED = ("bfloat16", "int8")
TEXTS = pack([17, 1, 64, 33, 2, 16], seed=5)


def attended(dtype, isa):
    """The format of attention that an encoder of ``dtype`` has on ``isa``."""
    name, form = choose(dtype, isa)
    return attends(instructions.isas()[name][0], form)


def cost(made, texts, dtype, isa):
    """The last state in float64, as it is and by the products and the attention of ``dtype`` on ``isa``."""
    wide = choose(dtype, isa)[1] == BF16_WIDE
    functions = {"bfloat16": (rounded, same if wide else rounded), "int8": (coarse, coarse)}[dtype]
    return emulated(made, texts, same, same), emulated(made, texts, *functions, EMULATED[attended(dtype, isa)])


@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize("widths", [(64, 4, 97), (256, 4, 1024), (48, 12, 33), (16, 1, 1)], ids=str)
def test_products_are_those_of_the_format(monkeypatch, isa, dtype, widths):
    made = random_encoder(3, 1, *widths, half=True)
    for order in (1, -1):  # another processor prefers another format
        monkeypatch.setattr(cpu_encoder, "formats", lambda number, order=order: formats(number)[::order])
        form, of = choose(dtype, isa)[1], attended(dtype, isa)
        found = CpuEncoder(*made, "mean", (1,), dtype, threads=2, isa=isa).states(*TEXTS)[1]
        full, want = cost(made, TEXTS, dtype, isa)
        assert np.isfinite(found).all()
        lost = np.abs(want - full).mean()  # what the format costs: far more than float32 rounding
        assert lost > 1e-4
        ties = form == BF16 or of != FLOAT
        near = 0.3 if ties else 0.01  # a sum near a tie may be rounded the other way as an operand
        assert np.abs(found - want).mean() <= near * lost
        assert np.abs(found - want).max() <= (8 if of == INT8 else 5) * lost


@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize("made", [random_mpnet, random_modernbert])
@pytest.mark.parametrize("widths", [(64, 4, 97), (256, 4, 500), (48, 12, 33)], ids=str)
def test_products_of_other_architectures(isa, made, dtype, widths):
    coarser = attended(dtype, isa) != FLOAT
    layers = 1 if coarser else 2  # so many numbers of attention are near a tie that a second layer's are others
    made = made(3, layers, *widths, half=True)
    found = CpuEncoder(*made, "mean", (layers,), dtype, threads=2, isa=isa).states(*TEXTS)[layers]
    full, want = cost(made, TEXTS, dtype, isa)
    assert np.isfinite(found).all()
    lost = np.abs(want - full)
    assert lost.mean() > 1e-4
    assert np.abs(found - full).max() <= FUSED_FACTOR * lost.max()
    near = 0.3 if coarser else 0.5  # a sum near a tie may be rounded the other way; attention in float32 gives 0.58
    assert np.abs(found - want).mean() <= near * lost.mean()


def test_both_formats_of_bfloat16_are_reached(monkeypatch):
    if "avx512" not in instructions.usable_isas():
        pytest.skip("this processor has no AVX-512")
    found = {choose("bfloat16", "avx512")[1]}
    monkeypatch.setattr(cpu_encoder, "formats", lambda number: formats(number)[::-1])
    found.add(choose("bfloat16", "avx512")[1])
    assert found == {BF16, BF16_WIDE} & set(formats(instructions.isas()["avx512"][0]))


def watched(made, names, of):
    """``of`` each operand by name, in the reference in float32, of the products whose names end with ``names``."""
    weights, shape = made
    found = {}

    def watch(name, operand):
        if name.endswith(names):
            found[name] = of(name, operand)

    reference.encode(weights, *TEXTS, shape, (2,), np.dtype(np.float32), watch)
    return found


def uneven(widths, by=60):
    """An encoder one of whose columns is large after every LayerNorm, and what ``smoothed`` makes of its operands."""
    weights, shape = random_encoder(3, 2, *widths, half=True)
    for name in weights:
        if name.endswith(("embed_norm.scale", "norm1.scale", "norm2.scale")):
            weights[name] = weights[name].copy()
            weights[name][5] *= by
    largest = watched((weights, shape), NORMALISED, lambda name, operand: np.abs(operand).max(axis=0))
    return (weights, shape), smoothed(largest)


def int8_of(made, isa=None, **settings):
    return CpuEncoder(*made, "mean", (2,), "int8", threads=2, isa=isa, **settings).states(*TEXTS)[2]


def distance(one, other):
    return np.abs(one - other).mean()


@pytest.mark.parametrize("widths", [(64, 4, 97), (48, 12, 33)], ids=str)
def test_smoothed_products_are_those_of_smoothed_operands(isa, widths):
    made, smoothing = uneven(widths)
    assert set(smoothing) == {f"layer.{i}.{name}" for i in (0, 1) for name in ("qkv", "up")}
    assert all(by[5] >= 4 and np.array_equal(np.exp2(np.log2(by)), by) for by in smoothing.values())
    found, rough = int8_of(made, isa, smoothing=smoothing), int8_of(made, isa)
    want = emulated(made, TEXTS, coarse, coarse, EMULATED[attended("int8", isa)], smoothing)
    full = emulated(made, TEXTS, same, same)
    assert distance(found, want) <= 0.5 * distance(want, full)
    assert distance(found, full) <= 0.8 * distance(rough, full)


def spiked(widths, count):
    """``uneven``, and in every layer ``count`` columns of ``down`` that are large in the operand and in the weights."""
    (weights, shape), smoothing = uneven(widths, by=4)
    columns = slice(3, 3 + count)
    for i in range(shape.layers):
        for name in ("up.bias", "down.weight", "down.bias"):
            weights[f"layer.{i}.{name}"] = weights[f"layer.{i}.{name}"].copy()
        weights[f"layer.{i}.up.bias"][columns] += 100
        weights[f"layer.{i}.down.weight"][:, columns] *= 10
        weights[f"layer.{i}.down.bias"] -= 100 * weights[f"layer.{i}.down.weight"][:, columns].sum(axis=1)

    def terms(name, operand):
        return np.abs(operand).max(axis=0) * np.abs(weights[f"{name}.weight"]).max(axis=0)

    return (weights, shape), smoothing, outlying(watched((weights, shape), UNEVEN, terms))


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize(("widths", "count"), [((64, 4, 97), 1), ((48, 12, 33), APART)], ids=str)
def test_columns_apart_are_multiplied_in_float32(isa, widths, count, smooth):
    made, smoothing, apart = spiked(widths, count)
    smoothing = smoothing if smooth else {}
    assert set(apart) == {f"layer.{i}.{name}" for i in (0, 1) for name in ("qkv", "up", "down")}
    assert all(set(range(3, 3 + count)) <= set(apart[f"layer.{i}.down"]) for i in (0, 1))
    assert all(np.array_equal(columns, np.unique(columns)) and len(columns) == APART for columns in apart.values())
    found, rough = (int8_of(made, isa, smoothing=smoothing, apart=columns) for columns in (apart, {}))
    want = emulated(made, TEXTS, coarse, coarse, EMULATED[attended("int8", isa)], smoothing, apart)
    full = emulated(made, TEXTS, same, same)
    assert distance(found, want) <= 0.5 * distance(want, full)
    assert distance(found, full) <= 0.2 * distance(rough, full)


def test_columns_apart_may_be_few_and_of_one_product(isa):
    made, smoothing, apart = spiked((64, 4, 97), 2)
    full = emulated(made, TEXTS, same, same)
    few = {name: np.array([3, 4], np.int32) for name in apart if name.endswith("down")}
    none, some = (distance(int8_of(made, isa, smoothing=smoothing, apart=of), full) for of in ({}, few))
    assert some <= 0.5 * none


@pytest.mark.parametrize("form", ["whole", "parts", "half"])
def test_columns_apart_of_weights_in_any_form(form):
    (weights, shape), smoothing, apart = spiked((64, 4, 97), 1)
    for name in (f"{name}.weight" for name in apart):
        weights[name] = weights[name].astype(np.float16).astype(np.float32)
    stored = dict(weights)
    for name in (f"{name}.weight" for name in apart):
        if form == "half":
            stored[name] = weights[name].astype(np.float16)
        elif form == "parts" and ".qkv." in name:
            stored[name] = tuple(np.split(weights[name], 3))
    found, want = (int8_of((w, shape), smoothing=smoothing, apart=apart) for w in (stored, weights))
    assert np.array_equal(found, want)


def test_packed_formats_round_to_nearest():
    values = np.array([[1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20, 0.0, 3.3895314e38, 1e-40]], np.float32)
    assert rounded(values).tolist() == [
        [1.0, 1.0, 1 + 2**-6, -1 - 2**-7, 0.0, 3.3895313892515355e38, rounded(values)[0, 6]]
    ]
    whole, scale = quantised(np.array([[127.0, -63.4, 63.6, 0.4], [0, 0, 0, 0]], np.float32))
    assert whole.tolist() == [[127, -63, 64, 0], [0, 0, 0, 0]]
    assert scale.tolist() == [1.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", REDUCED)
def test_the_default_model_keeps_its_directions(forced_isa, dtype, sentences):
    plain, runtime = (fastflow.Runtime(backend="cpu", dtype=d, threads=2) for d in ("float32", dtype))
    assert runtime.info()["dtype"] == dtype
    assert forced_isa in " ".join(runtime.info()["details"])
    want, found = (rt.encode(sentences[:64], normalize_embeddings=True) for rt in (plain, runtime))
    cosines = (want * found).sum(axis=1)
    assert np.isfinite(found).all()
    assert COSINE[dtype] <= cosines.min() <= 1 - 1e-7  # and it is not float32 under another name


def test_weights_take_half_and_a_quarter_of_the_bytes():
    weights, shape = random_encoder(3, 2, 256, 4, 1024)
    sizes = [CpuEncoder(weights, shape, "mean", (2,), dtype).nbytes for dtype in ("float32", *REDUCED)]
    assert sizes[1] <= 0.52 * sizes[0]
    assert sizes[2] <= 0.28 * sizes[0]


def test_what_runs_is_chosen_by_what_the_machine_has(monkeypatch):
    monkeypatch.delenv("FASTFLOW_ISA", raising=False)
    assert choose("bfloat16", "portable") == ("portable", BF16_WIDE)
    assert choose("bfloat16")[1] in (BF16, BF16_WIDE)
    usable = formats(instructions.isas()["avx512"][0])
    processor = Path("/proc/cpuinfo")
    if BF16 in usable and processor.exists():
        intel = "GenuineIntel" in processor.read_text(encoding="utf-8")  # whose dot products are slower than widening
        assert choose("bfloat16", "avx512") == ("avx512", BF16_WIDE if intel else BF16)
    assert choose("int8")[0] in (*instructions.usable_isas(), *(["amx"] if not instructions.amx_missing() else []))
    with pytest.raises(ValueError, match="dtype 'int4' does not run here; usable are float32, bfloat16, int8"):
        choose("int4")


def test_attention_is_in_bfloat16_and_bytes_where_the_processor_multiplies_them(isa):
    number = instructions.isas()[isa][0]
    own = BF16 in attention_formats(number)
    assert own == (isa not in ("portable", "avx2") and BF16 in formats(instructions.isas()["avx512"][0]))
    assert attended("float32", isa) == FLOAT
    bytewise = INT8 in attention_formats(number)
    assert bytewise == (isa == "avx512" and INT8 in formats(instructions.isas()["avx512"][0]))
    assert attended("bfloat16", isa) == (BF16 if own and choose("bfloat16", isa)[1] == BF16 else FLOAT)
    assert attended("int8", isa) == (INT8 if bytewise else BF16 if own else FLOAT)
    assert attends(number, BF16_WIDE) == FLOAT  # whose operands are float32 everywhere


def test_packing_lets_go_of_the_unpacked_weights():
    weights, shape = random_encoder(3, 2, 64, 4, 128)
    watched = weakref.ref(weights["layer.0.up.weight"])
    encoder = CpuEncoder(weights, shape, "mean", (2,), "int8")
    del weights
    assert watched() is None
    assert np.isfinite(encoder(*pack([3, 40], 0))).all()


def test_a_word_beyond_half_precision_stays_what_it_is():
    weights, shape = random_encoder(3, 1, 64, 4, 128)
    weights["word"][7, 3] = 1e6
    ids, offsets = np.array([7, 7, 9], np.int32), np.array([0, 3])
    exact, found = (CpuEncoder(weights, shape, "mean", (0,), dtype)(ids, offsets) for dtype in ("float32", "bfloat16"))
    assert np.array_equal(exact, found)
