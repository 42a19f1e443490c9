"""Rows in memory: the results of the file itself, and codes that find rows to compare in full."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.errors import UsageError
from fastflow.kernels.search import reference
from fastflow.search import Index, codes, held
from fastflow.search.codes import Bits, Bytes, dots, encode_bytes, find_largest, hammings
from fastflow.search.scan import exact
from fastflow.stages.vectors import cosine, quantise

from support.databases import make
from support.refusals import refuses
from support.rows import data


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_bytes_rank_nearly_as_the_vectors(similarity):
    x = data(300, dim=64, seed=4).astype(np.float32)
    codes = Bytes(300, 64, 1, similarity)
    for at in (0, 100, 200):
        codes.put(at, x[at : at + 100])
    want = cosine(x[:1], x)[0] if similarity == "cosine" else x @ x[0]
    found = codes.scores(x[0])
    found *= want[0] / found[0]  # the scale of the query is left out
    assert np.abs(found - want).max() < 0.02 * np.abs(want).max()
    assert not np.array_equal(found, want)


def test_the_codes_of_a_file_of_int8_are_its_own():
    x = np.random.default_rng(0).integers(-127, 128, (50, 9), np.int8)
    codes = Bytes(50, 9, 1, "cosine")
    codes.put(0, x)
    query = x[3].astype(np.float32) * 127 / np.abs(x[3]).max()
    exact = np.rint(query).astype(np.int64)
    want = (x.astype(np.int64) @ exact) / np.linalg.norm(x.astype(np.float64), axis=1)
    assert np.allclose(codes.scores(query), want, rtol=1e-5)


def test_codes_come_back_within_half_a_step():
    x = data(20).astype(np.float32)
    x[4] = 0
    codes, scale = encode_bytes(x)
    assert codes.dtype == np.int8
    assert (np.abs(codes).max(axis=1)[np.arange(20) != 4] == 127).all()
    assert (np.abs(codes * scale[:, None] - x) <= 0.5001 * scale[:, None]).all()


def test_bits_count_signs_that_agree():
    x = np.random.default_rng(0).normal(size=(40, 13)).astype(np.float32)
    codes = Bits(40, 13, 1)
    codes.put(0, np.packbits(x > 0, axis=1))
    assert codes.scores(x[2]).tolist() == (-((x > 0) != (x[2] > 0)).sum(axis=1)).tolist()


@pytest.mark.parametrize("kind", [float, int])
def test_places_of_the_largest(kind):
    rng = np.random.default_rng(0)
    for size in (1, 5, 100, 1000):
        scores = (rng.normal(size=size) * 5).astype(kind)  # whole numbers: with many ties
        for count in (1, 3, 40, size, size + 1):
            want = np.sort(np.lexsort((np.arange(size), -scores))[:count])
            assert find_largest(scores, count).tolist() == want.tolist()


def test_integers_are_exact_with_and_without_a_compiler(monkeypatch):
    rows = np.random.default_rng(0).integers(-128, 128, (30, 17), np.int8)
    want = [
        (rows.astype(int) @ rows[3].astype(int)).tolist(),
        np.unpackbits((rows ^ rows[3]).view(np.uint8), axis=1).sum(1).tolist(),
    ]
    assert reference.dots(rows, rows[3]).tolist() == want[0]
    for _ in range(2):
        found = [dots(rows, rows[3]).tolist(), hammings(rows.view(np.uint8), rows[3].view(np.uint8)).tolist()]
        assert found == want
        monkeypatch.setattr(codes, "cpu", None)


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
    if kind == "uint8":  # int8 with another zero
        with Index(make(tmp_path / "signed.db", *FILES["int8"], n=list(range(400)))) as signed:
            assert signed.search(X[:5], 12, where) == want
    for hold in ("vectors", "int8"):
        if hold == "int8" and kind.endswith("binary"):
            with pytest.raises(UsageError, match="holds bits, of which no int8 can be made"):
                Index(path, hold=hold)
            continue
        with Index(path, hold=hold, threads=2) as kept:
            assert kept.search(X[:5], 12, where) == want
            assert kept.search(X[0], 12, where) == want[0]


@pytest.mark.slow
def test_without_comparing_in_full_bytes_would_miss_rows(path, monkeypatch):
    with Index(path) as read, Index(path, hold="int8") as kept:
        want = [[hit.row for hit in of_one] for of_one in read.search(X, 10)]
        assert [[hit.row for hit in of_one] for of_one in kept.search(X, 10)] == want
        monkeypatch.setattr(Bytes, "factor", 1)
        assert [[hit.row for hit in of_one] for of_one in kept.search(X, 10)] != want


def test_refusals(path, monkeypatch):
    source = Index(path)._source
    refuses(lambda hold: Index(path, hold=hold), "all", "hold is vectors, int8 or None, not 'all'")
    refuses(lambda how: held.Held(source, "int8", how, None), "euclidean",
            "int8 codes cannot rank by euclidean: open …with hold='vectors'")  # fmt: skip
    for rows in (399, 401):
        monkeypatch.setattr(type(source), "count", lambda self, rows=rows: rows)
        refuses(lambda how: held.Held(source, "vectors", how, None), "cosine", "x.db was changed while it was read")
