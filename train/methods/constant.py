"""Channels and directions of pooled vectors that are the same for every text, up to the rounding of float32.

A last LayerNorm with gains of 0 gives constant channels (three of 384 in all-MiniLM-L6-v2), and the mean over tokens of
one layer after a LayerNorm lies in a hyperplane. Such a direction carries nothing, and scaled to variance 1 it would be
rounding noise, so every method leaves it at 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEGLIGIBLE = 1e-12  # of the largest variance; of seven poolings the constant directions have 1e-15, the next 1e-5
ROUNDING = 2.0**-20  # of a value's size: sixteen times that of float32, for the encoder's sums


def is_constant(variance: NDArray[np.float64], square: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(D,): whether each direction is rounding alone; ``square`` (D,) is the mean square that is rounded in it."""
    return np.asarray(variance <= np.maximum(NEGLIGIBLE * variance.max(initial=0.0), ROUNDING**2 * square))


def constant_channels(mean: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(D,): whether each channel is constant, from the ``mean`` (D,) and ``variance`` (D,) of its values."""
    return is_constant(variance, np.square(mean) + variance)


def sentence(channels: int, directions: int, dim: int, unit: str = "texts") -> list[str]:
    """Name the ``channels`` and other ``directions`` of ``dim`` that stay 0; an empty list if there are none."""
    where = {"texts": "in this encoder", "vectors": "in these vectors"}[unit]
    out = []
    for count, what in ((channels, "channels"), (directions, "directions")):
        if count:
            verb = "is constant {} and stays 0" if count == 1 else "are constant {} and stay 0"
            out.append(f"{count} of {dim} {what} {verb.format(where)}.")
    return out
