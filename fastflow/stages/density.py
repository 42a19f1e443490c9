"""The log-density of a pooled vector by the change of variables (Li et al. 2020, section 3.1):

log p(x) = log N(z; 0, I) + log|det dz/dx|,    z = f(x),

with f all stages through the last flow, and natural logarithms. Closed forms before a flow are affine: their
log-determinant is one constant.
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
    """``stages`` are f; ``log_det`` is the closed forms' share of log|det dz/dx|."""

    stages: tuple[Stage, ...]
    log_det: float

    def log_prob(self, x: NDArray[Any], chain: Sequence[Stage]) -> Densities:
        """Compute log p (B,) of ``x`` (B, D); ``chain`` begins with the stages of f in x's dtype."""
        with np.errstate(over="ignore", invalid="ignore"):
            return log_normal(*self.latent(x, chain))

    def latent(self, x: Any, chain: Sequence[Stage]) -> tuple[Any, Any]:
        """Compute z (B, D) and log|det dz/dx| (B,), as arrays or tensors like ``x``."""
        total = self.log_det
        for stage in chain[: len(self.stages)]:
            if stage.kind == "flow":
                x, found = apply_with_log_det(stage, x)
                total = total + found
            else:
                x = apply([stage], x)
        return x, total


def log_normal(z: NDArray[Any], log_det: NDArray[Any]) -> Densities:
    """Compute log N(z; 0, I) + ``log_det`` (B,) of z (B, D) in float64, for squares within float32."""
    z = np.asarray(z, np.float64)
    constant = 0.5 * z.shape[1] * np.log(2 * np.pi)
    return np.asarray(log_det - constant - 0.5 * np.square(z).sum(axis=1), np.float64)


def density_of(stages: Sequence[Stage], model: Path | str) -> Density:
    """Return the density of ``stages``; raises a UsageError that names ``model`` if there is none."""
    flows = [number for number, stage in enumerate(stages) if stage.kind == "flow"]
    if not flows:
        raise UsageError(
            f"log_prob needs a flow, and the calibration of {model} is {describe(stages)}: fit one with the method flow"
        )
    chosen = tuple(stages[: flows[-1] + 1])
    return Density(chosen, sum(_log_det(stage, model) for stage in chosen if stage.kind != "flow"))


def _log_det(stage: Stage, model: Path | str) -> float:
    """Raises a UsageError if the stage drops directions."""
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
