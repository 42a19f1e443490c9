"""The program of an encoder: its steps in their order, and stored weights packed as NumPy defines it, bit for bit."""

import numpy as np
import pytest

from fastflow.kernels import _cpu
from fastflow.kernels._cpu import (
    APART,
    ATTEND,
    BF16,
    EMBED,
    FIRST,
    FLOAT,
    INT8,
    INT8_SIGNED,
    INT8_TILES,
    LINEAR,
    NORM,
    OUTPUT,
    PACK,
    POOL,
    Encoder,
)
from fastflow.kernels.encoder import cpu_layout as encoder_packing
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.encoder.cpu_layers import assemble
from fastflow.kernels.isa import isas
from fastflow.kernels.panels import STORED, NotFinite, pack_reference, widen

from support.packed import pack as pack_texts
from support.packed import random_encoder, stored_as


@pytest.mark.parametrize("fields", [_cpu.OP, _cpu.LINEAR_FIELDS, *_cpu.STEPS.values()])
def test_the_fields_of_a_record_fill_c_s(fields):
    assert sum(fields[name].itemsize for name in fields.names) == fields.itemsize  # a narrower one would leave a gap
    assert len({fields[name] for name in fields.names}) == 1


def test_a_record_of_every_kind_of_step_begins_with_the_kind_and_fits_the_row():
    assert sorted(_cpu.STEPS) == list(range(len(_cpu.STEPS)))
    for fields in _cpu.STEPS.values():
        assert fields.names[0] == "kind"
        assert fields["kind"] == np.int64
        assert fields.itemsize <= 8 * _cpu.STEP_NUMBERS
    assert max(fields.itemsize for fields in _cpu.STEPS.values()) == 8 * _cpu.STEP_NUMBERS


def test_a_step_takes_the_fields_of_its_kind_alone_and_all_of_them():
    weights, shape = random_encoder(5, 1, 64, 4, 97)
    program = assemble(weights, shape, "mean", (0,), 32, FLOAT)
    before = len(program.arrays()[2])
    program.step(_cpu.UNIT, target="x", width=64)
    for fields in ({"target": "x"}, {"target": "x", "width": 64, "bias": 0}, {"target": "x", "bias": 0}):
        with pytest.raises(ValueError, match=f"a step of kind {_cpu.UNIT} has the fields target, width, not target"):
            program.step(_cpu.UNIT, **fields)
    steps = program.arrays()[2]
    assert len(steps) == before + 1
    assert steps[-1].tolist() == [_cpu.UNIT, 0, 64] + [0] * (_cpu.STEP_NUMBERS - 3)


def test_steps_that_are_no_records_are_refused(float_isa):
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    number, _, vector, _ = isas()[float_isa]
    memory, linears, steps, strides = assemble(weights, shape, "mean", (1,), 2 * vector, FLOAT).arrays()
    odd = steps.copy()
    odd[0, 0] = len(_cpu.STEPS)
    for wrong, why in ((steps[:, :-1].copy(), "a step has 9 numbers, not 8"), (odd, "a step has a kind from 0 to 12")):
        with pytest.raises(ValueError, match=why):
            Encoder(
                memory, linears, wrong, strides, None, np.zeros((9, 32), np.float32), None, heads=4, head=8, hidden=32,
                outputs=32, position_rows=9, position_start=0, pad_id=-1, layers=1, eps=1e-5, isa=number,
            )  # fmt: skip


def test_all_matrices_of_an_encoder_whatever_the_threads():
    weights, shape = random_encoder(5, 2, 72, 3, 130)
    for form in (FLOAT, BF16, INT8, INT8_SIGNED, INT8_TILES):
        want, *tables = assemble(weights, shape, "pooler", (2,), 32, form).arrays(1)
        again, *others = assemble(weights, shape, "pooler", (2,), 32, form).arrays(3)
        matrices = assemble(weights, shape, "pooler", (2,), 32, form).matrices
        for m in matrices:  # memory between matrices is not written
            size = len(m.rows) * (m.groups * m.padded // m.lanes + m.spare) * 4
            assert np.array_equal(want[m.panels : m.panels + size], again[m.panels : m.panels + size])
        reference = want.copy()
        pack_reference(matrices, reference, 32)
        assert np.array_equal(reference, want)
        assert all(np.array_equal(a, b) for a, b in zip(tables, others, strict=True))


def test_queries_keys_and_values_stacked_or_apart():
    weights, shape = random_encoder(5, 2, 72, 3, 130)
    apart = {name: tuple(np.split(a, 3)) if ".qkv." in name else a for name, a in weights.items()}
    texts = pack_texts([3, 17, 40], 1)
    for dtype in ("float32", "bfloat16", "int8"):
        whole, parts = (CpuEncoder(w, shape, "mean", (1, 2), dtype)(*texts) for w in (weights, apart))
        assert np.isfinite(whole).all()
        assert np.array_equal(whole, parts)


@pytest.mark.parametrize("kind", range(len(STORED)))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_stored_precisions_are_what_they_are_as_float32(kind, dtype):
    weights, shape = random_encoder(5, 2, 64, 4, 97)
    stored = {name: stored_as(a, kind) if a.ndim == 2 else a for name, a in weights.items()}
    wide = {name: widen(a).astype(np.float32) for name, a in stored.items()}
    queries, keys, _ = np.split(stored["layer.0.qkv.weight"], 3)
    mixed = stored | {"layer.0.qkv.weight": (queries, keys, wide["layer.0.qkv.weight"][128:])}
    texts = pack_texts([3, 17, 40], 1)
    want, found, other = (CpuEncoder(w, shape, "cls", (2,), dtype)(*texts) for w in (wide, stored, mixed))
    assert np.isfinite(want).all()
    assert np.array_equal(found, want)
    assert np.array_equal(other, want)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", range(len(STORED)))
def test_what_is_not_finite_is_named_with_its_part(kind, value):
    weights, shape = random_encoder(5, 2, 64, 4, 97)
    weights = {name: tuple(np.split(a, 3)) if ".qkv." in name else a for name, a in weights.items()}
    places = [
        ("word", 0),
        ("position", 0),
        ("layer.0.qkv.weight", 2),
        ("layer.1.down.weight", 0),
        ("layer.0.qkv.bias", 1),
    ]
    places += [("pooler.weight", 0), ("layer.1.up.weight", 0)]  # of no use to the mean over layer 1
    for name, part in places:
        spoilt = [np.array(a) for a in encoder_packing.parts_of(weights, name)]
        spoilt[part][(-1,) * spoilt[part].ndim] = value
        given = tuple(stored_as(a, kind) for a in spoilt)
        for dtype in ("float32", "int8"):
            with pytest.raises(NotFinite, match=f"the weight {name} holds NaN or infinity") as raised:
                CpuEncoder(weights | {name: given if len(given) > 1 else given[0]}, shape, "mean", (1,), dtype, 2)
            assert (raised.value.name, raised.value.part) == (name, part)


def test_results_of_bfloat16_need_a_product_that_rounds(float_isa):
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    number, _, vector, _ = isas()[float_isa]
    memory, linears, steps, strides = assemble(weights, shape, "mean", (1,), 2 * vector, FLOAT).arrays()
    linears["result"] = BF16
    with pytest.raises(ValueError, match=f"results cannot be bfloat16 on instruction set {number} in its format"):
        Encoder(
            memory, linears, steps, strides, None, np.zeros((9, 32), np.float32), None, heads=4, head=8, hidden=32,
            outputs=32, position_rows=9, position_start=0, pad_id=-1, layers=1, eps=1e-5, isa=number,
        )  # fmt: skip


def test_tanh_is_not_applied_to_results_of_bfloat16():
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    with pytest.raises(ValueError, match=r"'layer\.0\.up' applies tanh to results of float32 alone"):
        assemble(weights, shape._replace(activation="tanh"), "mean", (1,), 32, BF16)


def test_smoothing_is_obeyed_or_refused():
    weights, shape = random_encoder(5, 2, 72, 3, 130)
    by = {"layer.0.up": np.full(72, 2, np.float32)}
    matrices = assemble(weights, shape, "mean", (2,), 32, INT8, smoothing=by).matrices
    assert [m.name for m in matrices if m.by is not None] == ["layer.0.up.weight"]
    for form, names in ((FLOAT, by), (BF16, by), (INT8, {"layer.2.up": by["layer.0.up"]})):
        with pytest.raises(
            ValueError, match=r"smoothing is of products of bytes in these layers, not of layer\.\d\.up"
        ):
            assemble(weights, shape, "mean", (2,), 32, form, smoothing=names)


def test_columns_apart_are_obeyed_or_refused():
    weights, shape = random_encoder(5, 2, 72, 3, 130)
    columns = np.array([2, 70], np.int32)
    program = assemble(weights, shape, "mean", (2,), 32, INT8, apart={"layer.0.up": columns})
    (by,) = [m.by for m in program.matrices if m.by is not None]
    assert np.array_equal(np.flatnonzero(by == 0), columns)
    assert set(by) == {0, 1}
    memory, linears, steps, _ = program.arrays()
    (linear,) = [one for one in linears if one["apart"] >= 0]
    converted = steps[steps[:, 0] == _cpu.CONVERT][:, : len(_cpu.STEPS[_cpu.CONVERT].names)].copy()
    (step,) = [one for one in converted.view(_cpu.STEPS[_cpu.CONVERT]).ravel() if one["apart"] >= 0]
    beside = memory[linear["apart"] :][: 4 * APART * linear["columns"]].view(np.float32).reshape(APART, -1)
    assert np.array_equal(beside[:2, :130], weights["layer.0.up.weight"][:, columns].T)
    assert not beside[2:].any()
    assert not beside[:, 130:].any()
    assert memory[step["apart"] :][: 4 * APART].view(np.int32).tolist() == [2, 70, *[0] * (APART - 2)]
    for form, name in ((FLOAT, "layer.0.up"), (BF16, "layer.0.up"), (INT8, "layer.0.out"), (INT8, "layer.2.up")):
        with pytest.raises(ValueError, match=f"smoothing is of products of bytes in these layers, not of {name}"):
            assemble(weights, shape, "mean", (2,), 32, form, apart={name: columns})


LAYER = [LINEAR, PACK, ATTEND, LINEAR, NORM, LINEAR, LINEAR, NORM]


def kinds(mode: str, layers: tuple[int, ...], depth: int = 2) -> list[int]:
    weights, shape = random_encoder(5, depth, 64, 4, 97)
    _, _, steps, _ = assemble(weights, shape, mode, layers, 32, FLOAT).arrays()
    return steps[:, 0].tolist()


@pytest.mark.parametrize(
    ("layers", "steps"),
    [
        ((0,), [EMBED, POOL]),
        ((-1,), [EMBED, POOL]),
        ((-1, 0), [EMBED, POOL, EMBED, POOL]),
        ((1, -1), [EMBED, POOL, EMBED, *LAYER, POOL]),
        ((1,), [EMBED, *LAYER, POOL]),
        ((2,), [EMBED, *LAYER, *LAYER, POOL]),
        ((0, 2), [EMBED, POOL, *LAYER, *LAYER, POOL]),
        ((2, 1), [EMBED, *LAYER, POOL, *LAYER, POOL]),
    ],
)
def test_layers_are_computed_as_far_as_the_highest_that_is_pooled(layers, steps):
    assert kinds("mean", layers) == steps


@pytest.mark.parametrize("layer", [0, -1])
def test_an_embedding_layer_alone_needs_neither_products_nor_their_buffers(layer):
    weights, shape = random_encoder(5, 2, 64, 4, 97)
    memory, linears, _, strides = assemble(weights, shape, "mean", (layer,), 32, FLOAT).arrays()
    assert len(linears) == 0
    assert len(strides) == 2
    assert len(memory) < 1024  # LayerNorm and the layer's share


def test_the_pooler_is_a_product_on_the_first_tokens():
    assert kinds("pooler", (1,), 1) == [EMBED, *LAYER, FIRST, LINEAR, OUTPUT]


def test_an_encoder_without_pooler_is_refused():
    weights, shape = random_encoder(5, 1, 64, 4, 97)
    weights = {name: array for name, array in weights.items() if not name.startswith("pooler")}
    with pytest.raises(ValueError, match="the encoder has no pooler"):
        assemble(weights, shape, "pooler", (1,), 32, FLOAT)


def test_queries_are_scaled_before_they_are_multiplied():
    weights, shape = random_encoder(5, 1, 64, 4, 97)
    program = assemble(weights, shape, "mean", (1,), 32, FLOAT)
    factors = {matrix.name: matrix.factor for matrix in program.matrices}
    assert np.isclose(factors.pop("layer.0.qkv.weight"), 1 / np.sqrt(64 / 4))
    assert set(factors.values()) == {1.0}
