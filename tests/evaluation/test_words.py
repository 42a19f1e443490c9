"""The nearest neighbours of words and the bands of their frequencies, by brute force and by hand."""

from __future__ import annotations

import numpy as np

from fastflow.evaluation.words import BANDS, NEIGHBOURS, nearest, word_bands


def test_nearest_is_brute_force():
    rng = np.random.default_rng(1)
    table = rng.normal(size=(300, 7)).astype(np.float32)
    rows = np.arange(0, 300, 1)
    distance, dot = nearest(table, rows, 5)
    every = np.linalg.norm(table[:, None].astype(np.float64) - table[None], axis=2)
    np.fill_diagonal(every, np.inf)
    order = np.argsort(every, axis=1)[:, :5]
    assert np.abs(distance - np.take_along_axis(every, order, 1)).max() <= 1e-12
    assert np.abs(dot - np.take_along_axis(table.astype(np.float64) @ table.T, order, 1)).max() <= 1e-5


def test_word_bands_by_hand():
    # by frequency: word 2 at 0, word 0 at 3, word 3 at 4; word 1 never occurs and is nobody's neighbour
    table, counts = np.array([[3.0], [0.1], [0.0], [4.0]]), np.array([5, 0, 9, 2])
    (row,) = word_bands(table, counts)
    assert (row["ranks"], row["words"], row["sampled"]) == ("0-100", 3, 3)
    assert abs(row["norm"] - 7 / 3) <= 1e-6
    assert row["l2"] == dict.fromkeys(NEIGHBOURS)  # there are two others, and the least k is three
    rng = np.random.default_rng(2)
    bands = word_bands(rng.normal(size=(700, 4)), np.arange(700, 0, -1), sample=50)
    assert [(b["words"], b["sampled"]) for b in bands] == [(100, 50), (400, 50), (200, 50)]
    assert all(b["l2"][3] <= b["l2"][5] <= b["l2"][7] for b in bands)
    assert len(BANDS) == 4


def test_word_bands_see_frequent_words_near_the_origin():
    table = np.random.default_rng(3).normal(size=(600, 8)) * np.linspace(0.2, 2, 600)[:, None]
    first, second, third = word_bands(table, np.arange(600, 0, -1))
    assert first["norm"] < second["norm"] < third["norm"]
    assert first["l2"][3] < second["l2"][3] < third["l2"][3]
