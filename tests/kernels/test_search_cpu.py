"""The compiled scans give the integers of the definition: every instruction set, length and number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.kernels import _cpu
from fastflow.kernels.search import cpu, reference

WIDTHS = (1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 96, 127, 128, 129, 255, 256, 768, 1000)


def codes_of(dtype, rows, width, seed=0):
    limits = np.iinfo(dtype)
    codes = np.random.default_rng(seed).integers(limits.min, limits.max, (rows, width), dtype, endpoint=True)
    codes[0], codes[1] = limits.min, limits.max  # the largest sums
    return codes


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("name", "dtype"), [("dots", np.int8), ("hammings", np.uint8)])
def test_the_integers_of_the_definition(float_isa, name, dtype, width):
    codes = codes_of(dtype, 37, width)
    for query in (*codes[:3], codes_of(dtype, 3, width, 1)[2]):
        found = getattr(cpu, name)(codes, query, 1, float_isa)
        assert found.dtype == np.int32
        assert np.array_equal(found, getattr(reference, name)(codes, query))


@pytest.mark.parametrize(("name", "dtype"), [("dots", np.int8), ("hammings", np.uint8)])
def test_threads_and_blocks_change_nothing(float_isa, name, dtype):
    for rows, width in ((0, 5), (1, 5), (20_000, 61), (3, 65536)):
        codes = codes_of(dtype, max(2, rows), width)[:rows]
        query = codes_of(dtype, 3, width, 1)[2]
        want = getattr(reference, name)(codes, query)
        for threads in (1, 2, 5, None):
            assert np.array_equal(getattr(cpu, name)(codes, query, threads, float_isa), want)


def test_the_widest_sum_fits():
    codes = np.full((2, 65536), -128, np.int8)
    assert cpu.dots(codes, codes[0]).tolist() == [2**30] * 2


def test_other_shapes_and_types_are_refused():
    with pytest.raises(ValueError, match="codes"):
        cpu.dots(np.zeros((2, 3), np.uint8), np.zeros(3, np.int8))
    with pytest.raises(ValueError, match="codes"):
        cpu.hammings(np.zeros((2, 6), np.uint8)[:, ::2], np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="cannot run"):
        cpu.dots(np.zeros((2, 3), np.int8), np.zeros(3, np.int8), isa="none")
    codes, out = np.zeros((2, 3), np.uint8), np.zeros(2, np.int32)
    for query, to, scan in ((codes[0, :2], out, 0), (codes[0], out[:1], 0), (codes[0], out, 2)):
        with pytest.raises(ValueError, match=r"do not belong together|cannot run"):
            _cpu.scan(codes, query, to, scan, 0, 1)
