"""The analyses of the BERT-flow paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.transforms.vectors import compute_paired_cosine

DRAWS = 1000
TAIL = 2.5  # percent of draws beyond each end of an interval
WILSON = 1.96**2
COSINES = 10_000  # random pairs in a mean cosine
WORD = re.compile(r"\w+|[^\w\s]")
SMALL = 4  # words, up to which the paper calls an edit small
BANDS = ((0, 100), (100, 500), (500, 5000), (5000, None))  # frequency ranks, as in the paper
NEIGHBOURS = (3, 5, 7)
SAMPLE = 2000  # the most words of a band to measure
BLOCK = 256

Matrix = NDArray[Any]
Draws = NDArray[np.float64]


def ranks(x: Matrix) -> NDArray[np.float64]:
    """Rank (n,) numbers from 1; equal numbers share their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])


def spearman(a: Matrix, b: Matrix) -> float:
    """Compute Spearman's rank correlation; NaN if one side is constant."""
    x, y = (r - r.mean() for r in (ranks(a), ranks(b)))
    norm = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / norm) if norm else float("nan")


class Measure(NamedTuple):
    """A measure x100 over ``units``; ``at(counts)``: its value if unit i is drawn ``counts[i]`` times.

    ``shares``: the value is the mean of a share, 0 to 1, of each unit; ``wilson``: so is its interval.
    """

    units: int
    at: Callable[[Matrix], float]
    shares: bool = False
    wilson: bool = False

    @property
    def value(self) -> float:
        return self.at(np.ones(self.units))

    def interval(self, seed: int = 0) -> tuple[float, float]:
        """Compute the 95 % bootstrap interval, shifted to the mean ``value``; Wilson's if no share differs from it."""
        n = self.units
        if self.shares and (self.wilson or self.value in (0.0, 100.0)):
            p = self.value / 100
            centre, reach = p + WILSON / (2 * n), np.sqrt(WILSON * (p * (1 - p) + WILSON / (4 * n)) / n)
            low, high = (100 * np.clip((centre - reach, centre + reach), 0, 1 + WILSON / n) / (1 + WILSON / n)).tolist()
            return low, high
        low, high = np.clip(interval_of(self.draws(seed), self.value), 0.0, 100.0)
        return float(low), float(high)

    def draws(self, seed: int = 0) -> Draws:
        """Draw units with replacement; equal units and seed draw equal ones. Returns values (DRAWS,)."""
        rng, n = np.random.default_rng(seed), self.units
        return np.array([self.at(np.bincount(rng.integers(0, n, n), minlength=n)) for _ in range(DRAWS)])


def mean_of(values: Matrix, wilson: bool = False) -> Measure:
    """Make the Measure of the mean x100 of ``values`` (n,)."""
    return Measure(len(values), lambda counts: float(100 * (counts @ values) / counts.sum()), True, wilson)


def auc_of(positive: NDArray[np.bool_], similarity: Matrix) -> Measure:
    """Make the Measure of the AUC x100 of ``similarity`` (n,) for ``positive``; a tie counts half."""
    _, at = np.unique(similarity, return_inverse=True)

    def compute(counts: Matrix) -> float:
        others = np.bincount(at, np.where(positive, 0, counts))
        own = np.bincount(at, np.where(positive, counts, 0), minlength=len(others))
        both = own.sum() * others.sum()
        return float(100 * (own @ (np.cumsum(others) - others / 2)) / both) if both else float("nan")

    return Measure(len(at), compute)


def spearman_draws(groups: Sequence[tuple[Matrix, Matrix]], seed: int = 0) -> NDArray[np.float64]:
    """Return bootstrap draws (DRAWS,) of Spearman x100, averaged over groups (ranks, ranks) by size.

    Equal sizes and seed draw equal pairs. NaN if a side is constant.
    """
    rng, out = np.random.default_rng(seed), np.zeros(DRAWS)
    total = sum(len(x) for x, _ in groups)
    for x, y in groups:
        n = len(x)
        x, y = x - x.mean(), y - y.mean()
        sums = np.stack([x, y, x * y, x * x, y * y], axis=1)
        found = np.empty(DRAWS)
        for i in range(DRAWS):
            mx, my, xy, xx, yy = np.bincount(rng.integers(0, n, n), minlength=n) @ sums / n
            norm = (xx - mx * mx) * (yy - my * my)
            found[i] = 100 * (xy - mx * my) / np.sqrt(norm) if norm > 0 else np.nan
        out += n / total * found
    return out


def interval_of(drawn: NDArray[np.float64], value: float) -> tuple[float, float]:
    """Compute the 95 % interval of ``drawn``, shifted to the mean ``value``; NaN if all draws are NaN."""
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn):
        return float("nan"), float("nan")
    low, high = np.percentile(drawn, (TAIL, 100 - TAIL)) - drawn.mean() + value
    return float(low), float(high)


def mean_cosine(x: Matrix, seed: int = 0) -> float:
    """Average the cosine of random pairs of distinct rows (n, D)."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, len(x), COSINES)
    second = (first + rng.integers(1, len(x), COSINES)) % len(x)
    return float(compute_paired_cosine(x[first], x[second]).mean())


def singular_values(x: Matrix) -> NDArray[np.float64]:
    """Compute the (D,) singular values, descending, of the uncentred (n, D) divided by sqrt(n)."""
    wide = x.astype(np.float64)
    return np.asarray(np.sqrt(np.clip(np.linalg.eigvalsh(wide.T @ wide / len(x))[::-1], 0, None)))


def isoscore(x: Matrix) -> float:
    """Compute IsoScore of (n, D) (Rudman et al. 2022, section 4)."""
    dims = x.shape[1]
    if dims == 1:
        return 1.0
    variances = np.clip(np.linalg.eigvalsh(np.cov(x.astype(np.float64), rowvar=False)), 0, None)
    normalised = variances * np.sqrt(dims) / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - 1) / np.sqrt(2 * (dims - np.sqrt(dims)))
    used = (dims - defect**2 * (dims - np.sqrt(dims))) ** 2 / dims**2
    return float((dims * used - 1) / (dims - 1))


def measure_isotropy(x: Matrix) -> dict[str, float]:
    """Measure ``mean_cosine``, ``isoscore`` and ``top_share``, the first squared singular value over their sum."""
    spectrum = np.square(singular_values(x))
    return {
        "mean_cosine": round(mean_cosine(x), 4),
        "isoscore": round(isoscore(x), 4),
        "top_share": round(float(spectrum[0] / spectrum.sum()), 4),
    }


def is_less_isotropic(before: dict[str, float], after: dict[str, float], mean_kept: bool = False) -> bool:
    """Return whether isoscore fell or, unless ``mean_kept``, the mean cosine rose; NaN counts as both."""
    margin = 0.01
    return not (
        after["isoscore"] >= before["isoscore"] - margin
        and (mean_kept or abs(after["mean_cosine"]) <= abs(before["mean_cosine"]) + margin)
    )


def levenshtein(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Count the fewest insertions, deletions and substitutions that turn ``a`` into ``b``."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


def edit_distances(first: Sequence[str], second: Sequence[str]) -> NDArray[np.int64]:
    """Compute the edit distances (n,) of n pairs, in lower-cased words and marks (Li et al. 2020, table 6)."""
    sides = ([WORD.findall(text.lower()) for text in side] for side in (first, second))
    return np.array([levenshtein(a, b) for a, b in zip(*sides, strict=True)], np.int64)


def lexical_bias(edits: NDArray[np.int64], similarity: Matrix, scores: Matrix) -> dict[str, float]:
    """Correlate similarity with edit distance (``edit``), and up to SMALL with gold scores (``small_gold``); x100."""
    small = edits <= SMALL
    enough = small.sum() > 1
    return {
        "edit": 100 * spearman(edits, similarity),
        "small_gold": 100 * spearman(similarity[small], scores[small]) if enough else float("nan"),
        "small_pairs": int(small.sum()),
    }


def word_bands(
    embeddings: Matrix, counts: NDArray[np.integer[Any]], seed: int = 0, sample: int = SAMPLE
) -> list[dict[str, Any]]:
    """Measure word ``embeddings`` (V, E) in bands of frequency, by ``counts`` (V,); words of count 0 are left out.

    ``norm``: mean l2 norm. ``l2``, ``dot``: mean distance, product of at most ``sample`` words to the k nearest others
    (Li et al. 2020, section 2.3 and table 1).
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
        distance, dot = find_nearest(words, drawn, min(max(NEIGHBOURS), len(words) - 1))
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


def _mean(values: Matrix, k: int) -> float | None:
    return float(values[:, :k].mean()) if values.shape[1] >= k else None


def find_nearest(
    words: NDArray[np.float32], rows: NDArray[np.integer[Any]], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute l2 distances and dot products, each (len(rows), k), to the k other words nearest by l2."""
    squares = np.square(words).sum(axis=1)
    distance, dot = np.empty((len(rows), k)), np.empty((len(rows), k))
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        far = squares - 2 * (words[block] @ words.T)  # squared distance, less the row's own square
        far[np.arange(len(block)), block] = np.inf
        near = np.argpartition(far, k - 1, axis=1)[:, :k] if k else np.empty((len(block), 0), np.int64)
        exact = words[near].astype(np.float64)  # ``far`` is inexact for near words
        own = words[block].astype(np.float64)[:, None]
        l2 = np.linalg.norm(exact - own, axis=2)
        sort = np.argsort(l2, axis=1, kind="stable")
        part = slice(start, start + len(block))
        distance[part] = np.take_along_axis(l2, sort, 1)
        dot[part] = np.take_along_axis((exact * own).sum(axis=2), sort, 1)
    return distance, dot
