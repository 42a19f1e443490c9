"""Rows in memory: the results of the file itself, and of codes those that full comparison keeps."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.errors import FastflowError, UsageError
from fastflow.search import Index, held
from fastflow.search.codes import Bytes
from fastflow.search.scan import exact
from fastflow.stages.vectors import quantise

from support.databases import make
from support.rows import data

X = data(400, dim=32, seed=5).astype(np.float32)
SMALL = (X / np.abs(X).max() * 127).astype(np.int8)
RNG = np.random.default_rng(0)
TIES = RNG.integers(-1, 2, (400, 32)).astype(np.float32)
SIZES = (RNG.normal(size=(400, 32)) * 10 ** RNG.uniform(-44, 38.4, (400, 1))).clip(-3e38, 3e38).astype(np.float32)
FILES = {
    "float32": (X, {}),
    "ties": (TIES, {}),
    "all sizes": (SIZES, {}),
    "float16": (SMALL.astype(np.float16), {}),
    "int8": (SMALL, {"precision": "int8"}),
    "uint8": ((SMALL.astype(int) + 128).astype(np.uint8), {"precision": "uint8"}),
    "ubinary": (quantise(X, "ubinary", False, None), {"precision": "ubinary", "dim": 32}),
    "binary": (quantise(X, "binary", False, None), {"precision": "binary", "dim": 32}),
    "no rows": (X[:0], {}),
}
WHERE = {None: slice(None), "n % 3 = 0": slice(0, None, 3), "n > 300": slice(301, None), "n = 7": slice(7, 8)}


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "x.db", X, {}, n=list(range(400)))


@pytest.mark.parametrize("where", [*WHERE, "0"])
@pytest.mark.parametrize("kind", FILES)
def test_rows_in_memory_give_what_the_file_gives(tmp_path, monkeypatch, kind, where):
    monkeypatch.setattr(held, "BLOCK", 64)
    vectors, meta = FILES[kind]
    path = make(tmp_path / "x.db", vectors, meta, n=list(range(len(vectors))))
    with Index(path, threads=2) as read:
        want = read.search(X[:5], 12, where)
    rows = np.arange(len(vectors))[WHERE.get(where, slice(0))]
    if vectors.dtype == np.float32:
        scores = np.array([exact(query.astype(np.float64), vectors[rows], "cosine") for query in X[:5]])
        best = [rows[np.lexsort((rows, -of_one))[:12]].tolist() for of_one in scores]
        assert [[hit.row for hit in of_one] for of_one in want] == best
    assert [len(of_one) for of_one in want] == [min(12, len(rows))] * 5
    for hold in ("vectors", "int8"):
        if hold == "int8" and kind.endswith("binary"):
            with pytest.raises(UsageError, match="holds bits, of which no int8 can be made"):
                Index(path, hold=hold)
            continue
        with Index(path, hold=hold, threads=2) as kept:
            assert kept.search(X[:5], 12, where) == want
            assert kept.search(X[0], 12, where) == want[0]


def test_uint8_is_int8_with_another_zero(tmp_path):
    paths = [make(tmp_path / f"{kind}.db", *FILES[kind]) for kind in ("int8", "uint8")]
    signed, unsigned = (Index(each).search(X[:5], 10) for each in paths)
    assert signed == unsigned


@pytest.mark.slow
def test_without_comparing_in_full_bytes_would_miss_rows(path, monkeypatch):
    """The order of codes is not that of the vectors: the factor is what mends it."""
    with Index(path) as read, Index(path, hold="int8") as kept:
        want = [[hit.row for hit in of_one] for of_one in read.search(X, 10)]
        assert [[hit.row for hit in of_one] for of_one in kept.search(X, 10)] == want
        monkeypatch.setattr(Bytes, "factor", 1)
        assert [[hit.row for hit in of_one] for of_one in kept.search(X, 10)] != want


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
