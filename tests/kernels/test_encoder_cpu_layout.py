"""The program of an encoder: its steps in their order, and stored weights packed as NumPy defines it, bit for bit."""

import numpy as np
import pytest

from fastflow.kernels import _cpu
from fastflow.kernels._cpu import APART, BF16, FLOAT, INT8, INT8_SIGNED, INT8_TILES, Encoder
from fastflow.kernels.encoder import PLAIN, Outliers, PoolingSpec
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.encoder.cpu_layers import assemble
from fastflow.kernels.encoder.cpu_layout import Products, parts_of
from fastflow.kernels.processor import isas
from fastflow.kernels.stored import STORED, NotFinite, widen

from support import definitions
from support.packed import pack as pack_texts
from support.packed import random_encoder, random_modernbert, random_mpnet, stored_as

MADE = random_encoder(5, 2, 72, 3, 130)
SMALL = random_encoder(5, 2, 64, 4, 97)
TEXTS = pack_texts([3, 17, 40], 1)


def program(made=SMALL, mode="mean", layers=(2,), form=FLOAT, outliers=PLAIN, panel=32):
    return assemble(*made, PoolingSpec(mode, layers), Products(panel, form, FLOAT, outliers))


def split_qkv(weights):
    return {name: tuple(np.split(a, 3)) if ".qkv." in name else a for name, a in weights.items()}


@pytest.mark.parametrize("fields", [_cpu.OP, _cpu.LINEAR_FIELDS, *_cpu.STEPS.values()])
def test_the_fields_of_a_record_fill_c_s(fields):
    assert sum(fields[name].itemsize for name in fields.names) == fields.itemsize  # a narrower one would leave a gap
    assert len({fields[name] for name in fields.names}) == 1


def test_a_record_of_every_kind_of_step_begins_with_the_kind_and_fits_the_row():
    assert sorted(_cpu.STEPS) == list(range(len(_cpu.STEPS)))
    for fields in _cpu.STEPS.values():
        assert (fields.names[0], fields["kind"]) == ("kind", np.int64)
    assert max(fields.itemsize for fields in _cpu.STEPS.values()) == 8 * _cpu.STEP_NUMBERS


def test_a_step_takes_exactly_the_fields_of_its_kind():
    made = program(layers=(0,))
    before = len(made.arrays()[2])
    made.step(_cpu.UNIT, target="x", width=64)
    for fields in ({"target": "x"}, {"target": "x", "width": 64, "bias": 0}, {"target": "x", "bias": 0}):
        with pytest.raises(ValueError, match=f"a step of kind {_cpu.UNIT} has the fields target, width, not target"):
            made.step(_cpu.UNIT, **fields)
    steps = made.arrays()[2]
    assert len(steps) == before + 1
    assert steps[-1].tolist() == [_cpu.UNIT, 0, 64] + [0] * (_cpu.STEP_NUMBERS - 3)


def test_programs_that_cannot_run_are_refused(float_isa):
    number, _, vector, _ = isas()[float_isa]
    memory, linears, steps, strides = program(random_encoder(0, 1, 32, 4, 64), layers=(1,), panel=2 * vector).arrays()
    odd, rounded = steps.copy(), linears.copy()
    odd[0, 0] = len(_cpu.STEPS)
    rounded["result"] = BF16
    for products, wrong, message in (
        (linears, steps[:, :-1].copy(), "a step has 9 numbers, not 8"),
        (linears, odd, "a step has a kind from 0 to 12"),
        (rounded, steps, f"results cannot be bfloat16 on instruction set {number} in its format"),
    ):
        with pytest.raises(ValueError, match=message):
            Encoder(
                memory, products, wrong, strides, None, np.zeros((9, 32), np.float32), None, heads=4, head=8, hidden=32,
                outputs=32, position_rows=9, position_start=0, pad_id=-1, layers=1, eps=1e-5, isa=number,
            )  # fmt: skip


@pytest.mark.parametrize("form", [FLOAT, BF16, INT8, INT8_SIGNED, INT8_TILES])
def test_all_matrices_of_an_encoder_on_any_number_of_threads(form):
    want, *tables = program(MADE, "pooler", form=form).arrays(1)
    again, *others = program(MADE, "pooler", form=form).arrays(3)
    matrices = program(MADE, "pooler", form=form).matrices
    for m in matrices:  # memory between matrices is not written
        size = len(m.rows) * (m.groups * m.padded // m.lanes + m.spare) * 4
        assert np.array_equal(want[m.panels : m.panels + size], again[m.panels : m.panels + size])
    reference = want.copy()
    definitions.pack(matrices, reference, 32)
    assert np.array_equal(reference, want)
    assert all(np.array_equal(a, b) for a, b in zip(tables, others, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_weights_in_any_stored_form_give_the_same_bits(dtype):
    weights, shape = MADE
    made = [(weights, split_qkv(weights))]
    weights, small = SMALL
    for kind in range(len(STORED)):
        stored = {name: stored_as(a, kind) if a.ndim == 2 else a for name, a in weights.items()}
        wide = {name: widen(a).astype(np.float32) for name, a in stored.items()}
        queries, keys, _ = np.split(stored["layer.0.qkv.weight"], 3)
        mixed = stored | {"layer.0.qkv.weight": (queries, keys, wide["layer.0.qkv.weight"][128:])}
        made += [(wide, stored), (wide, mixed)]
    for number, pair in enumerate(made):
        shapes = small if number else shape
        want, found = (CpuEncoder(w, shapes, PoolingSpec("cls+mean", (1, 2)), dtype)(*TEXTS) for w in pair)
        assert np.isfinite(want).all()
        assert np.array_equal(want, found), number


MPNET, MODERNBERT = random_mpnet(5, 2, 64, 4, 97), random_modernbert(5, 2, 64, 4, 97)
PLACES = [  # an encoder, its weight, part of the weight
    *((SMALL, name, 0) for name in ("word", "position", "layer.1.down.weight")),
    *((SMALL, name, 0) for name in ("pooler.weight", "layer.1.up.weight")),  # not used by the mean over layer 1
    (SMALL, "layer.0.qkv.weight", 2),
    (SMALL, "layer.0.qkv.bias", 1),
    (MPNET, "relative", 0),
    (MODERNBERT, "final_norm.scale", 0),
    (MODERNBERT, "layer.1.norm1.scale", 0),
]


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf, 2e6])
@pytest.mark.parametrize("kind", range(len(STORED)))
def test_weights_that_are_not_finite_are_named_with_their_part(kind, value):
    if value == 2e6 and STORED[kind] == np.float16:
        return  # it has no such number
    for (weights, shape), name, part in PLACES:
        weights = split_qkv(weights)
        spoilt = [np.array(a) for a in parts_of(weights, name)]
        spoilt[part][(-1,) * spoilt[part].ndim] = value
        given = tuple(stored_as(a, kind) if a.ndim == 2 else a for a in spoilt)
        changed = weights | {name: given if len(given) > 1 else given[0]}
        for dtype in ("float32", "int8"):
            with pytest.raises(NotFinite, match=f"the weight {name} holds NaN or infinity") as raised:
                CpuEncoder(changed, shape, PoolingSpec("mean", (1,)), dtype, 2)
            assert (raised.value.name, raised.value.part) == (name, part)


NOT_OF_BYTES = r"smoothing is of products of bytes in these layers, not of "


def test_smoothing_is_obeyed_or_refused():
    by = {"layer.0.up": np.full(72, 2, np.float32)}
    matrices = program(MADE, form=INT8, outliers=Outliers(by)).matrices
    assert [m.name for m in matrices if m.by is not None] == ["layer.0.up.weight"]
    for form, names in ((FLOAT, by), (BF16, by), (INT8, {"layer.2.up": by["layer.0.up"]})):
        with pytest.raises(ValueError, match=NOT_OF_BYTES + r"layer\.\d\.up"):
            program(MADE, form=form, outliers=Outliers(names))


def test_columns_apart_are_obeyed_or_refused():
    columns = np.array([2, 70], np.int32)
    made = program(MADE, form=INT8, outliers=Outliers(apart={"layer.0.up": columns}))
    (by,) = [m.by for m in made.matrices if m.by is not None]
    assert np.array_equal(np.flatnonzero(by == 0), columns)
    assert set(by) == {0, 1}
    memory, linears, steps, _ = made.arrays()
    (linear,) = [one for one in linears if one["apart"] >= 0]
    converted = steps[steps[:, 0] == _cpu.CONVERT][:, : len(_cpu.STEPS[_cpu.CONVERT].names)].copy()
    (step,) = [one for one in converted.view(_cpu.STEPS[_cpu.CONVERT]).ravel() if one["apart"] >= 0]
    beside = memory[linear["apart"] :][: 4 * APART * linear["columns"]].view(np.float32).reshape(APART, -1)
    assert np.array_equal(beside[:2, :130], MADE[0]["layer.0.up.weight"][:, columns].T)
    assert not beside[2:].any()
    assert not beside[:, 130:].any()
    assert memory[step["apart"] :][: 4 * APART].view(np.int32).tolist() == [2, 70, *[0] * (APART - 2)]
    for form, name in ((FLOAT, "layer.0.up"), (BF16, "layer.0.up"), (INT8, "layer.0.out"), (INT8, "layer.2.up")):
        with pytest.raises(ValueError, match=NOT_OF_BYTES + name):
            program(MADE, form=form, outliers=Outliers(apart={name: columns}))


LAYER = [_cpu.LINEAR, _cpu.PACK, _cpu.ATTEND, _cpu.LINEAR, _cpu.NORM, _cpu.LINEAR, _cpu.LINEAR, _cpu.NORM]
EMBED, POOL = _cpu.EMBED, _cpu.POOL


@pytest.mark.parametrize(
    ("mode", "layers", "steps"),
    [
        ("mean", (0,), [EMBED, POOL]),
        ("mean", (-1,), [EMBED, POOL]),
        ("mean", (-1, 0), [EMBED, POOL, EMBED, POOL]),
        ("mean", (1, -1), [EMBED, POOL, EMBED, *LAYER, POOL]),
        ("mean", (1,), [EMBED, *LAYER, POOL]),
        ("mean", (2,), [EMBED, *LAYER, *LAYER, POOL]),
        ("mean", (0, 2), [EMBED, POOL, *LAYER, *LAYER, POOL]),
        ("mean", (2, 1), [EMBED, *LAYER, POOL, *LAYER, POOL]),
        ("pooler", (1,), [EMBED, *LAYER, _cpu.FIRST, _cpu.LINEAR, _cpu.OUTPUT]),
    ],
)
def test_layers_are_computed_as_far_as_the_highest_that_is_pooled(mode, layers, steps):
    assert program(mode=mode, layers=layers).arrays()[2][:, 0].tolist() == steps


@pytest.mark.parametrize("layer", [0, -1])
def test_an_embedding_layer_needs_neither_products_nor_their_buffers(layer):
    memory, linears, _, strides = program(layers=(layer,)).arrays()
    assert (len(linears), len(strides)) == (0, 2)
    assert len(memory) < 1024  # LayerNorm and the layer's share
