"""Measure the usual log-density of a flow's texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastflow.stages.calibration import Stage, density_of, has_density
from fastflow.stages.rows import Rows
from fastflow.train.methods.chain import take_sample

SHARE = 0.01
LEAST = 1000  # texts: fewer misjudge held-out texts (bench/results/verdicts.md)


def measure_likelihood(stages: Sequence[Stage], pooled: Rows) -> dict[str, Any] | None:
    """Make the entry ``likelihood``: SHARE of ``pooled`` (n, D) have a lower log-density.

    None if ``stages`` have no density, and for fewer than LEAST rows.
    """
    if len(pooled) < LEAST or not has_density(stages):
        return None
    wide = [stage.astype(np.float64) for stage in stages]
    found = density_of(stages, "this model").log_prob(np.asarray(take_sample(pooled), np.float64), wide)
    return {"log_prob": round(float(np.quantile(found, SHARE)), 4), "share": SHARE}
