"""Isotropy of embeddings, measured without labels: how evenly they fill their space."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.stages.vectors import paired_cosine

PAIRS = 10_000


def mean_cosine(x: NDArray[Any], seed: int = 0) -> float:
    """Mean cosine of random pairs of distinct rows of (n, D): 0 for isotropic vectors, near 1 in a narrow cone."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, len(x), PAIRS)
    second = (first + rng.integers(1, len(x), PAIRS)) % len(x)
    return float(paired_cosine(x[first], x[second]).mean())


def singular_values(x: NDArray[Any]) -> NDArray[np.float64]:
    """(D,) singular values of the uncentred (n, D) divided by sqrt(n), descending."""
    wide = x.astype(np.float64)
    return np.asarray(np.sqrt(np.clip(np.linalg.eigvalsh(wide.T @ wide / len(x))[::-1], 0, None)))


def isoscore(x: NDArray[Any]) -> float:
    """IsoScore of (n, D) (Rudman et al. 2022, section 4): 1 when variance is spread evenly, 0 when on one axis."""
    dims = x.shape[1]
    if dims == 1:
        return 1.0
    variances = np.clip(np.linalg.eigvalsh(np.cov(x.astype(np.float64), rowvar=False)), 0, None)
    normalised = variances * np.sqrt(dims) / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - 1) / np.sqrt(2 * (dims - np.sqrt(dims)))
    used = (dims - defect**2 * (dims - np.sqrt(dims))) ** 2 / dims**2
    return float((dims * used - 1) / (dims - 1))


def measure(x: NDArray[Any]) -> dict[str, float]:
    """``mean_cosine``, ``isoscore`` and ``top_share``, the largest squared singular value's part of their sum."""
    spectrum = np.square(singular_values(x))
    return {
        "mean_cosine": round(mean_cosine(x), 4),
        "isoscore": round(isoscore(x), 4),
        "top_share": round(float(spectrum[0] / spectrum.sum()), 4),
    }


def is_worse(before: dict[str, float], after: dict[str, float], mean_kept: bool = False) -> bool:
    """Whether calibration left the embeddings less isotropic than it found them, by either measure.

    Where the mean was kept IsoScore alone decides: removing the directions in which texts
    differ most raises the cosines.
    """
    margin = 0.01
    return not (  # so that NaN is worse
        after["isoscore"] >= before["isoscore"] - margin
        and (mean_kept or abs(after["mean_cosine"]) <= abs(before["mean_cosine"]) + margin)
    )
