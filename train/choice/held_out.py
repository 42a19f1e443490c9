"""Stop a flow of vectors at the step of the highest held-out likelihood.

Likelihood only notices over-fitting: similarity falls long before (bench/results/verdicts.md). Every report of the
choice has to say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.train.methods.flow import Flow

HELD_OUT = "held_out_likelihood"
PART, MOST = 20, 4096  # one row in PART is held out, MOST at most


@dataclass(frozen=True)
class HeldOut:
    """The held-out ``rows`` (m, D)."""

    rows: NDArray[np.float32]

    def make_measure(self, x: torch.Tensor) -> Callable[[Flow], float]:
        """Make a function of a flow: the mean log-likelihood of its inputs ``x`` (m, D'), in bits a dimension."""

        @torch.no_grad()
        def measure(flow: Flow) -> float:
            return -float(flow.bits_per_dimension(x))

        return measure


def count_held_out(count: int) -> int:
    """Count the rows to hold out."""
    return max(1, min(MOST, count // PART))


def split(count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the row numbers to train on and to hold out, both ascending."""
    order = np.random.default_rng((seed, 1 << 33)).permutation(count)
    return np.sort(order[count_held_out(count) :]), np.sort(order[: count_held_out(count)])


def explain_stop(look: dict[str, Any], vectors: int) -> str:
    """Write a sentence on the kept step and its limits."""
    return (
        f"flow: kept step {look['kept_step']} of {look['steps']}, where {vectors} held-out vectors were most likely, "
        f"{-look[HELD_OUT]:.3f} bits per dimension; likelihood does not see similarity, so compare it with a closed "
        "form on pairs of your own"
    )
