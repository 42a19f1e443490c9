"""The best rows: those of a float64 sort, ties by row, whatever the blocks."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.search.scan import SIGNS, Best, exact, norms
from fastflow.stages.similarity import SIMILARITIES

from support.rows import data


def searched(queries, vectors, k, similarity, cut, rows=None):
    best, rows = Best(queries, k, similarity), np.arange(len(vectors)) if rows is None else rows
    for start in range(0, len(vectors), cut):
        best.add(rows[start : start + cut], vectors[start : start + cut])
    return best.result()


def sorted_whole(queries, vectors, k, similarity):
    scores = SIMILARITIES[similarity](queries.astype(np.float64), vectors.astype(np.float64))
    return [np.lexsort((np.arange(len(vectors)), -row))[:k].tolist() for row in scores]


@pytest.mark.slow
@pytest.mark.parametrize("similarity", sorted(SIMILARITIES))
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("k", [1, 7, 400])
def test_the_rows_are_those_of_a_whole_sort(similarity, dtype, k):
    x = data(310, seed=1).clip(-100, 100).astype(dtype)
    queries, vectors = x[:10].astype(np.float32), x[10:]
    for cut in (1, 32, 1000):
        found = searched(queries, vectors, k, similarity, cut)
        assert [[row for row, _ in of_one] for of_one in found] == sorted_whole(queries, vectors, k, similarity)
        assert len(found[0]) == min(k, 300)
        scores = np.array([[score for _, score in of_one] for of_one in found])
        assert (np.diff(scores) <= 0).all()
        want = SIMILARITIES[similarity](queries.astype(np.float64), vectors.astype(np.float64))
        assert np.allclose(scores, -np.sort(-want)[:, :k], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("similarity", sorted(SIMILARITIES))
@pytest.mark.parametrize("cut", [1, 5, 64, 1000])
def test_equal_vectors_are_ordered_by_row_wherever_they_lie(similarity, cut):
    """In blocks of any size, products in float32 of equal rows may differ in their last bits."""
    rng = np.random.default_rng(0)
    distinct = rng.normal(size=(3, 257)).astype(np.float32)
    vectors = distinct[rng.integers(0, 3, 500)]
    (found,) = searched(distinct[:1], vectors, 60, similarity, cut)
    same = np.flatnonzero((vectors == distinct[0]).all(axis=1))
    assert [row for row, _ in found] == same[:60].tolist()
    assert len({score for _, score in found}) == 1


def test_rows_that_are_nearly_equal_are_told_apart_in_float64():
    rng = np.random.default_rng(1)
    query = rng.normal(size=(1, 512)).astype(np.float32)
    vectors = query + rng.normal(size=(200, 512)).astype(np.float32) * 1e-5
    (found,) = searched(query, vectors, 10, "cosine", 50)
    assert [row for row, _ in found] == sorted_whole(query, vectors, 10, "cosine")[0]


def test_lengths_far_apart():
    """Scores of dot products are as large as vectors: the slack for rounding goes with them."""
    x = data(200, seed=3).astype(np.float32) * np.logspace(-6, 6, 200, dtype=np.float32)[:, None]
    queries = x[:3]
    found = searched(queries, x, 5, "dot", 64)
    assert [[row for row, _ in of_one] for of_one in found] == sorted_whole(queries, x, 5, "dot")


def test_zero_vectors_have_cosine_zero():
    vectors = np.array([[0, 0], [1, 0], [-1, 0]], np.float32)
    assert searched(np.array([[1.0, 0]]), vectors, 3, "cosine", 2) == [[(1, 1.0), (0, 0.0), (2, -1.0)]]
    assert [score for _, score in searched(np.zeros((1, 2)), vectors, 3, "cosine", 2)[0]] == [0, 0, 0]


@pytest.mark.parametrize("dim", [8, 13, 256])
def test_bits_are_compared_by_the_cosine_of_their_signs(dim):
    x = np.random.default_rng(2).normal(size=(100, dim))
    packed = np.packbits(x > 0, axis=1)
    signs = np.where(x > 0, 1.0, -1.0)
    assert np.allclose(exact(x[0], packed, SIGNS), signs @ signs[0] / dim)
    (found,) = searched(x[:1], packed, 20, SIGNS, 7)
    order = np.lexsort((np.arange(100), -(signs @ signs[0])))[:20]
    assert [row for row, _ in found] == order.tolist()


def test_lengths():
    x = data(5).astype(np.float32)
    assert np.allclose(norms(x), np.linalg.norm(x, axis=1), rtol=1e-6)
