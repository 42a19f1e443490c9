"""Packing of stored weights in C against its definition in NumPy, bit for bit; widening and narrowing of tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.kernels import _cpu
from fastflow.kernels._cpu import LARGEST_BITS, convert, pack
from fastflow.kernels.stored import BFLOAT16, LARGEST, STORED, PackedMatrix, quantise, raw, record, storable

from support import definitions
from support.packed import stored_as

WIDTHS = (1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97)


def test_stored_dtypes_are_in_the_order_of_c():
    assert tuple(range(len(STORED))) == (_cpu.STORED_FLOAT, _cpu.STORED_HALF, _cpu.STORED_BF16)
    assert (np.float32, np.float16, BFLOAT16) == STORED
    assert np.float32(LARGEST).view(np.uint32) == LARGEST_BITS


def test_a_record_has_the_fields_of_c_and_no_other():
    assert record(_cpu.OP, {"kind": _cpu.PRODUCT, "mode": 5}).item() == (_cpu.PRODUCT, 0, 0, 0, 0, 0, 0, 0, 5)
    with pytest.raises(ValueError, match="width"):
        record(_cpu.OP, {"width": 1})


def aligned(size: int) -> np.ndarray:
    memory = np.full(size + 64, 7, np.uint8)
    return memory[-memory.ctypes.data % 64 :][:size]


def lines(size: int) -> int:
    return -(-size // 64) * 64


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    kind=st.integers(0, 2), parts=st.sampled_from([1, 3]), count=st.sampled_from(WIDTHS), size=st.sampled_from(WIDTHS),
    groups=st.integers(1, 4), lanes=st.sampled_from([1, 2, 4]), panel=st.sampled_from([8, 16, 32]),
    threads=st.integers(1, 3), offset=st.integers(0, 3), zero=st.sampled_from([0, 128]), spare=st.integers(0, 3),
    smooth=st.booleans(), together=st.sampled_from([1, 2]), seed=st.integers(0, 99),
)  # fmt: skip
def test_packed_as_defined(
    kind, parts, count, size, groups, lanes, panel, threads, offset, zero, spare, smooth, together, seed
):
    (groups, lanes), spare = (1, 4) if smooth else (groups, lanes), spare * together
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(parts, count, groups * size)) * 10.0 ** rng.integers(-6, 4)).astype(np.float32)
    values[:, rng.integers(count)] = 0  # a row without a scale
    stored = [np.r_[np.zeros(offset, np.uint8), raw(stored_as(part, kind))][offset:] for part in values]
    padded = -(-size // 32) * 32
    rows = np.full(-(-(parts * count + 5) // panel) * panel, -1, np.int32)
    rows[rng.permutation(len(rows))[: parts * count]] = rng.permutation(parts * count)
    bytes_of_panels = len(rows) * (groups * padded // lanes + spare) * 4
    matrix = PackedMatrix(
        "m", tuple(stored), kind, count, groups * size, rows, groups, padded, 1 / 3, lanes, 0, lines(bytes_of_panels),
        lines(bytes_of_panels) + lines(4 * len(rows)), zero, spare,
        np.exp2(rng.integers(-5, 6, size)).astype(np.float32) if smooth else None, together,
    )  # fmt: skip
    want, found = (aligned(matrix.shift + lines(4 * len(rows))) for _ in range(2))
    found[:bytes_of_panels] = 255  # spare steps too must be written
    definitions.pack([matrix], want, panel)
    assert pack([matrix], found, panel, threads) == []
    assert np.array_equal(found, want)
    assert want[:bytes_of_panels].any() or not values.any()


def test_every_half_widens_and_narrows_as_in_numpy():
    halves = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)]
    floats, back = np.empty(len(finite), np.float32), np.empty(len(finite), np.uint16)
    assert convert(raw(finite), 1, raw(floats), False, 2) == np.float32(65504).view(np.uint32)
    assert np.array_equal(floats.view(np.uint32), finite.astype(np.float32).view(np.uint32))
    assert convert(raw(floats), 0, raw(back), True, 2) == np.float32(65504).view(np.uint32)
    assert np.array_equal(back, finite.view(np.uint16))
    for special in halves[~np.isfinite(halves)]:
        assert convert(raw(np.r_[finite[:70], special]), 1, None, False, 1) > LARGEST_BITS


@pytest.mark.parametrize("scale", [1e-9, 3e-8, 6e-5, 1.0, 9e3])
def test_floats_narrow_to_the_nearest_half(scale):
    rng = np.random.default_rng(0)
    values = (scale * rng.normal(size=50001)).astype(np.float32)
    values = np.r_[values, (values.astype(np.float16).astype(np.float32) * np.float32(1 + 2**-11))]  # and near ties
    found = np.empty(len(values), np.uint16)
    assert convert(raw(values), 0, raw(found), True, 2) == np.abs(values).max().view(np.uint32)
    assert np.array_equal(found, values.astype(np.float16).view(np.uint16))


def test_storable_leaves_arrays_that_can_be_packed():
    whole, scale = quantise(np.full((1, 8), 1e-40, np.float32))  # too small for a scale
    assert np.isfinite(scale).all()
    assert not whole.any()
    for kind in range(len(STORED)):
        array = stored_as(np.eye(3, dtype=np.float32), kind)
        assert np.shares_memory(storable(array), array)
    assert storable(np.eye(3)).dtype == np.float32


def matrix(**changes) -> PackedMatrix:
    given = PackedMatrix(
        "m", (np.zeros(4 * 8 * 6, np.uint8),), 0, 8, 6, np.arange(8, dtype=np.int32), 1, 8, 1.0, 4, 0, 64, 128
    )
    return given._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stored": 3}, "cannot be packed as it is described"), ({"stored": 1}, "are not its rows and columns"),
        ({"lanes": 3}, "cannot be packed"), ({"groups": 0}, "cannot be packed"), ({"groups": 4}, "cannot be packed"),
        ({"padded": 5}, "cannot be packed"), ({"parts": ()}, "cannot be packed"),
        ({"part_rows": 0}, "cannot be packed"),
        ({"padded": 6}, "whole steps and panels"), ({"padded": 12, "together": 2}, "whole steps and panels"),
        ({"together": 3}, "whole steps and panels"), ({"together": 2, "spare": 1}, "whole steps and panels"),
        ({"rows": np.arange(7, dtype=np.int32)}, "whole steps and panels"),
        ({"rows": np.arange(1, 9, dtype=np.int32)}, "has no row 8"), ({"part_rows": 9}, "are not its rows and columns"),
        ({"rows": np.arange(-2, 6, dtype=np.int32)}, "has no row -2"), ({"panels": -64}, "does not lie in the memory"),
        ({"panels": 192}, "does not lie in the memory"), ({"scale": 4}, "not on a line"),
        ({"shift": 192}, "does not lie"),
    ],
)  # fmt: skip
def test_matrices_that_do_not_fit_are_refused(changes, message):
    memory = aligned(192)
    assert pack([matrix()], memory, 8, 1) == []
    with pytest.raises(ValueError, match=message):
        pack([matrix(**changes)], memory, 8, 1)


def test_nothing_to_pack_or_convert():
    assert pack([], aligned(64), 8, 2) == []
    assert convert(np.empty(0, np.uint8), 0, None, False, 2) == 0
    with pytest.raises(ValueError, match="no whole numbers"):
        convert(np.empty(7, np.uint8), 1, None, False, 1)
    with pytest.raises(ValueError, match="2 numbers do not fit 9 bytes"):
        convert(np.empty(8, np.uint8), 0, np.empty(9, np.uint8), False, 1)
    with pytest.raises(ValueError, match="64-byte aligned"):
        pack([matrix()], aligned(256)[1:], 8, 1)
