"""A calibration's name -> its stages, fitted with the defaults; the closed forms need no PyTorch."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import missing_extra
from fastflow.stages.calibration import Stage
from fastflow.train.data.moments import moments
from fastflow.train.methods.closed_forms import fit_closed_form

SHAPE = {"levels": 2, "depth": 3, "width": 32, "coupling": "additive", "permutation": "reversal"}


def fit_named(method: str, pooled: NDArray[Any], seed: int = 0) -> list[Stage]:
    """The stages of ``method`` fitted on pooled embeddings (n, D); links of a chain are joined by ``+``.

    Raises a UsageError for an unknown method, and a FastflowError where a flow is to be fitted without PyTorch.
    """
    if method in ("raw", "none"):
        return []
    if match := re.fullmatch(r"(standardize)|(components|nullspace|whiten)(?::(\d+))?", method):
        return [fit_closed_form(match[1] or match[2], int(match[3]) if match[3] else None, moments(pooled))]
    try:
        from fastflow.train.methods.chain import fit, parse_method
        from fastflow.train.methods.loop import Schedule
    except ImportError as error:
        raise missing_extra("train", str(error.name), f"fitting {method!r}") from error
    fitted = fit(parse_method(method.replace("+", ",")), pooled.astype(np.float32), SHAPE, Schedule(seed=seed))
    return list(fitted.stages)
