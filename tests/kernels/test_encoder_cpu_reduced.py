"""The encoder in bfloat16 and int8: its arithmetic against an emulation in float64, and its quality against float32."""

from __future__ import annotations

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

from support.in_bytes import EMULATED
from support.packed import coarse, pack, random_encoder, rounded
from support.tolerances import COSINE

REDUCED = ("bfloat16", "int8")


def emulated(
    weights, shape, ids, offsets, weight, operand, attention=reference.attention, smoothing=None,
    apart=None,
):  # fmt: skip
    """Hidden states of the last layer in float64, with the layers' products, and attention, in a lower precision.

    The products of the columns ``apart`` are exact.
    """
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = reference.embed_tokens(w, ids, offsets, shape, np.dtype(np.float64))
    for i in range(shape.layers):

        def linear(x, name, prefix=f"layer.{i}."):
            by, matrix = (smoothing or {}).get(prefix + name, 1), w[f"{prefix}{name}.weight"]
            exact = np.isin(np.arange(x.shape[1]), (apart or {}).get(prefix + name, []))
            rest = operand(np.where(exact, 0, x / by)) @ weight(np.where(exact, 0, matrix * by)).T
            return rest + x[:, exact] @ matrix[:, exact].T + w[f"{prefix}{name}.bias"]

        def norm(x, name, prefix=f"layer.{i}."):
            return reference.layer_norm(x, w[f"{prefix}{name}.scale"], w[f"{prefix}{name}.bias"], shape.eps)

        x = norm(x + linear(attention(linear(x, "qkv"), offsets, shape.heads), "out"), "norm1")
        x = norm(x + linear(reference.activate(linear(x, "up"), shape.activation), "down"), "norm2")
    return x


def attended(dtype, isa):
    """The format of attention that an encoder of ``dtype`` has on ``isa``."""
    name, form = choose(dtype, isa)
    return attends(instructions.isas()[name][0], form)


@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize(("hidden", "heads", "intermediate"), [(64, 4, 97), (256, 4, 1024), (48, 12, 33), (16, 1, 1)])
def test_products_are_those_of_the_format(monkeypatch, isa, dtype, hidden, heads, intermediate):
    weights, shape = random_encoder(3, 1, hidden, heads, intermediate, half=True)
    ids, offsets = pack([17, 1, 64, 33, 2, 16], seed=5)
    full = emulated(weights, shape, ids, offsets, lambda x: x, lambda x: x)
    for order in (1, -1):  # another processor prefers another format
        monkeypatch.setattr(cpu_encoder, "formats", lambda number, order=order: formats(number)[::order])
        form, of = choose(dtype, isa)[1], attended(dtype, isa)
        found = CpuEncoder(weights, shape, "mean", (1,), dtype, threads=2, isa=isa).states(ids, offsets)[1]
        functions = {"bfloat16": (rounded, (lambda x: x) if form == BF16_WIDE else rounded), "int8": (coarse, coarse)}
        want = emulated(weights, shape, ids, offsets, *functions[dtype], EMULATED[of])
        assert np.isfinite(found).all()
        lost = np.abs(want - full).mean()  # what the format costs: far more than float32 rounding
        assert lost > 1e-4
        ties = form == BF16 or of != FLOAT
        near = 0.3 if ties else 0.01  # a sum near a tie may be rounded the other way as an operand
        assert np.abs(found - want).mean() <= near * lost
        assert np.abs(found - want).max() <= (8 if of == INT8 else 5) * lost


def test_both_formats_of_bfloat16_are_reached(monkeypatch):
    if "avx512" not in instructions.usable_isas():
        pytest.skip("this processor has no AVX-512")
    found = {choose("bfloat16", "avx512")[1]}
    monkeypatch.setattr(cpu_encoder, "formats", lambda number: formats(number)[::-1])
    found.add(choose("bfloat16", "avx512")[1])
    assert found == {BF16, BF16_WIDE} & set(formats(instructions.isas()["avx512"][0]))


def uneven(hidden, heads, intermediate, by=60):
    """An encoder one of whose columns is large after every LayerNorm, texts, and what ``smoothed`` makes of them."""
    weights, shape = random_encoder(3, 2, hidden, heads, intermediate, half=True)
    for name in weights:
        if name.endswith(("embed_norm.scale", "norm1.scale", "norm2.scale")):
            weights[name] = weights[name].copy()
            weights[name][5] *= by
    ids, offsets = pack([17, 1, 64, 33, 2, 16], seed=5)
    largest = {}

    def watch(name, operand):
        if name.endswith(NORMALISED):
            largest[name] = np.abs(operand).max(axis=0)

    reference.encode(weights, ids, offsets, shape, (2,), np.dtype(np.float32), watch)
    return weights, shape, ids, offsets, smoothed(largest)


@pytest.mark.parametrize(("hidden", "heads", "intermediate"), [(64, 4, 97), (48, 12, 33)])
def test_smoothed_products_are_those_of_smoothed_operands(isa, hidden, heads, intermediate):
    weights, shape, ids, offsets, smoothing = uneven(hidden, heads, intermediate)
    assert set(smoothing) == {f"layer.{i}.{name}" for i in (0, 1) for name in ("qkv", "up")}
    assert all(by[5] >= 4 and np.array_equal(np.exp2(np.log2(by)), by) for by in smoothing.values())
    of = attended("int8", isa)
    encoder = CpuEncoder(weights, shape, "mean", (2,), "int8", threads=2, isa=isa, smoothing=smoothing)
    found = encoder.states(ids, offsets)[2]
    rough = CpuEncoder(weights, shape, "mean", (2,), "int8", threads=2, isa=isa).states(ids, offsets)[2]
    want = emulated(weights, shape, ids, offsets, coarse, coarse, EMULATED[of], smoothing)
    full = emulated(weights, shape, ids, offsets, lambda x: x, lambda x: x)
    lost = np.abs(want - full).mean()
    assert np.abs(found - want).mean() <= 0.5 * lost
    assert np.abs(found - full).mean() <= 0.8 * np.abs(rough - full).mean()


def spiked(hidden, heads, intermediate, count):
    """``uneven``, and in every layer ``count`` columns of ``down`` that are large in the operand and in the weights."""
    weights, shape, ids, offsets, smoothing = uneven(hidden, heads, intermediate, by=4)
    for i in range(shape.layers):
        columns = slice(3, 3 + count)
        for name in ("up.bias", "down.weight", "down.bias"):
            weights[f"layer.{i}.{name}"] = weights[f"layer.{i}.{name}"].copy()
        weights[f"layer.{i}.up.bias"][columns] += 100
        weights[f"layer.{i}.down.weight"][:, columns] *= 10
        weights[f"layer.{i}.down.bias"] -= 100 * weights[f"layer.{i}.down.weight"][:, columns].sum(axis=1)
    terms = {}

    def watch(name, operand):
        if name.endswith(UNEVEN):
            terms[name] = np.abs(operand).max(axis=0) * np.abs(weights[f"{name}.weight"]).max(axis=0)

    reference.encode(weights, ids, offsets, shape, (2,), np.dtype(np.float32), watch)
    return weights, shape, ids, offsets, smoothing, outlying(terms)


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize(("hidden", "heads", "intermediate", "count"), [(64, 4, 97, 1), (48, 12, 33, APART)])
def test_columns_apart_are_multiplied_in_float32(isa, hidden, heads, intermediate, count, smooth):
    weights, shape, ids, offsets, smoothing, apart = spiked(hidden, heads, intermediate, count)
    smoothing = smoothing if smooth else {}
    assert set(apart) == {f"layer.{i}.{name}" for i in (0, 1) for name in ("qkv", "up", "down")}
    assert all(set(range(3, 3 + count)) <= set(apart[f"layer.{i}.down"]) for i in (0, 1))
    assert all(np.array_equal(columns, np.unique(columns)) and len(columns) == APART for columns in apart.values())
    of = attended("int8", isa)
    settings = {"threads": 2, "isa": isa, "smoothing": smoothing}
    found = CpuEncoder(weights, shape, "mean", (2,), "int8", apart=apart, **settings).states(ids, offsets)[2]
    rough = CpuEncoder(weights, shape, "mean", (2,), "int8", **settings).states(ids, offsets)[2]
    want = emulated(weights, shape, ids, offsets, coarse, coarse, EMULATED[of], smoothing, apart)
    full = emulated(weights, shape, ids, offsets, lambda x: x, lambda x: x)
    lost = np.abs(want - full).mean()
    assert np.abs(found - want).mean() <= 0.5 * lost
    assert np.abs(found - full).mean() <= 0.2 * np.abs(rough - full).mean()


def test_columns_apart_may_be_few_and_of_one_product(isa):
    weights, shape, ids, offsets, smoothing, apart = spiked(64, 4, 97, 2)
    full = emulated(weights, shape, ids, offsets, lambda x: x, lambda x: x)
    lost = []
    for few in ({}, {name: np.array([3, 4], np.int32) for name in apart if name.endswith("down")}):
        encoder = CpuEncoder(weights, shape, "mean", (2,), "int8", threads=1, isa=isa, smoothing=smoothing, apart=few)
        lost.append(np.abs(encoder.states(ids, offsets)[2] - full).mean())
    assert lost[1] <= 0.5 * lost[0]


@pytest.mark.parametrize("form", ["whole", "parts", "half"])
def test_columns_apart_of_weights_in_any_form(form):
    weights, shape, ids, offsets, smoothing, apart = spiked(64, 4, 97, 1)
    for name in apart:
        matrix = weights[f"{name}.weight"] = weights[f"{name}.weight"].astype(np.float16).astype(np.float32)
        if form == "half":
            weights[f"{name}.weight"] = matrix.astype(np.float16)
        elif form == "parts" and name.endswith("qkv"):
            weights[f"{name}.weight"] = tuple(np.split(matrix, 3))
    found = CpuEncoder(weights, shape, "mean", (2,), "int8", threads=1, smoothing=smoothing, apart=apart)(ids, offsets)
    single = {
        name: np.concatenate(a).astype(np.float32) if isinstance(a, tuple) else a.astype(np.float32)
        for name, a in weights.items() if name != "word"
    } | {"word": weights["word"]}  # fmt: skip
    want = CpuEncoder(single, shape, "mean", (2,), "int8", threads=1, smoothing=smoothing, apart=apart)(ids, offsets)
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
