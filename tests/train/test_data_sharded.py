"""Streaming statistics and shards of a corpus: NumPy's whatever the blocks, in one order whoever computed them."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow import FastflowError
from fastflow.train.data import sharded
from fastflow.train.data.background import english
from fastflow.train.data.corpus import corpus_hash
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.moments import BLOCK, Moments, moments, read_through
from fastflow.train.data.sharded import (
    Counting,
    Embedding,
    Encoding,
    Measuring,
    Shards,
    count_all,
    embed_all,
    here,
    measure_all,
)
from fastflow.train.data.token_weights import weigh, weigh_by
from fastflow.train.progress import SILENT

from support.builders import make_sentences
from support.rows import data


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for module in ("sharded.SHARD", "moments.BLOCK"):
        monkeypatch.setattr(f"fastflow.train.data.{module}", 16)


@pytest.fixture
def texts():
    return make_sentences(150)


@pytest.fixture
def encoding(encoder, bert):
    return Encoding(str(bert), "first-last", encoder.max_length, encoder.hash, encoder.pooling, "cpu")


def nothing(count):
    pass


def shuffled(task, shards) -> Iterator:
    """Two workers that end in any order; results come in the order of the shards, as the protocol has it."""
    works, parts = [task.open(), task.open()], list(shards)
    found = {}
    for at in random.Random(3).sample(range(len(parts)), len(parts)):
        found[at] = works[at % 2](parts[at])
    return (found[at] for at in range(len(parts)))


def test_the_statistics_have_the_bits_of_a_streamed_corpus(encoding, encoder, texts):
    want = read_through(texts, Embedder(encoder, "cpu"), 10, voice=SILENT)
    for workers in (here, shuffled):
        shards = Shards(lambda: texts, "corpus")
        found = measure_all(workers, Measuring(encoding), shards, encoder.dim, nothing)
        assert found.count == want.moments.count == 150
        assert found.mean.tobytes() == want.moments.mean.tobytes()
        assert found.scatter.tobytes() == want.moments.scatter.tobytes()
        assert shards.sha256 == want.sha256 == corpus_hash(texts)


def test_another_order_of_merging_gives_other_bits(encoding, encoder, texts):
    """So the order is what the test above is about."""
    backwards = lambda task, shards: reversed(list(here(task, shards)))  # noqa: E731
    want, found = (measure_all(w, Measuring(encoding), [texts[i : i + 16] for i in range(0, 150, 16)], encoder.dim,
                               nothing) for w in (here, backwards))  # fmt: skip
    assert np.allclose(found.scatter, want.scatter, rtol=1e-12)
    assert found.scatter.tobytes() != want.scatter.tobytes()


def test_counts_add_up_to_those_of_the_corpus(encoding, encoder, texts):
    found = count_all(here, Counting(encoding, True, 5, 0), Shards(lambda: texts, "corpus"), nothing)
    assert found.texts == 150
    weights = weigh_by(encoder, found.tokens, english()).pooling.weights
    assert weights.tobytes() == weigh(encoder, texts, english()).pooling.weights.tobytes()
    assert count_all(here, Counting(encoding, False, 5, 0), Shards(lambda: texts, "corpus"), nothing).tokens is None


def test_the_sample_is_of_distinct_texts_and_of_no_order(encoding, texts):
    def sample(texts, count=20, seed=0, workers=here):
        task = Counting(encoding, False, count, seed)
        return list(count_all(workers, task, Shards(lambda: texts, "corpus"), nothing).sample.values())

    want = sample(texts)
    assert len(set(want)) == 20
    others = random.Random(1).sample(texts * 3, 450)
    assert sample(others) == sample(others, workers=shuffled) == want
    assert sample(texts, seed=1) != want
    assert sorted(sample(texts, 1000)) == sorted(texts)
    assert sample(texts, 10) == want[:10]


def test_every_text_is_sampled_with_one_chance(encoding):
    """Mean position of 40 of 400 texts, over 50 seeds: 199.5, with a deviation of 2.5."""
    texts = [f"text {i}" for i in range(400)]
    positions = [
        int(text.split()[1])
        for seed in range(50)
        for text in sharded.smallest({sharded.key_of(t, seed): t for t in texts}, 40).values()
    ]
    assert abs(np.mean(positions) - 199.5) < 12


def test_embeddings_of_a_sample(encoding, encoder, texts):
    assert np.array_equal(embed_all(here, Embedding(encoding), texts, encoder.dim), Embedder(encoder, "cpu")(texts))
    assert embed_all(here, Embedding(encoding), [], encoder.dim).shape == (0, encoder.dim)


def test_texts_that_change_between_two_readings_are_an_error(texts):
    shards = Shards(lambda: texts, "corpus")
    assert sum(map(len, shards)) == sum(map(len, shards)) == 150
    texts[3], texts[4] = texts[4], texts[3]
    with pytest.raises(FastflowError, match="corpus: the second reading gave other texts than the first, or another o"):
        list(shards)


def test_another_encoder_on_a_worker_is_refused(encoding):
    other = Encoding(*(getattr(encoding, name) for name in ("name", "pooling_name", "max_length")), "0" * 64,
                     encoding.pooling, "cpu")  # fmt: skip
    with pytest.raises(FastflowError, match=f"has the hash {encoding.hash} on a worker, and 0000"):
        other.open()


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
