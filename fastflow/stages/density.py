"""The log-density of a pooled vector under a fitted flow, by the change of variables (Li et al. 2020, section 3.1):

    log p(x) = log N(z; 0, I) + log|det dz/dx|,    z = f(x),

f being all stages up to and including the last flow, and the logarithm the natural one. A stage after the flow changes
the embedding alone. A closed form in front of a flow is affine, so that its log-determinant is one constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import UsageError
from fastflow.stages.calibration import Stage, apply, apply_with_log_det, describe, log_volume

Densities = NDArray[np.float64]


class Density(NamedTuple):
    """``stages`` are f; ``log_det`` is the constant that the closed forms among them add to log|det dz/dx|."""

    stages: tuple[Stage, ...]
    log_det: float

    def log_prob(self, x: NDArray[Any], chain: Sequence[Stage]) -> Densities:
        """log p (B,) of ``x`` (B, D); ``chain`` begins with the stages of f, in the dtype of x."""
        with np.errstate(over="ignore", invalid="ignore"):  # found in the rows, by whoever asked for them
            return log_normal(*self.latent(x, chain))

    def latent(self, x: Any, chain: Sequence[Stage]) -> tuple[Any, Any]:
        """z (B, D) and log|det dz/dx| (B,), arrays or tensors as ``x`` and ``chain`` are."""
        total = self.log_det
        for stage in chain[: len(self.stages)]:
            if stage.kind == "flow":
                x, found = apply_with_log_det(stage, x)
                total = total + found
            else:
                x = apply([stage], x)
        return x, total


def log_normal(z: NDArray[Any], log_det: NDArray[Any]) -> Densities:
    """log N(z; 0, I) + ``log_det`` (B,) of z (B, D), in float64, if the square of a float32 is finite."""
    z = np.asarray(z, np.float64)
    constant = 0.5 * z.shape[1] * np.log(2 * np.pi)
    return np.asarray(log_det - constant - 0.5 * np.square(z).sum(axis=1), np.float64)


def density_of(stages: Sequence[Stage], model: Path | str) -> Density:
    """The density that ``stages``, those of the model called ``model``, give; raises a UsageError if none exists."""
    flows = [number for number, stage in enumerate(stages) if stage.kind == "flow"]
    if not flows:
        raise UsageError(
            f"log_prob needs a flow, and the calibration of {model} is {describe(stages)}: fit one with the method flow"
        )
    chosen = tuple(stages[: flows[-1] + 1])
    return Density(chosen, sum(_log_det(stage, model) for stage in chosen if stage.kind != "flow"))


def _log_det(stage: Stage, model: Path | str) -> float:
    """log|det| of a closed form; raises a UsageError if the stage leaves directions out."""
    if stage.kind == "standardize":
        return -float(np.log(stage.params["deviation"].astype(np.float64)).sum())
    found = -np.inf
    if stage.kind != "nullspace" and len({*stage.params["matrix"].shape}) == 1:
        found = log_volume(stage.params["matrix"])
    if not np.isfinite(found):
        raise UsageError(
            f"log_prob needs every direction in front of the flow, and {describe([stage])} of {model} leaves some out: "
            "fit a model without that stage"
        )
    return found
