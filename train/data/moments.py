"""Mergeable statistics in float64 of a corpus that need not fit in memory."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.train.data.corpus import add_text
from fastflow.train.reporter import COMMAND, Reporter
from fastflow.transforms.calibration import Stage, apply_wide
from fastflow.transforms.truncation import Rows

BLOCK = 8192


class Moments:
    """Count, mean (D,) and scatter (D, D) about the mean; ``unit`` names rows in messages."""

    def __init__(self, dim: int, unit: str = "texts") -> None:
        self.count, self.unit = 0, unit
        self.mean: NDArray[np.float64] = np.zeros(dim)
        self.scatter: NDArray[np.float64] = np.zeros((dim, dim))

    def update(self, x: NDArray[Any]) -> Moments:
        if len(x):
            block = Moments(x.shape[1])
            wide = x.astype(np.float64)
            block.count, block.mean = len(x), wide.mean(axis=0)
            centred = wide - block.mean
            block.scatter = centred.T @ centred
            self.merge(block)
        return self

    def merge(self, other: Moments) -> Moments:
        """Add other statistics exactly (Chan, Golub & LeVeque 1979); returns self."""
        total = self.count + other.count
        if other.count:
            shift = other.mean - self.mean
            self.scatter = self.scatter + other.scatter + np.outer(shift, shift) * (self.count * other.count / total)
            self.mean = self.mean + shift * (other.count / total)
            self.count = total
        return self

    def count_as(self, count: int) -> Moments:
        out = Moments(len(self.mean), self.unit)
        out.count, out.mean, out.scatter = count, self.mean, self.scatter * (count / self.count)
        return out

    def push_through(self, stage: Stage) -> Moments:
        return self._map(*self._find_affine([stage]))

    def join(self, stages: Sequence[Stage]) -> Moments:
        """Compute the statistics of (x, z); z is the output of closed-form ``stages``."""
        linear, bias = self._find_affine(stages)
        return self._map(np.hstack([np.eye(len(linear)), linear]), np.concatenate([np.zeros(len(linear)), bias]))

    def _find_affine(self, stages: Sequence[Stage]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        apart = apply_wide(stages, np.vstack([np.zeros_like(self.mean), np.eye(len(self.mean))]))
        return apart[1:] - apart[0], apart[0]

    def _map(self, linear: NDArray[np.float64], bias: NDArray[np.float64]) -> Moments:
        out = Moments(linear.shape[1], self.unit)
        out.count, out.mean = self.count, self.mean @ linear + bias
        out.scatter = linear.T @ self.scatter @ linear
        return out

    @property
    def covariance(self) -> NDArray[np.float64]:
        return self.scatter / max(self.count, 1)


def measure_moments(x: Rows, change: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray) -> Moments:
    """Measure Moments of ``change`` of ``x`` (n, D) in blocks."""
    out: Moments | None = None
    for start in range(0, len(x), BLOCK):
        block = change(x[start : start + BLOCK])
        out = (out or Moments(block.shape[1])).update(block)
    return out or Moments(x.shape[1])


@dataclass(frozen=True)
class StreamedCorpus:
    """A corpus read once: Moments, a sample of k texts, their embeddings (k, D), and all texts' sha256."""

    moments: Moments
    texts: list[str]
    pooled: NDArray[np.float32]
    sha256: str


def read_through(
    texts: Iterable[str],
    embed: Callable[[Sequence[str]], NDArray[np.float32]],
    sample: int,
    seed: int = 0,
    reporter: Reporter = COMMAND,
) -> StreamedCorpus:
    """Embed ``texts`` in blocks; keep statistics and a reservoir of ``sample`` texts."""
    stream, rng, digest = iter(texts), random.Random(seed), hashlib.sha256()
    statistics: Moments | None = None
    kept: list[tuple[int, str, NDArray[np.float32]]] = []
    with reporter.progress("corpus", None, "texts") as progress:
        while block := list(islice(stream, BLOCK)):
            vectors = embed(block)
            statistics = statistics or Moments(vectors.shape[1])
            for index, text in enumerate(block, statistics.count):
                add_text(digest, text)
                row = vectors[index - statistics.count]
                if index < sample:
                    kept.append((index, text, row.copy()))
                elif (slot := rng.randrange(index + 1)) < sample:  # reservoir sampling
                    kept[slot] = (index, text, row.copy())
            statistics.update(vectors)
            progress.advance(len(block))
    if statistics is None:
        raise FastflowError("the corpus holds no text")
    kept.sort(key=lambda item: item[0])
    return StreamedCorpus(
        statistics, [text for _, text, _ in kept], np.stack([row for *_, row in kept]), digest.hexdigest()
    )
