"""The definition of the scans, against Python's own integers."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.kernels.search import reference


def codes_of(dtype, rows, width, seed=0):
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    codes = rng.integers(limits.min, limits.max, (rows, width), dtype, endpoint=True)
    codes[0], codes[1] = limits.min, limits.max  # the largest sums
    return codes


@pytest.mark.parametrize("width", [1, 7, 300])
def test_dot_products(width, monkeypatch):
    monkeypatch.setattr(reference, "WIDENED", 1000)
    codes = codes_of(np.int8, 20, width)
    for query in codes[:4]:
        want = [sum(a * b for a, b in zip(row, query.tolist(), strict=True)) for row in codes.tolist()]
        assert reference.dots(codes, query).tolist() == want


@pytest.mark.parametrize("width", [1, 7, 300])
def test_bits_that_differ(width, monkeypatch):
    monkeypatch.setattr(reference, "WIDENED", 1000)
    codes = codes_of(np.uint8, 20, width)
    for query in codes[:4]:
        want = [sum((a ^ b).bit_count() for a, b in zip(row, query.tolist(), strict=True)) for row in codes.tolist()]
        assert reference.hammings(codes, query).tolist() == want


@pytest.mark.parametrize(
    ("codes", "query"),
    [
        (np.zeros((2, 3), np.uint8), np.zeros(3, np.int8)),
        (np.zeros((2, 3), np.int8), np.zeros(4, np.int8)),
        (np.zeros((2, 6), np.int8)[:, ::2], np.zeros(3, np.int8)),
        (np.zeros((2, 0), np.int8), np.zeros(0, np.int8)),
        (np.zeros((1, 65537), np.int8), np.zeros(65537, np.int8)),
        (np.zeros(3, np.int8), np.zeros(3, np.int8)),
    ],
)
def test_other_shapes_and_types_are_refused(codes, query):
    with pytest.raises(ValueError, match="codes"):
        reference.dots(codes, query)
