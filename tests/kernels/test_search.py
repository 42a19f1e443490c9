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


def compared(run, rows, others, least, *, threads=(), part=None, room=None):
    """Pairs of int8 codes with scale 1, whose sums are exact in float32."""
    ones, slack = (np.ones(len(each), np.float32) for each in (rows, others))
    least = np.full(len(rows), least, np.float32)
    begin, end = part or (0, len(others))
    pairs, found = run(rows, ones, least, others, slack, 0 * slack, begin, end, room or 1 << 16, *threads)
    return sorted(map(tuple, pairs.tolist())), found


def small_codes(rows, width, seed):
    codes = np.random.default_rng(seed).integers(-127, 128, (rows, width), dtype=np.int8)
    codes[1::3] = codes[::3][: len(codes[1::3])]  # near rows
    codes[: len(codes) // 9] = 127
    return codes


@pytest.mark.parametrize(("count", "width"), [(1, 5), (700, 1), (601, 37), (1200, 64), (530, 300)])
def test_pairs_are_those_of_the_definition(isa, count, width):
    rows, others = small_codes(count, width, 0), small_codes(217, width, 1)
    least = float(np.percentile(rows[:200].astype(np.int64) @ others.T.astype(np.int64), 99))
    for mine, theirs in ((rows, rows), (rows, others), (others, rows)):
        for part in (None, (len(theirs) // 3, len(theirs))):
            want = compared(reference.compare, mine, theirs, least, part=part)
            for threads in (1, 2, 5):
                assert compared(cpu.compare, mine, theirs, least, threads=(threads, isa), part=part) == want
    pairs, found = compared(cpu.compare, rows, rows, -1e9, threads=(2, isa), room=7)
    assert (len(pairs), found) == (min(7, found), count * (count - 1) // 2)


def test_a_pair_passes_from_its_limit_on_with_scale_and_slack(isa):
    codes = small_codes(300, 70, 2)
    scale, slack = np.linspace(0.001, 0.002, 300, dtype=np.float32), np.linspace(0, 0.01, 300, dtype=np.float32)
    exact = codes.astype(float) @ codes.T.astype(float) * np.outer(scale.astype(float), scale) + slack
    least = np.percentile(exact, 97, axis=1).astype(np.float32)
    pairs, _ = cpu.compare(codes, scale, least, codes, scale, slack, 0, 300, 90_000, 2, isa)
    found = np.zeros((300, 300), bool)
    found[tuple(pairs.T)] = True
    over = exact - least[:, None]
    assert found[(over > 2.0**-20) & np.triu(np.ones((300, 300), bool), 1)].all()
    assert not found[over < -(2.0**-20)].any()
    assert found.sum() > 500


@pytest.mark.parametrize("wrong", ["width", "scale", "slack", "part", "isa"])
def test_arrays_that_do_not_belong_together_are_refused(wrong):
    from fastflow.kernels._cpu import compare

    codes, ones = small_codes(9, 8, 0), np.ones(9, np.float32)
    given = [codes, ones, ones, codes, ones, ones, 0, 9, np.empty((4, 2), np.int32), 0, 1]
    changes = {"width": (3, codes[:, :4].copy()), "scale": (1, ones[:3]), "slack": (5, ones[:3]), "part": (7, 10),
               "isa": (9, 99)}  # fmt: skip
    at, value = changes[wrong]
    compare(*given)
    with pytest.raises(ValueError, match=r"belong|instruction"):
        compare(*given[:at], value, *given[at + 1 :])
