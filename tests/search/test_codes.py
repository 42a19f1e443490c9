"""Codes: how near their scores are, and the places of the largest."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.kernels.search import reference
from fastflow.search import codes as module
from fastflow.search.codes import Bits, Bytes, dots, encode_bytes, find_largest, hammings
from fastflow.stages.vectors import cosine

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


def test_encode_bytes_a_file_of_int8_are_its_own():
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


def test_without_a_compiler_the_integers_are_the_same(monkeypatch):
    codes = np.random.default_rng(0).integers(-128, 128, (30, 17), np.int8)
    want = [dots(codes, codes[3]).tolist(), hammings(codes.view(np.uint8), codes[3].view(np.uint8)).tolist()]
    monkeypatch.setattr(module, "cpu", None)
    assert [dots(codes, codes[3]).tolist(), hammings(codes.view(np.uint8), codes[3].view(np.uint8)).tolist()] == want
    assert reference.dots(codes, codes[3]).tolist() == want[0]
