"""Rows in memory: the results of the file itself, and of codes those that full comparison keeps."""

from __future__ import annotations

import numpy as np
import pytest
from databases import make
from rows import data

from fastflow.errors import FastflowError, UsageError
from fastflow.search import Index, held
from fastflow.search.codes import Bits, Bytes

X = data(400, dim=32, seed=5).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "x.db", X, {}, n=list(range(400)))


@pytest.mark.parametrize("where", [None, "n % 3 = 0", "n = 7", "0"])
def test_vectors_in_memory_give_what_the_file_gives(path, monkeypatch, where):
    monkeypatch.setattr(held, "BLOCK", 64)
    with Index(path) as read, Index(path, hold="vectors") as kept:
        assert kept.search(X[:5], 12, where) == read.search(X[:5], 12, where)


@pytest.mark.parametrize("hold", ["int8", "bits"])
def test_codes_give_exact_scores_of_the_rows_they_find(path, hold, monkeypatch):
    monkeypatch.setattr(Bits, "factor", 400)  # every row is compared in full
    with Index(path) as read, Index(path, hold=hold) as kept:
        for where in (None, "n % 3 = 0", "0"):
            assert kept.search(X[:5], 12, where) == read.search(X[:5], 12, where)


def test_without_comparing_in_full_bytes_would_miss_rows(path, monkeypatch):
    """The order of codes is not that of the vectors: the factor is what mends it."""
    with Index(path) as read, Index(path, hold="int8") as kept:
        want = [[hit.row for hit in of_one] for of_one in read.search(X, 10)]
        assert [[hit.row for hit in of_one] for of_one in kept.search(X, 10)] == want
        monkeypatch.setattr(Bytes, "factor", 1)
        assert [[hit.row for hit in of_one] for of_one in kept.search(X, 10)] != want


@pytest.mark.parametrize(("dtype", "hold", "same"), [("int8", "vectors", True), ("int8", "int8", True),
                                                     ("int8", "bits", False), ("float16", "int8", True)])  # fmt: skip
def test_files_of_other_precisions(tmp_path, dtype, hold, same):
    x = (X / np.abs(X).max() * 127).astype(dtype)
    with Index(make(tmp_path / "x.db", x)) as read, Index(tmp_path / "x.db", hold=hold) as kept:
        pairs = zip(read.search(X[:5], 10), kept.search(X[:5], 10), strict=True)
        for want, found in pairs:
            assert found[0] == want[0]
            assert not same or found == want


@pytest.mark.parametrize("hold", ["vectors", "bits"])
def test_a_file_of_bits_is_held_as_bits(tmp_path, hold):
    packed = np.packbits(X > 0, axis=1)
    path = make(tmp_path / "x.db", packed, {"precision": "ubinary", "dim": 32})
    with Index(path) as read, Index(path, hold=hold) as kept:
        assert kept.search(X[:5], 30) == read.search(X[:5], 30)
    with pytest.raises(UsageError, match="holds bits alone, of which no int8 can be made"):
        Index(path, hold="int8")


@pytest.mark.parametrize("hold", [None, "vectors", "int8", "bits"])
def test_no_rows(tmp_path, hold):
    with Index(make(tmp_path / "x.db", X[:0]), hold=hold) as index:
        assert index.search(X[0]) == []
        assert index.search(X[:2]) == [[], []]


def test_refusals(path, tmp_path):
    with pytest.raises(UsageError, match=r"hold is one of vectors, int8, bits, or None, not 'all'"):
        Index(path, hold="all")
    with pytest.raises(UsageError, match=r"bits codes cannot rank by dot: open .* with hold='vectors'"):
        held.Held(Index(path)._source, "bits", "dot", None)


@pytest.mark.parametrize("rows", [399, 401])
def test_a_file_that_changes_while_it_is_read(path, rows, monkeypatch):
    source = Index(path)._source
    monkeypatch.setattr(type(source), "count", lambda self: rows)
    with pytest.raises(FastflowError, match=r"x\.db was changed while it was read"):
        held.Held(source, "vectors", "cosine", None)
