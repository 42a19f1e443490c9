"""A calibration's name -> its stages, fitted with the defaults; the closed forms need no PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import missing_extra
from fastflow.stages.calibration import Stage
from fastflow.train.data.moments import moments
from fastflow.train.methods.closed_forms import fit_closed_form
from fastflow.train.methods.names import parse_method, shipped
from fastflow.train.options import DEFAULTS


def fit_named(method: str, pooled: NDArray[Any], seed: int = 0) -> list[Stage]:
    """The stages of ``method`` fitted on pooled embeddings (n, D); raw is none.

    Raises a UsageError for an unknown method, and a FastflowError if a flow is to be fitted without PyTorch.
    """
    links = [] if method == "raw" else shipped(parse_method(method), latent=False)
    if not links:
        return []
    if len(links) == 1 and links[0].kind != "flow":
        return [fit_closed_form(links[0].kind, links[0].dims, moments(pooled))]
    try:
        from fastflow.train.methods.chain import fit
        from fastflow.train.methods.loop import Fitting, Schedule
    except ImportError as error:
        raise missing_extra("train", str(error.name), f"fitting {method!r}") from error
    fitting = Fitting(Schedule(seed=seed))
    return list(fit(links, pooled.astype(np.float32), DEFAULTS.shape(len(pooled)), fitting).stages)
