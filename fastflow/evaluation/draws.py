"""Intervals by bootstrap: how far a measure would move with other pairs, queries or texts of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
TAIL = 2.5  # percent on either side of a 95 % interval


class Measured(NamedTuple):
    """A measure x100 over ``units`` units: ``at(counts)`` is its value if unit i occurs ``counts[i]`` times."""

    units: int
    at: Callable[[NDArray[Any]], float]

    @property
    def value(self) -> float:
        """The measure with every unit once; NaN if it is undefined."""
        return self.at(np.ones(self.units))

    def interval(self, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
        """The 95 % interval over ``draws`` draws with replacement, moved so that their mean is the value.

        Without the move a V-measure could lie outside: texts that are drawn twice look like better clusters.
        """
        rng, n = np.random.default_rng(seed), self.units
        drawn = np.array([self.at(np.bincount(rng.integers(0, n, n), minlength=n)) for _ in range(draws)])
        low, high = np.clip(interval_of(drawn, self.value), 0.0, 100.0)  # a draw without a positive pair has no value
        return float(low), float(high)


def spearman_draws(
    groups: Sequence[tuple[NDArray[Any], NDArray[Any]]], draws: int = DRAWS, seed: int = 0
) -> NDArray[np.float64]:
    """(draws,) Spearman x100 of draws with replacement of the pairs of each group, averaged by the groups' sizes.

    A group is (ranks, ranks) of its pairs, which are not ranked anew in a draw. Equal sizes and seed give equal draws,
    so that two models can be compared draw by draw. NaN if a side of a group is constant.
    """
    rng, out = np.random.default_rng(seed), np.zeros(draws)
    total = sum(len(x) for x, _ in groups)
    for x, y in groups:
        n = len(x)
        x, y = x - x.mean(), y - y.mean()
        sums = np.stack([x, y, x * y, x * x, y * y], axis=1)
        found = np.empty(draws)
        for i in range(draws):
            mx, my, xy, xx, yy = np.bincount(rng.integers(0, n, n), minlength=n) @ sums / n
            norm = (xx - mx * mx) * (yy - my * my)
            found[i] = 100 * (xy - mx * my) / np.sqrt(norm) if norm > 0 else np.nan
        out += n / total * found
    return out


def interval_of(drawn: NDArray[np.float64], value: float) -> tuple[float, float]:
    """The 95 % interval of ``drawn``, moved so that their mean is ``value``; NaN if no draw has a value."""
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn):
        return float("nan"), float("nan")
    low, high = np.percentile(drawn, (TAIL, 100 - TAIL)) - drawn.mean() + value
    return float(low), float(high)


def auc_of(positive: NDArray[np.bool_], similarity: NDArray[Any]) -> Measured:
    """The AUC x100 of ``similarity`` (n,): a positive pair has the higher one than another, ties counting half."""
    _, at = np.unique(similarity, return_inverse=True)

    def of(counts: NDArray[Any]) -> float:
        others = np.bincount(at, np.where(positive, 0, counts))
        own = np.bincount(at, np.where(positive, counts, 0), minlength=len(others))
        both = own.sum() * others.sum()
        return float(100 * (own @ (np.cumsum(others) - others / 2)) / both) if both else float("nan")

    return Measured(len(at), of)


def mean_of(values: NDArray[Any]) -> Measured:
    """The mean x100 of one value a unit, (n,)."""
    return Measured(len(values), lambda counts: float(100 * (counts @ values) / counts.sum()))
