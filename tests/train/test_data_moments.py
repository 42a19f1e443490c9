"""Streaming statistics of a corpus are NumPy's, whatever the blocks; a sample by hash is of no order."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.train.data.corpus import corpus_hash, pick_by_hash
from fastflow.train.data.moments import BLOCK, Moments, measure_moments, read_through

from support.builders import make_sentences
from support.rows import data


def test_a_sample_by_hash_is_of_distinct_texts_and_of_no_order():
    texts = make_sentences(150)
    want = pick_by_hash(texts, 20, 0)
    assert len(set(want)) == 20
    assert pick_by_hash(random.Random(1).sample(texts * 3, 450), 20, 0) == want
    assert pick_by_hash(texts, 20, 1) != want
    assert sorted(pick_by_hash(texts, 1000, 0)) == sorted(texts)
    assert pick_by_hash(texts, 10, 0) == want[:10]


def test_every_text_is_sampled_with_one_chance():
    """Mean position of 40 of 400 texts, over 50 seeds: 199.5, with a deviation of 2.5."""
    texts = [f"text {i}" for i in range(400)]
    positions = [int(text.split()[1]) for seed in range(50) for text in pick_by_hash(texts, 40, seed)]
    assert abs(np.mean(positions) - 199.5) < 12


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 2, 300, BLOCK, BLOCK + 1])
def test_moments_are_those_of_numpy(rows, dtype):
    x = data(rows, 4, dtype=dtype)
    m = measure_moments(x)
    wide = x.astype(np.float64)
    assert m.count == rows
    assert np.abs(m.mean - wide.mean(axis=0)).max() <= 1e-12 * np.abs(wide).max()
    expected = np.atleast_2d(np.cov(wide, rowvar=False, bias=True)) if rows > 1 else np.zeros((4, 4))
    assert np.abs(m.covariance - expected).max() <= 1e-11 * max(1.0, np.abs(expected).max())


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.booleans(), st.integers(0, 5))
def test_merging_any_split_gives_the_statistics_of_one_pass(sizes, backwards, seed):
    x = data(sum(sizes), 6, seed)
    parts = [Moments(6).update(block) for block in np.split(x, np.cumsum(sizes)[:-1])]
    merged = Moments(6)
    for part in reversed(parts) if backwards else parts:
        merged.merge(part)
    whole = Moments(6).update(x)
    assert merged.count == whole.count == len(x)
    assert np.abs(merged.mean - whole.mean).max() <= 1e-12 * max(1.0, np.abs(x).max(initial=0))
    assert np.abs(merged.scatter - whole.scatter).max() <= 1e-12 * max(1.0, np.abs(whole.scatter).max())


@pytest.mark.parametrize("rows", [1, 7, 100, 333])
def test_reading_a_corpus_through_in_blocks_gives_the_statistics_of_the_whole(monkeypatch, rows):
    monkeypatch.setattr("fastflow.train.data.moments.BLOCK", 50)
    x = data(rows, 6, dtype=np.float32)
    asked = []

    def embed(texts):
        asked.append(len(texts))
        return x[[int(text) for text in texts]]

    streamed = read_through((str(i) for i in range(rows)), embed, 20, seed=3)
    whole = measure_moments(x)
    assert asked == [min(50, rows - start) for start in range(0, rows, 50)]
    assert streamed.moments.count == rows
    assert np.abs(streamed.moments.mean - whole.mean).max() <= 1e-12 * np.abs(x).max()
    assert np.abs(streamed.moments.scatter - whole.scatter).max() <= 1e-12 * max(1.0, np.abs(whole.scatter).max())
    assert streamed.sha256 == corpus_hash([str(i) for i in range(rows)])
    assert len(streamed.texts) == len(set(streamed.texts)) == min(20, rows)
    assert np.array_equal(streamed.pooled, x[[int(text) for text in streamed.texts]])
    if rows > 100:  # drawn from them
        assert max(map(int, streamed.texts)) >= rows // 2
