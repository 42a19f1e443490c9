"""Choose a ridge regression's prior and penalty by held-out sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from fastflow.train.distil import ridge
from fastflow.train.distil.ridge import Floats, Sums
from fastflow.train.distil.teacher import Vectors, measure_following
from fastflow.train.progress import Voice

PENALTIES = (5.0, 1.5, 0.5, 0.15, 0.05, 0.015, 0.005, 0.0015)
FIRST = 4
FIRMNESS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e2)  # values tried for the prior
SEARCH = 1e-2  # tolerance that suffices to compare penalties


@dataclass(frozen=True)
class Table:
    """Token ``vectors`` (V, D), their held-out mean cosine, and the prior's; ``penalty`` None: the prior is kept."""

    target: str
    vectors: Floats
    penalty: float | None
    cosine: float
    prior: float
    tried: dict[float, float]  # penalty -> held-out cosine


@dataclass(frozen=True)
class Held:
    """Held-out ``bags`` (m, V), the teacher's ``vectors`` (m, D'); ``finish`` calibrates a table's vectors."""

    bags: sparse.csr_array
    vectors: Vectors
    finish: Callable[[NDArray[np.float32]], Vectors]

    def measure(self, table: Floats) -> float:
        return self.measure_vectors(self.bags @ table)

    def measure_vectors(self, found: Floats) -> float:
        return measure_following(self.finish(found.astype(np.float32)), self.vectors)


def choose_prior(prior: ridge.Prior, sums: Sums, held: Held) -> Floats:
    """Return the prior (V, D) of the best FIRMNESS by held-out cosine."""
    seen, middle = held.bags @ prior.features, np.outer(held.bags.sum(axis=1), sums.mean)
    return prior(max(FIRMNESS, key=lambda firmness: held.measure_vectors(seen @ prior.fit_map(firmness) + middle)))


def fit_table(target: str, sums: Sums, start: Floats, held: Held, penalty: float | None, voice: Voice) -> Table:
    """Fit a table near the prior ``start`` (V, D); ``penalty`` None: the best of PENALTIES, or the prior."""
    right, tried = ridge.compute_right_side(sums, start), dict[float, float]()
    state: ridge.Singles | None = None

    def add_start(found: ridge.Singles) -> Floats:
        return np.asarray(start + found + sums.mean)

    def solve(chosen: float, tolerance: float) -> ridge.Singles:
        with voice.progress(f"penalty {chosen:g}", right.shape[1], "numbers") as progress:
            return ridge.solve(sums, right, chosen, state, tolerance, progress.advance)

    def measure(at: int) -> float:
        nonlocal state
        chosen = PENALTIES[at]
        if chosen not in tried:
            state = solve(chosen, SEARCH)
            tried[chosen] = held.measure(add_start(state))
            voice.say(f"table of the {target}: penalty {chosen:g}, held-out cosine {tried[chosen]:.4f}")
        return tried[chosen]

    voice.say(f"table of the {target}: solving for {right.shape[0]:,} tokens of {right.shape[1]} numbers")
    best = penalty if penalty is not None else PENALTIES[climb(measure, FIRST, len(PENALTIES))]
    found = add_start(solve(best, ridge.TOLERANCE))
    cosine, prior = held.measure(found), held.measure(start + sums.mean)
    if penalty is None and prior >= cosine:
        voice.say(f"table of the {target}: kept the prior, held-out cosine {prior:.4f}")
        return Table(target, start + sums.mean, None, prior, prior, tried)
    voice.say(f"table of the {target}: kept penalty {best:g}, held-out cosine {cosine:.4f}")
    return Table(target, found, best, cosine, prior, tried)


def climb(height: Callable[[int], float], at: int, count: int) -> int:
    """Step from the index ``at`` to a local maximum of ``height``, among 0 to ``count`` - 1."""
    for way in (1, -1):
        moved = False
        while 0 <= at + way < count and height(at + way) > height(at):
            at, moved = at + way, True
        if moved:
            break
    return at
