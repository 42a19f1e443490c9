"""The compiled scans and products: those of the definition on every instruction set, length and number of threads."""

import numpy as np
import pytest

from fastflow.kernels.search import cpu, reference

WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 96, 127, 128, 129, 255, 256, 257, 768, 1000)


def codes_of(dtype, rows, width, seed=0):
    """Codes of which the first two rows give the largest sums, and a query of other numbers."""
    rng, limits = np.random.default_rng(seed), np.iinfo(dtype)
    codes, other = rng.integers(limits.min, limits.max, (2, rows, width), dtype, endpoint=True)
    if rows > 1:
        codes[0], codes[1] = limits.min, limits.max
    return codes, other[-1] if rows else np.ones(width, dtype)


def whole(rows, width, seed=0):
    """Whole numbers: sums below 2^24, exact in float32 in any order."""
    return np.random.default_rng(seed).integers(-9, 10, (rows, width)).astype(np.float32)


def any_size(rows, width, seed):
    """Numbers of sizes far apart, of both signs: rounding shows."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, width)) * 10 ** rng.uniform(-4, 4, (rows, width))).astype(np.float32)


def dot_in_python(row, query):
    return sum(a * b for a, b in zip(row, query, strict=True))


def bits_in_python(row, query):
    return sum((a ^ b).bit_count() for a, b in zip(row, query, strict=True))


SCANS = {"dots": (np.int8, dot_in_python), "hammings": (np.uint8, bits_in_python)}


@pytest.mark.parametrize("name", SCANS)
def test_the_definition_is_pythons_integers(name, monkeypatch):
    monkeypatch.setattr(reference, "WIDENED", 1000)
    dtype, one = SCANS[name]
    for width in (1, 7, 300):
        codes, other = codes_of(dtype, 20, width)
        for query in (*codes[:3], other):
            want = [one(row, query.tolist()) for row in codes.tolist()]
            assert getattr(reference, name)(codes, query).tolist() == want


@pytest.mark.parametrize("name", SCANS)
def test_the_integers_of_the_definition(float_isa, name):
    for width in WIDTHS:
        codes, other = codes_of(SCANS[name][0], 37, width)
        for query in (*codes[:3], other):
            found = getattr(cpu, name)(codes, query, 1, float_isa)
            assert found.dtype == np.int32
            assert np.array_equal(found, getattr(reference, name)(codes, query)), width


@pytest.mark.parametrize("width", WIDTHS)
def test_products_are_exact_on_whole_numbers_and_else_within_their_bound(float_isa, width):
    rows, queries = whole(37, width), whole(3, width, 1)
    found = cpu.products(rows, queries, 1, float_isa)
    assert (found.dtype, found.shape) == (np.float32, (3, 37))
    assert np.array_equal(found, queries.astype(np.int64) @ rows.astype(np.int64).T)
    assert np.array_equal(reference.products(rows, queries), found)
    rows, queries = any_size(200, width, 2), any_size(4, width, 3)
    wide, asked = rows.astype(np.float64), queries.astype(np.float64)
    bound = width * 2.0**-23 * np.linalg.norm(asked, axis=1)[:, None] * np.linalg.norm(wide, axis=1)
    for found in (cpu.products(rows, queries, 1, float_isa), reference.products(rows, queries)):
        assert (abs(found - asked @ wide.T) <= bound).all()


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize(("rows", "width"), [(0, 5), (1, 5), (20_000, 61), (3, 65536)])
def test_threads_and_blocks_change_no_integer(float_isa, name, rows, width):
    codes, query = codes_of(SCANS[name][0], rows, width)
    want = getattr(reference, name)(codes, query)
    for threads in (1, 2, 5, None):
        assert np.array_equal(getattr(cpu, name)(codes, query, threads, float_isa), want)


def test_rows_that_begin_anywhere(float_isa):
    memory = whole(1, 40 * 33 + 5).ravel()
    for start in range(5):
        rows = memory[start : start + 40 * 33].reshape(40, 33)
        query = memory[start + 7 : start + 40][None]
        assert np.array_equal(cpu.products(rows, query, 2, float_isa), (query @ rows.T))


def test_the_widest_sum_fits():
    codes = np.full((2, 65536), -128, np.int8)
    assert cpu.dots(codes, codes[0]).tolist() == [2**30] * 2
