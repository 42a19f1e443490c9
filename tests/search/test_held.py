"""Rows in memory: the results of the file itself, and of codes those that full comparison keeps."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.errors import FastflowError, UsageError
from fastflow.search import Index, held
from fastflow.search.codes import Bytes
from fastflow.stages.vectors import quantise

from support.databases import make
from support.rows import data

X = data(400, dim=32, seed=5).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "x.db", X, {}, n=list(range(400)))


@pytest.mark.parametrize("where", [None, "n % 3 = 0", "n = 7", "0"])
def test_vectors_in_memory_give_what_the_file_gives(path, monkeypatch, where):
    monkeypatch.setattr(held, "BLOCK", 64)
    with Index(path) as read, Index(path, hold="vectors") as kept:
        assert kept.search(X[:5], 12, where) == read.search(X[:5], 12, where)


@pytest.mark.parametrize("where", [None, "n % 3 = 0", "n = 7", "0"])
def test_codes_give_exact_scores_of_the_rows_they_find(path, where):
    with Index(path) as read, Index(path, hold="int8") as kept:
        assert kept.search(X[:5], 12, where) == read.search(X[:5], 12, where)


@pytest.mark.slow
def test_without_comparing_in_full_bytes_would_miss_rows(path, monkeypatch):
    """The order of codes is not that of the vectors: the factor is what mends it."""
    with Index(path) as read, Index(path, hold="int8") as kept:
        want = [[hit.row for hit in of_one] for of_one in read.search(X, 10)]
        assert [[hit.row for hit in of_one] for of_one in kept.search(X, 10)] == want
        monkeypatch.setattr(Bytes, "factor", 1)
        assert [[hit.row for hit in of_one] for of_one in kept.search(X, 10)] != want


@pytest.mark.parametrize("hold", ["vectors", "int8"])
@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_files_of_other_precisions(tmp_path, dtype, hold):
    x = (X / np.abs(X).max() * 127).astype(dtype)
    with Index(make(tmp_path / "x.db", x)) as read, Index(tmp_path / "x.db", hold=hold) as kept:
        assert kept.search(X[:5], 10) == read.search(X[:5], 10)


@pytest.mark.parametrize("hold", ["vectors", "int8"])
def test_uint8_is_int8_with_another_zero(tmp_path, hold):
    x = (X / np.abs(X).max() * 127).astype(np.int8)
    path = make(tmp_path / "x.db", (x.astype(int) + 128).astype(np.uint8), {"precision": "uint8"})
    with Index(make(tmp_path / "y.db", x)) as signed, Index(path) as read, Index(path, hold=hold) as kept:
        assert signed.search(X[:5], 10) == kept.search(X[:5], 10) == read.search(X[:5], 10)


@pytest.mark.parametrize("precision", ["ubinary", "binary"])
def test_bits_are_held_as_bits(tmp_path, precision):
    packed = quantise(X, precision, False, None)
    path = make(tmp_path / "x.db", packed, {"precision": precision, "dim": 32})
    with Index(path) as read, Index(path, hold="vectors") as kept:
        for where in (None, "row % 3 = 0"):
            assert kept.search(X[:5], 30, where) == read.search(X[:5], 30, where)
    with pytest.raises(UsageError, match="holds bits, of which no int8 can be made"):
        Index(path, hold="int8")


@pytest.mark.parametrize("hold", [None, "vectors", "int8"])
def test_no_rows(tmp_path, hold):
    with Index(make(tmp_path / "x.db", X[:0]), hold=hold) as index:
        assert index.search(X[0]) == []
        assert index.search(X[:2]) == [[], []]


def test_refusals(path, tmp_path):
    with pytest.raises(UsageError, match="hold is vectors, int8 or None, not 'all'"):
        Index(path, hold="all")
    with pytest.raises(UsageError, match=r"int8 codes cannot rank by euclidean: open .* with hold='vectors'"):
        held.Held(Index(path)._source, "int8", "euclidean", None)


@pytest.mark.parametrize("rows", [399, 401])
def test_a_file_that_changes_while_it_is_read(path, rows, monkeypatch):
    source = Index(path)._source
    monkeypatch.setattr(type(source), "count", lambda self: rows)
    with pytest.raises(FastflowError, match=r"x\.db was changed while it was read"):
        held.Held(source, "vectors", "cosine", None)
