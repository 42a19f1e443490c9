"""Finished vectors: cut and then normalised, quantised, refused if they are not finite; rows and similarities."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from fastflow.errors import FastflowError, UsageError
from fastflow.search.scan import exact
from fastflow.transforms import vectors
from fastflow.transforms.truncation import Joined, Truncation
from fastflow.transforms.vectors import (
    INT8_SIGMAS,
    SIMILARITIES,
    check_count,
    check_finite,
    check_pooled,
    check_ranges,
    check_truncation,
    check_vectors,
    compute_paired_cosine,
    cosine,
    first_bad,
    quantise,
    shorten,
)

Z = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float32)


def test_cut_first_and_normalised_then():
    found = shorten(Z, True, 4)
    assert np.abs(found - Z[:, :4] / np.linalg.norm(Z[:, :4], axis=1, keepdims=True)).max() <= 1e-7
    assert found.flags.c_contiguous
    assert not shorten(np.zeros((2, 3), np.float32), True, None).any()
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(10, 10)))[0].astype(np.float32)
    order = Truncation(basis, np.ones(10, np.float32))
    assert np.abs(shorten(Z, False, 3, order) - Z @ basis[:, :3]).max() <= 1e-6
    for whole in (shorten(Z, False, None), shorten(Z, False, None, order)):
        assert np.array_equal(whole, Z), "turned if it is cut alone"


def test_counts_and_widths_are_whole_numbers_of_any_kind():
    for value in (None, 1, np.int64(3)):
        check_count("threads", value)
        check_truncation(value, 10)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_bad_row_is_named_from_where_the_block_starts(value):
    z = Z.copy()
    z[[2, 4], 1] = value
    assert first_bad(z) == 2
    with pytest.raises(FastflowError, match="text 102 gives NaN or infinity"):
        check_finite(z, "text", 100)
    assert first_bad(Z) is None
    assert check_finite(Z, "text") is Z


@pytest.mark.parametrize("normalized", [False, True])
def test_int8_and_uint8_are_one_range_around_zero(normalized):
    spread = np.linspace(0.5, 2, 10)
    span = INT8_SIGMAS * 2 / (np.linalg.norm(spread) if normalized else 1)
    z = np.array([[span, -span, 2 * span, -9 * span, 0, span / 127, 0.4 * span / 127, 0, 0, 0]])
    levels = quantise(z, "int8", normalized, spread)
    assert levels.dtype == np.int8
    assert levels.tolist() == [[127, -127, 127, -127, 0, 1, 0, 0, 0, 0]]
    assert quantise(z, "uint8", normalized, spread).tolist() == [[255, 1, 255, 1, 128, 129, 128, 128, 128, 128]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ranges_are_cut_into_256_steps_a_dimension(dtype):
    ranges = check_ranges([[-128, 0, 2, 5], [127, 255, 2, 5.5]], "int8", 4)
    z = np.array([[-128, 0, 2, 5], [127, 255, 2.5, 5.499], [-999, 0.999, 1.5, 9], [0.5, 3e38, 3.5, 5.25]], dtype)
    levels = quantise(z, "uint8", False, None, ranges)
    assert levels.dtype == np.uint8
    assert levels.tolist() == [[0, 0, 0, 0], [255, 255, 0, 254], [0, 0, 0, 255], [128, 255, 1, 127]]
    coded = quantise(z, "int8", True, np.ones(4), ranges)  # they come before the range that the model stores
    assert coded.dtype == np.int8
    assert np.array_equal(coded.astype(int) + 128, levels)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (np.zeros((2, 9)), r"ranges must be \(2, 10\) numbers, the minima and the maxima .* float64 of shape \(2, 9\)"),
        (np.zeros(10), r"of shape \(10,\)"), ("int8", r"ranges must be \(2, 10\) numbers"),
        ([[0.0], [0.0, 1.0]], r"ranges must be \(2, 10\) numbers"), (np.zeros((2, 10), bool), "not bool of shape"),
        (np.stack([Z[0], np.where(np.arange(10) == 4, Z[0] - 1, Z[0])]), "ranges: dimension 4 goes from"),
        (np.full((2, 10), np.nan), "ranges: dimension 0 goes from nan to nan; give a finite minimum"),
        (np.outer([-1e300, 1], np.ones(10)), "dimension 0 goes from -inf to 1"),
        (np.outer([-3e38, 3e38], np.ones(10)), "dimension 0 goes from -3e.38 to 3e.38"),
    ],
)  # fmt: skip
def test_ranges_that_are_none(ranges, message):
    with pytest.raises(UsageError, match=message):
        check_ranges(ranges, "int8", 10)
    assert check_ranges(None, "float32", 10) is None
    with pytest.raises(UsageError, match=r"ranges= are those of int8 and uint8, and precision is 'ubinary': leave"):
        check_ranges(np.zeros((2, 10)), "ubinary", 10)


def test_signs_are_packed_eight_to_a_byte():
    z = np.array([[1, -1, 1, 0, 2, 3, -4, 1, 5]])
    assert quantise(z, "ubinary", False, None).tolist() == [[0b10101101, 0b10000000]]
    assert quantise(z, "binary", False, None).tolist() == [[0b10101101 - 128, 0]]
    assert quantise(z, "binary", False, None).dtype == np.int8


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (Z[0], "of shape"), (Z[:, :3], "of shape"), ([["a"] * 10], "numbers of shape"), ([[1], [1, 2]], "one length"),
        (np.where(Z[3, 3] == Z, np.nan, Z), "row 3 holds NaN"), (np.full((1, 10), 1e300), "row 0 holds NaN or inf"),
    ],
)  # fmt: skip
def test_arrays_become_floats_or_are_refused(array, message):
    assert check_pooled([[1] * 10], 10, np.float32).dtype == np.float32
    with pytest.raises(FastflowError, match=message):
        check_pooled(array, 10, np.float32)


@pytest.mark.parametrize(
    ("array", "message"), [(np.zeros((1, 1, 1)), "of shape"), (["a"], "numbers"), ([np.nan], "row 0 holds NaN")]
)
def test_vectors_become_rows_or_are_refused(array, message):
    assert check_vectors([1, 2], np.float64).shape == (1, 2)
    with pytest.raises(FastflowError, match=message):
        check_vectors(array, np.float32)


def test_cosines_are_those_of_the_definition():
    z = Z.astype(np.float64)
    assert np.abs(compute_paired_cosine(z, z[::-1]) - np.diag(cosine(z, z[::-1]))).max() <= 1e-12
    assert not cosine(np.zeros((1, 10)), z).any()


@pytest.mark.parametrize(
    "compute", [cosine, compute_paired_cosine, lambda a, b: exact(a[0], b, "cosine")], ids=["all", "paired", "search"]
)
def test_no_cosine_is_beyond_1(compute):
    rows = np.random.default_rng(0).normal(size=(300, 1, 7))
    assert max(np.abs(compute(scale * row, row)).max() for row in rows for scale in (3, -3)) == 1


# ---- rows and similarities

FIRST = np.arange(20, dtype=np.float32).reshape(5, 4)
SECOND = -np.arange(12, dtype=np.float32).reshape(3, 4)
WHOLE = np.concatenate([FIRST, SECOND])


@pytest.mark.parametrize(
    "rows",
    [slice(None), slice(0, 1), slice(3, 7), slice(5, 8), slice(6, 99), slice(8, 9), slice(None, None, 3),
     np.array([7, 0, 5, 4, 7]), np.array([], np.int64), np.array([4, 3]), np.array([5])],
)  # fmt: skip
def test_rows_are_those_of_the_two_in_order(rows):
    joined = Joined(FIRST, SECOND)
    assert (len(joined), joined.shape) == (8, (8, 4))
    found = joined[rows]
    assert found.dtype == np.float32
    assert np.array_equal(found, WHOLE[rows])
    assert Joined(FIRST, SECOND.astype(np.float64))[rows].dtype == np.float64


A, B = (np.random.default_rng(seed).normal(size=(n, 7)) for seed, n in ((0, 5), (1, 11)))
WANTED = {
    "cosine": 1 - cdist(A, B, "cosine"),
    "dot": A @ B.T,
    "euclidean": -cdist(A, B),
    "manhattan": -cdist(A, B, "cityblock"),
}


@pytest.mark.parametrize("block", [1, 100, 1 << 22])
@pytest.mark.parametrize("name", WANTED)
def test_similarities(name, block, monkeypatch):
    assert set(WANTED) == set(SIMILARITIES)
    monkeypatch.setattr(vectors, "BLOCK", block)
    np.testing.assert_allclose(SIMILARITIES[name](A, B), WANTED[name], atol=1e-12)
    assert SIMILARITIES[name](A.astype(np.float32), B.astype(np.float32)).dtype == np.float32
    assert SIMILARITIES[name](A[:0], B).shape == (0, 11)
    with pytest.raises(FastflowError, match="similarity takes vectors of one width, not 7 and 3"):
        SIMILARITIES[name](A, B[:, :3])
