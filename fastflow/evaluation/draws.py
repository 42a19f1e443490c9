"""Intervals by bootstrap: how far a measure would move with other pairs, queries or texts of the same kind."""

from __future__ import annotations

from collections.abc import Callable
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
        drawn = drawn[~np.isnan(drawn)]  # such as a draw without a positive pair
        if not len(drawn):
            return float("nan"), float("nan")
        low, high = np.percentile(drawn, (TAIL, 100 - TAIL)) - drawn.mean() + self.value
        return max(0.0, float(low)), min(100.0, float(high))


def mean_of(values: NDArray[Any]) -> Measured:
    """The mean x100 of one value a unit, (n,)."""
    return Measured(len(values), lambda counts: float(100 * (counts @ values) / counts.sum()))
