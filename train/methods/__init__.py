"""Fit a method by its name; closed forms need no PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import missing_extra
from fastflow.train.data.moments import measure_moments
from fastflow.train.methods.closed_forms import fit_closed_form
from fastflow.train.options import DEFAULTS, complete_chain, parse_method
from fastflow.transforms.calibration import Stage


def fit_named(method: str, pooled: NDArray[Any], seed: int = 0) -> list[Stage]:
    """Fit ``method`` to pooled embeddings (n, D) and return its stages; ``raw`` has none."""
    links = [] if method == "raw" else complete_chain(parse_method(method), latent=False)
    if not links:
        return []
    if len(links) == 1 and links[0].kind != "flow":
        return [fit_closed_form(links[0].kind, links[0].dims, measure_moments(pooled))]
    try:
        from fastflow.train.methods.chain import fit_chain
        from fastflow.train.methods.loop import Schedule, Training
    except ImportError as error:
        raise missing_extra("train", str(error.name), f"fitting {method!r}") from error
    training = Training(Schedule(seed=seed))
    return list(fit_chain(links, pooled.astype(np.float32), DEFAULTS.shape(len(pooled)), training).stages)
