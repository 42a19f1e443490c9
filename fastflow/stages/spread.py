"""The spread of an embedding in each dimension, unless its calibration makes it 1.

int8 and uint8 need a fixed range. Flow, whitening and standardization end in unit variance; for other calibrations the
model may store a measured spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.stages.calibration import Stage

if TYPE_CHECKING:
    from fastflow.stages.rows import Rows

SPREAD = "spread"  # the array of calibration.safetensors


def unit_variance(stages: Sequence[Stage]) -> bool:
    """Return whether the calibration ends in dimensions of variance 1."""
    return bool(stages) and stages[-1].kind in ("flow", "whiten", "standardize")


def fit_spread(stages: Sequence[Stage], pooled: Rows) -> NDArray[np.float32] | None:
    """Measure the (D',) root mean square of each dimension over a sample of pooled vectors (n, D).

    A dimension that is always 0 gets the largest of the others. None if the calibration ends in unit variance, all are
    0,
    or one is not finite.
    """
    from fastflow.stages.truncation import sampled

    if unit_variance(stages):
        return None
    count, total = 0, np.zeros(1)
    for _, z in sampled(stages, pooled):
        count, total = count + len(z), total + np.square(z).sum(axis=0)
    spread = np.sqrt(total / count).astype(np.float32)
    spread = np.where(spread == 0, spread.max(), spread)
    return spread if _sound(spread) else None


def read_spread(arrays: Mapping[str, NDArray[Any]], dim: int, where: str) -> NDArray[np.float32] | None:
    """Read the result of ``fit_spread`` from a model's ``arrays``; None if absent.

    Raises a FastflowError that names the file ``where`` if the array does not fit ``dim`` dimensions.
    """
    if SPREAD not in arrays:
        return None
    found = arrays[SPREAD]
    if found.shape != (dim,) or found.dtype != np.float32 or not _sound(found):
        raise FastflowError(f"{where}, array {SPREAD}: must be float32 of shape ({dim},), finite and above 0")
    return found


def _sound(spread: NDArray[Any]) -> bool:
    return bool((np.isfinite(spread) & (spread > 0)).all())
