"""How word frequency shows in the input word embeddings (Li et al. 2020, section 2.3 and table 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BANDS = ((0, 100), (100, 500), (500, 5000), (5000, None))  # frequency ranks, as in the paper
NEIGHBOURS = (3, 5, 7)
SAMPLE = 2000  # words of a band that neighbours are sought for
BLOCK = 256


def word_bands(
    embeddings: NDArray[Any], counts: NDArray[np.integer[Any]], seed: int = 0, sample: int = SAMPLE
) -> list[dict[str, Any]]:
    """A row for each band of frequency ranks that holds a word.

    ``embeddings`` (V, E): the encoder's input word table; ``counts`` (V,): how often each word occurs, 0 leaves it out.
    ``norm``: mean l2 norm of the band; ``l2`` and ``dot``: mean distance and dot product to the k nearest other words
    by l2, for k of NEIGHBOURS (None if there are not as many), over at most ``sample`` words of the band.
    """
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    words = embeddings[order].astype(np.float32)
    rng = np.random.default_rng(seed)
    rows = []
    for start, stop in BANDS:
        band = np.arange(start, len(words) if stop is None else min(stop, len(words)))
        if not len(band):
            continue
        drawn = np.sort(rng.choice(band, sample, replace=False)) if len(band) > sample else band
        distance, dot = nearest(words, drawn, min(max(NEIGHBOURS), len(words) - 1))
        rows.append(
            {
                "ranks": f"{start}-{stop}" if stop else f"{start}+",
                "words": len(band),
                "sampled": len(drawn),
                "norm": float(np.linalg.norm(words[band], axis=1).mean()),
                "l2": {k: _mean(distance, k) for k in NEIGHBOURS},
                "dot": {k: _mean(dot, k) for k in NEIGHBOURS},
            }
        )
    return rows


def _mean(values: NDArray[Any], k: int) -> float | None:
    return float(values[:, :k].mean()) if values.shape[1] >= k else None


def nearest(
    words: NDArray[np.float32], rows: NDArray[np.integer[Any]], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """l2 distances and dot products (len(rows), k) of each chosen row of (V, E) to its k nearest others, by l2."""
    squares = np.square(words).sum(axis=1)
    distance, dot = np.empty((len(rows), k)), np.empty((len(rows), k))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        far = squares - 2 * (words[block] @ words.T)  # the squared distance less the row's own square
        far[np.arange(len(block)), block] = np.inf
        near = np.argpartition(far, k - 1, axis=1)[:, :k] if k else np.empty((len(block), 0), np.int64)
        exact = words[near].astype(np.float64)  # the expansion above cancels for near words: only the choice uses it
        own = words[block].astype(np.float64)[:, None]
        l2 = np.linalg.norm(exact - own, axis=2)
        sort = np.argsort(l2, axis=1, kind="stable")
        part = slice(start, start + len(block))
        distance[part] = np.take_along_axis(l2, sort, 1)
        dot[part] = np.take_along_axis((exact * own).sum(axis=2), sort, 1)
    return distance, dot
