"""Find channels and directions that are the same for every text, up to float32's rounding.

A LayerNorm with gains of 0 gives constant channels (three of 384 in all-MiniLM-L6-v2), and a mean of one layer lies in
a hyperplane. Scaled to variance 1 they would be noise, so every method leaves them at 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEGLIGIBLE = 1e-12  # of the largest variance; of seven poolings the constant directions have 1e-15, the next 1e-5
ROUNDING = 2.0**-20  # of a value's size: sixteen times that of float32, for the encoder's sums


def is_constant(variance: NDArray[np.float64], square: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mask (D,) directions whose ``variance`` (D,) is rounding of the mean ``square`` (D,)."""
    return np.asarray(variance <= np.maximum(NEGLIGIBLE * variance.max(initial=0.0), ROUNDING**2 * square))


def mask_constant(mean: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mask (D,) the constant channels."""
    return is_constant(variance, np.square(mean) + variance)


def name_constant(channels: int, directions: int, dim: int, unit: str = "texts") -> list[str]:
    """Write sentences on constant ``channels`` and other ``directions`` of ``dim``."""
    where = {"texts": "in this encoder", "vectors": "in these vectors"}[unit]
    out = []
    for count, what in ((channels, "channels"), (directions, "directions")):
        if count:
            verb = "is constant {} and stays 0" if count == 1 else "are constant {} and stay 0"
            out.append(f"{count} of {dim} {what} {verb.format(where)}.")
    return out
