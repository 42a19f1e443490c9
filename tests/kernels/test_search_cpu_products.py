"""The compiled products of float32: exact on whole numbers, else within the stated error, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.kernels import _cpu
from fastflow.kernels.search import cpu, reference

WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 255, 256, 257, 768, 1000)


def whole(rows, width, seed=0):
    """Whole numbers: sums below 2^24, exact in float32 in any order."""
    return np.random.default_rng(seed).integers(-9, 10, (rows, width)).astype(np.float32)


def any_size(rows, width, seed):
    """Numbers of sizes far apart, of both signs: rounding shows."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, width)) * 10 ** rng.uniform(-4, 4, (rows, width))).astype(np.float32)


@pytest.mark.parametrize("width", WIDTHS)
def test_whole_numbers_are_exact(float_isa, width):
    rows, queries = whole(37, width), whole(3, width, 1)
    found = cpu.products(rows, queries, 1, float_isa)
    assert found.dtype == np.float32
    assert found.shape == (3, 37)
    assert np.array_equal(found, queries.astype(np.int64) @ rows.astype(np.int64).T)
    assert np.array_equal(reference.products(rows, queries), found)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_error_is_within_its_bound(float_isa, width):
    rows, queries = any_size(200, width, 2), any_size(4, width, 3)
    want = queries.astype(np.float64) @ rows.astype(np.float64).T
    lengths = np.linalg.norm(queries.astype(np.float64), axis=1)[:, None] * np.linalg.norm(
        rows.astype(np.float64), axis=1
    )
    for found in (cpu.products(rows, queries, 1, float_isa), reference.products(rows, queries)):
        assert (abs(found - want) <= width * 2.0**-23 * lengths).all()


def test_threads_and_blocks_change_no_bit(float_isa):
    for count, asked, width in ((0, 2, 5), (3, 0, 5), (1, 1, 5), (5000, 1, 61), (5000, 3, 61), (3, 2, 70_000)):
        rows, queries = any_size(count, width, 4), any_size(asked, width, 5)
        alone = [[cpu.products(row[None], query[None], 1, float_isa)[0, 0] for row in rows[:50]] for query in queries]
        found = cpu.products(rows, queries, 1, float_isa)
        assert np.array_equal(found[:, :50], np.reshape(alone, (asked, min(count, 50))))
        for threads in (2, 5, None):
            assert np.array_equal(cpu.products(rows, queries, threads, float_isa), found)


def test_rows_that_begin_anywhere(float_isa):
    memory = whole(1, 40 * 33 + 5).ravel()
    for start in range(5):
        rows = memory[start : start + 40 * 33].reshape(40, 33)
        query = memory[start + 7 : start + 40][None]
        assert np.array_equal(cpu.products(rows, query, 2, float_isa), (query @ rows.T))


@pytest.mark.parametrize("module", [cpu, reference])
@pytest.mark.parametrize(
    ("rows", "queries"),
    [
        (np.zeros((2, 3)), np.zeros((1, 3), np.float32)),
        (np.zeros((2, 3), np.float32), np.zeros((1, 3))),
        (np.zeros((2, 3), np.float32), np.zeros((1, 4), np.float32)),
        (np.zeros((2, 3), np.float32), np.zeros(3, np.float32)),
        (np.zeros((2, 6), np.float32)[:, ::2], np.zeros((1, 3), np.float32)),
        (np.zeros((2, 0), np.float32), np.zeros((1, 0), np.float32)),
        (np.frombuffer(bytes(25), np.uint8)[1:].view(np.float32).reshape(2, 3), np.zeros((1, 3), np.float32)),
    ],
)
def test_other_shapes_and_types_are_refused(module, rows, queries):
    with pytest.raises(ValueError, match="rows"):
        module.products(rows, queries)


def test_the_extension_checks_what_it_is_given():
    rows, out = np.zeros((2, 3), np.float32), np.zeros((1, 2), np.float32)
    with pytest.raises(ValueError, match="cannot run"):
        cpu.products(rows, rows[:1], isa="none")
    for queries, to, isa in (
        (rows[:, :2].copy(), out, 0),
        (rows, out, 0),
        (rows[:1], out[:, :1].copy(), 0),
        (rows[:1], out, 99),
    ):
        with pytest.raises(ValueError, match=r"do not belong together|cannot run"):
            _cpu.products(rows, queries, to, isa, 1)
