"""When to stop a flow that is fitted to vectors: at the step that gives unseen vectors the highest likelihood.

Vectors alone have no dropout views. Held-out likelihood notices over-fitting and nothing else: similarity falls long
before it does (bench/results/verdicts.md), which every place that reports the choice has to mention.
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
PART, MOST = 20, 4096  # one row in PART is held out, and MOST at most


@dataclass(frozen=True)
class HeldOut:
    """``rows`` (m, D) that the flow is not trained on."""

    rows: NDArray[np.float32]

    def measure(self, x: torch.Tensor) -> Callable[[Flow], float]:
        """flow -> the mean log-likelihood of ``x`` (m, D'), the rows as they reach the flow, in bits a dimension."""

        @torch.no_grad()
        def measured(flow: Flow) -> float:
            return -float(flow.bits_per_dimension(x))

        return measured


def held(count: int) -> int:
    """How many of ``count`` rows are held out."""
    return max(1, min(MOST, count // PART))


def split(count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of ``count`` rows to train on, and of the rows to hold out, drawn by ``seed``; both ascending."""
    order = np.random.default_rng((seed, 1 << 33)).permutation(count)
    return np.sort(order[held(count) :]), np.sort(order[: held(count)])


def why(look: dict[str, Any], vectors: int) -> str:
    """The step that was kept, and what that is worth, as a sentence."""
    return (
        f"flow: kept step {look['kept_step']} of {look['steps']}, where {vectors} held-out vectors were most likely, "
        f"{-look[HELD_OUT]:.3f} bits per dimension; likelihood does not see similarity, so compare it with a closed "
        "form on pairs of your own"
    )
