"""The penalty of a ridge regression and the target of a table, chosen by held-out sentences and the teacher alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from fastflow.train.distil import ridge
from fastflow.train.distil.sums import Floats, Sums
from fastflow.train.distil.teacher import Vectors, following
from fastflow.train.progress import Voice

PENALTIES = (5.0, 1.5, 0.5, 0.15, 0.05, 0.015, 0.005, 0.0015)
FIRST = 4  # where the search begins in them
FIRMNESS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e2)  # of the prior's map
SEARCH = 1e-2  # tolerance of the systems that are solved to compare penalties


@dataclass(frozen=True)
class Table:
    """Token vectors (V, D), and how well they follow the teacher on held-out sentences: ``cosine``, ``prior``'s own.

    ``penalty`` is None if they are the prior.
    """

    target: str
    vectors: Floats
    penalty: float | None
    cosine: float
    prior: float
    tried: dict[float, float]  # penalty -> cosine


@dataclass(frozen=True)
class Held:
    """Held-out sentences as ``bags`` (m, V), and the teacher's ``vectors`` (m, D').

    ``finish`` makes embeddings of the target's vectors.
    """

    bags: sparse.csr_array
    vectors: Vectors
    finish: Callable[[NDArray[np.float32]], Vectors]

    def cosine(self, table: Floats) -> float:
        """How well ``table`` (V, D) follows the teacher."""
        return self.follows(self.bags @ table)

    def follows(self, found: Floats) -> float:
        """How well ``found`` (m, D), the bags' vectors, follow the teacher."""
        return following(self.finish(found.astype(np.float32)), self.vectors)


def best_prior(prior: ridge.Prior, sums: Sums, held: Held) -> Floats:
    """(V, D) the prior, by the one of FIRMNESS that follows best."""
    seen, middle = held.bags @ prior.features, np.outer(held.bags.sum(axis=1), sums.mean)
    return prior(max(FIRMNESS, key=lambda firmness: held.follows(seen @ prior.map(firmness) + middle)))


def fit_table(target: str, sums: Sums, start: Floats, held: Held, penalty: float | None, voice: Voice) -> Table:
    """The table about the prior ``start`` (V, D), by ``penalty``, or by the one of PENALTIES that follows best.

    Without a ``penalty`` the prior itself is kept if it follows the teacher as well.
    """
    right, tried = ridge.right_side(sums, start), dict[float, float]()
    state: ridge.Singles | None = None

    def rows(found: ridge.Singles) -> Floats:
        return np.asarray(start + found + sums.mean)

    def solved(chosen: float, tolerance: float) -> ridge.Singles:
        with voice.progress(f"penalty {chosen:g}", right.shape[1], "numbers") as progress:
            return ridge.solve(sums, right, chosen, state, tolerance, progress.advance)

    def measured(at: int) -> float:
        nonlocal state
        chosen = PENALTIES[at]
        if chosen not in tried:
            state = solved(chosen, SEARCH)
            tried[chosen] = held.cosine(rows(state))
            voice.say(f"table of the {target}: penalty {chosen:g}, held-out cosine {tried[chosen]:.4f}")
        return tried[chosen]

    voice.say(f"table of the {target}: solving for {right.shape[0]:,} tokens of {right.shape[1]} numbers")
    best = penalty if penalty is not None else PENALTIES[climb(measured, FIRST, len(PENALTIES))]
    found = rows(solved(best, ridge.TOLERANCE))
    cosine, prior = held.cosine(found), held.cosine(start + sums.mean)
    if penalty is None and prior >= cosine:
        voice.say(f"table of the {target}: kept the prior, held-out cosine {prior:.4f}")
        return Table(target, start + sums.mean, None, prior, prior, tried)
    voice.say(f"table of the {target}: kept penalty {best:g}, held-out cosine {cosine:.4f}")
    return Table(target, found, best, cosine, prior, tried)


def climb(height: Callable[[int], float], at: int, count: int) -> int:
    """The place of 0 to ``count`` - 1 from which ``height`` falls to both sides, going uphill from ``at``."""
    for way in (1, -1):
        moved = False
        while 0 <= at + way < count and height(at + way) > height(at):
            at, moved = at + way, True
        if moved:
            break
    return at
