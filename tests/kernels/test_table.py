"""The mean of a text's rows: its definition in float64, and the compiled kernel with the bits of NumPy in float32."""

from itertools import pairwise, product

import numpy as np
import pytest

from fastflow.kernels.table.cpu import CpuTable
from fastflow.kernels.table.reference import RUN, STORED, WHOLE, Table, pool

LENGTHS = (1, 0, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 0)
WIDTHS = (1, 3, 7, 8, 16, 31, 33, 64, 127, 128, 129, 256, 300)
VOCABULARY = 400


def make_table(width, dtype, scaled=False, clusters=0, seed=0, run=WHOLE):
    rng = np.random.default_rng(seed)
    drawn = rng.normal(0, 1, (clusters or VOCABULARY, width))
    rows = np.clip(drawn * 40, -127, 127).astype(dtype) if dtype == np.int8 else drawn.astype(dtype)
    scales = rng.uniform(-2, 2, VOCABULARY).astype(np.float32) if scaled else None
    return Table(rows, scales, rng.integers(0, clusters, VOCABULARY).astype(np.int32) if clusters else None, run)


def texts(lengths=LENGTHS, seed=1):
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, sum(lengths)).astype(np.int32)
    return ids, np.cumsum([0, *lengths])


def weights_of(weighted):
    return np.random.default_rng(2).uniform(0.01, 3, VOCABULARY).astype(np.float32) if weighted else None


def by_hand(table, ids, offsets, weights):
    """One text at a time, one token at a time."""
    out = np.zeros((len(offsets) - 1, table.rows.shape[1]))
    for i, (start, stop) in enumerate(pairwise(offsets)):
        total = 0.0
        for token in ids[start:stop]:
            weight = 1.0 if weights is None else float(weights[token])
            scale = 1.0 if table.scales is None else float(table.scales[token])
            row = token if table.mapping is None else table.mapping[token]
            out[i] += weight * scale * table.rows[row].astype(np.float64)
            total += weight
        out[i] /= total or 1.0
    return out


@pytest.mark.parametrize("dtype", STORED)
def test_reference_is_the_mean(dtype):
    for scaled, clusters, weighted in product((False, True), (0, 50), (False, True)):
        table, weights = make_table(33, dtype, scaled, clusters), weights_of(weighted)
        want = by_hand(table, *texts(), weights)
        np.testing.assert_allclose(pool(table, *texts(), weights, np.float64), want, rtol=1e-12, atol=1e-12)
        assert not want[[1, -1]].any()
        assert np.abs(want[0]).max() > 0.1


@pytest.mark.parametrize("dtype", STORED)
def test_compiled_has_the_bits_of_numpy(float_isa, dtype):
    for width, run, scaled, weighted in product(WIDTHS, (RUN, WHOLE), (False, True), (False, True)):
        table, weights = make_table(width, dtype, scaled, run=run), weights_of(weighted)
        found = CpuTable(table, weights, isa=float_isa)(*texts())
        assert found.dtype == np.float32
        plain = pool(table, *texts(), weights, np.float32)
        if width > 1:  # NumPy adds a single column in pairs
            np.testing.assert_array_equal(found, plain)
        exact = pool(table, *texts(), weights, np.float64)
        assert np.abs(found - exact).max() <= 4e-7 * max(1, np.abs(exact).max() * 8)
    mapped = make_table(40, np.float16, scaled=True, clusters=9)
    found = CpuTable(mapped, isa=float_isa)(*texts())
    np.testing.assert_array_equal(found, pool(mapped, *texts(), None, np.float32))


def test_runs_keep_a_long_text_exact(float_isa):
    table = make_table(8, np.float32)
    ids, offsets = np.repeat(np.arange(2, dtype=np.int32), 50_000), np.array([0, 100_000])
    exact = pool(table, ids, offsets, None, np.float64)
    for run, close in ((RUN, True), (WHOLE, False)):
        found = CpuTable(table._replace(run=run), isa=float_isa)(ids, offsets)
        assert (np.abs(found - exact).max() < 2e-7 * np.abs(exact).max()) == close


def test_every_half_is_widened_exactly(float_isa):
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 32)
    table = Table(halves)
    ids = np.arange(len(halves), dtype=np.int32)
    found = CpuTable(table, isa=float_isa)(ids, np.arange(len(halves) + 1))
    with np.errstate(invalid="ignore"):  # arm64 tells of a signalling NaN
        exact = halves.astype(np.float32)
    np.testing.assert_array_equal(found, exact)


def test_reference_in_blocks(monkeypatch):
    table, weights = make_table(16, np.float32), weights_of(True)
    whole = pool(table, *texts(), weights, np.float64)
    monkeypatch.setattr("fastflow.kernels.table.reference.BLOCK", 20)
    np.testing.assert_array_equal(pool(table, *texts(), weights, np.float64), whole)


def test_no_texts():
    assert CpuTable(make_table(8, np.float32))(np.zeros(0, np.int32), np.zeros(1, np.int64)).shape == (0, 8)
    assert pool(make_table(8, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64), None, np.float32).shape == (
        0,
        8,
    )
