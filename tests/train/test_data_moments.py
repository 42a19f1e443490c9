"""Streaming statistics of a corpus: those of NumPy, whatever the blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.train.data.corpus import corpus_hash
from fastflow.train.data.moments import BLOCK, Moments, moments, read_through

from support.rows import data


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 2, 300, BLOCK, BLOCK + 1])
def test_moments_are_those_of_numpy(rows, dtype):
    x = data(rows, 4, dtype=dtype)
    m = moments(x)
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
    whole = moments(x)
    assert asked == [min(50, rows - start) for start in range(0, rows, 50)]
    assert streamed.moments.count == rows
    assert np.abs(streamed.moments.mean - whole.mean).max() <= 1e-12 * np.abs(x).max()
    assert np.abs(streamed.moments.scatter - whole.scatter).max() <= 1e-12 * max(1.0, np.abs(whole.scatter).max())
    assert streamed.sha256 == corpus_hash([str(i) for i in range(rows)])
    assert len(streamed.texts) == len(set(streamed.texts)) == min(20, rows)
    assert np.array_equal(streamed.pooled, x[[int(text) for text in streamed.texts]])
    if rows > 100:  # drawn from them
        assert max(map(int, streamed.texts)) >= rows // 2
