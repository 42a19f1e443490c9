"""The best rows are the best by float64 on every row, to the last bit, whether rows are read or held."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.errors import UsageError
from fastflow.kernels.search import reference
from fastflow.search import Index, scan
from fastflow.search.scan import (
    MANY,
    PIECE,
    SIGNS,
    Best,
    Bits,
    Bytes,
    encode_bytes,
    exact,
    far,
    find_largest,
    norms,
)
from fastflow.transforms.vectors import SIMILARITIES, cosine, quantise

from support.databases import make
from support.refusals import refuses
from support.rows import data

DIM = 33
RNG = np.random.default_rng(0)
BASE = RNG.normal(size=(1, DIM)).astype(np.float32)


def near(rows):
    return np.nextafter(np.repeat(BASE, rows, 0), np.float32(np.inf) * RNG.choice([-1, 1], (rows, DIM))).astype(
        np.float32
    )


def scaled(rows, low, high):
    x = RNG.normal(size=(rows, DIM)) * 10 ** RNG.uniform(low, high, (rows, 1))
    return x.clip(-3e38, 3e38).astype(np.float32)


KINDS = {
    "random": data(500, DIM, 1).astype(np.float32),
    "duplicates": BASE[RNG.integers(0, 1, 500)],
    "ties": RNG.integers(-1, 2, (500, DIM)).astype(np.float32),
    "multiples": BASE * RNG.integers(1, 9, (500, 1)).astype(np.float32),
    "last bits": near(500),
    "zeros": np.concatenate([np.zeros((250, DIM), np.float32), -np.abs(near(250))]),
    "denormal": scaled(500, -44, -38),
    "tiny": scaled(500, -30, -8),
    "huge": scaled(500, 15, 38.4),
    "all sizes": scaled(500, -44, 38.4),
}
KINDS["everything"] = np.concatenate(list(KINDS.values()))[RNG.permutation(500 * len(KINDS))]


def brute(query, vectors, k, similarity):
    """The k best rows by exact, as pairs."""
    scores = exact(query.astype(np.float64), vectors, similarity)
    order = np.lexsort((np.arange(len(vectors)), -scores))
    order = order[~np.isnan(scores[order])][:k]
    return list(zip(order.tolist(), scores[order].tolist(), strict=True))


def searched(queries, vectors, k, similarity, cut=128):
    best = Best(queries, k, similarity)
    for start in range(0, len(vectors), cut):
        best.add(np.arange(start, min(start + cut, len(vectors))), vectors[start : start + cut])
    return best.list_best()


OF_NUMBERS = {"float16": data(300, DIM, 2).clip(-100, 100).astype(np.float16)}
OF_NUMBERS |= {"int8": OF_NUMBERS["float16"].astype(np.int8), "random": KINDS["random"], "ties": KINDS["ties"]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("size", [1, 1e-40, 1e30])
def test_the_result_is_that_of_float64_on_every_row(kind, similarity, size):
    vectors = KINDS[kind]
    queries = np.concatenate([BASE, vectors[:2], RNG.normal(size=(MANY, DIM))]) * np.float64(size)
    queries = queries.clip(-3e38, 3e38).astype(np.float32)
    blocks = [(1, 5000), (10, 128), (700, 1000)] + ([] if kind == "everything" else [(60, 5)])
    for some in (queries[:1], queries[:4], queries):
        for k, cut in blocks:
            want = [brute(query, vectors, k, similarity) for query in some]
            assert searched(some, vectors, k, similarity, cut) == want


@pytest.mark.parametrize("kind", OF_NUMBERS)
@pytest.mark.parametrize("similarity", sorted(SIMILARITIES))
def test_numbers_of_every_kind_by_every_similarity(kind, similarity):
    queries, vectors = OF_NUMBERS[kind][:10].astype(np.float32), OF_NUMBERS[kind][10:]
    scores = SIMILARITIES[similarity](queries.astype(np.float64), vectors.astype(np.float64))
    for k, cut in ((1, 1), (7, 32), (400, 1000)):
        found = searched(queries, vectors, k, similarity, cut)
        assert found == [brute(query, vectors, k, similarity) for query in queries]
        assert np.allclose([[score for _, score in of_one] for of_one in found], -np.sort(-scores)[:, :k], rtol=1e-9)


@pytest.mark.parametrize("dim", [8, 13, 256])
def test_bits_are_compared_by_the_cosine_of_their_signs(dim):
    x = np.random.default_rng(2).normal(size=(100, dim))
    packed, signs = np.packbits(x > 0, axis=1), np.where(x > 0, 1.0, -1.0)
    assert np.allclose(exact(x[0], packed, SIGNS), signs @ signs[0] / dim)
    (found,) = searched(x[:1], packed, 20, SIGNS, 7)
    assert [row for row, _ in found] == np.lexsort((np.arange(100), -(signs @ signs[0])))[:20].tolist()


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("sign", [None, "by turns"])
def test_products_as_wrong_as_they_may_be_change_nothing(monkeypatch, similarity, sign):
    """The slack covers the error that the products are allowed, where it does most harm."""
    vectors = np.concatenate([KINDS[kind] for kind in ("random", "last bits", "multiples", "ties", "duplicates")])
    queries = np.concatenate([BASE, vectors[:3]])
    rng = np.random.default_rng(1)

    def wrong(rows, rough, threads=None):
        x, q = rows.astype(np.float64), rough.astype(np.float64)
        most = 2.0**-23 * DIM * np.linalg.norm(x, axis=1) * np.linalg.norm(q, axis=1)[:, None]
        signs = rng.choice([-1, 1], most.shape) if sign is None else np.where(np.arange(len(x)) % 2, 1, -1)
        return (q @ x.T + signs * most).astype(np.float32)

    monkeypatch.setattr(scan, "products", wrong)
    for k in (1, 10, 100):
        want = [brute(query, vectors, k, similarity) for query in queries]
        assert searched(queries, vectors, k, similarity) == want


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_few_rows_are_compared_in_float64(monkeypatch, similarity):
    compared, vectors = [], data(20_000, DIM, 2).astype(np.float32)
    monkeypatch.setattr(scan, "exact", lambda q, x, how: compared.append(len(x)) or exact(q, x, how))
    searched(vectors[:1], vectors, 10, similarity, 4096)
    assert 10 <= sum(compared) < 200


def test_many_candidates_are_widened_a_piece_at_a_time(monkeypatch):
    compared = []
    monkeypatch.setattr(scan, "exact", lambda q, x, how: compared.append(len(x)) or exact(q, x, how))
    vectors = np.repeat(BASE, 2 * PIECE + 5, 0)
    assert [row for row, _ in searched(BASE, vectors, 4, "cosine", len(vectors))[0]] == [0, 1, 2, 3]
    assert compared == [PIECE, PIECE, 5]


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_rows_with_nan_are_not_found_and_hide_no_others(similarity):
    vectors = KINDS["random"][:100].copy()
    vectors[[3, 50], 5] = np.nan
    found = searched(vectors[:2], vectors, 200, similarity, 64)
    assert found == [brute(query, vectors, 200, similarity) for query in vectors[:2]]
    assert sorted(row for row, _ in found[0]) == [row for row in range(100) if row not in (3, 50)]


def test_lengths_hold_over_the_range_of_float32():
    for x in KINDS.values():
        want = np.linalg.norm(x.astype(np.float64), axis=1)
        assert np.allclose(norms(x), want, rtol=1e-6, atol=1e-45) or (want > 3.4e38).any()
        assert np.array_equal(norms(x) == 0, ~x.any(axis=1))
    lengths = np.array([0, 1e-45, 1e-20, 1, 1e18, 1e19, np.inf, np.nan], np.float32)
    assert far(lengths).tolist() == [False, True, True, False, False, True, True, True]


def test_numbers_that_end_the_range_and_no_extension(monkeypatch):
    vectors = KINDS["random"][:100].copy()
    vectors[7, 2], query = np.inf, np.ones((1, DIM), np.float32)
    assert searched(query, vectors, 3, "dot")[0][0] == (7, np.inf)
    assert 7 not in [row for row, _ in searched(query, vectors, 200, "cosine")[0]]
    few = np.array([[0, 0], [1, 0], [-1, 0]], np.float32)
    assert searched(np.array([[1.0, 0]]), few, 3, "cosine", 2) == [[(1, 1.0), (0, 0.0), (2, -1.0)]]
    assert [score for _, score in searched(np.zeros((1, 2)), few, 3, "cosine", 2)[0]] == [0, 0, 0]
    monkeypatch.setattr(scan, "kernels", reference)
    assert searched(BASE, KINDS["everything"], 20, "dot") == [brute(BASE[0], KINDS["everything"], 20, "dot")]


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
        bits = scan.kernels.hammings(rows.view(np.uint8), rows[3].view(np.uint8))
        found = [scan.kernels.dots(rows, rows[3]).tolist(), bits.tolist()]
        assert found == want
        monkeypatch.setattr(scan, "kernels", reference)


X = data(400, dim=32, seed=5).astype(np.float32)
SMALL = (X / np.abs(X).max() * 127).astype(np.int8)
DRAWS = np.random.default_rng(0)
TIES = DRAWS.integers(-1, 2, (400, 32)).astype(np.float32)
SIZES = (DRAWS.normal(size=(400, 32)) * 10 ** DRAWS.uniform(-44, 38.4, (400, 1))).clip(-3e38, 3e38).astype(np.float32)
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
    monkeypatch.setattr(scan, "BLOCK", 64)
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
    said = "int8 codes cannot rank by euclidean: open …with hold='vectors'"
    refuses(lambda how: scan.MemoryIndex(source, "int8", how, None), "euclidean", said)
    for rows in (399, 401):
        monkeypatch.setattr(type(source), "count", lambda self, rows=rows: rows)
        refuses(
            lambda how: scan.MemoryIndex(source, "vectors", how, None), "cosine", "x.db was changed while it was read"
        )
