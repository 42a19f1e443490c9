"""Give back part of the embedding's spectrum and mean after a calibration that equalises all directions.

The best linear reconstruction of the pooled embedding x from the calibrated z has principal directions U and deviations
S (as whitening-colouring in image style transfer, Li et al., NeurIPS 2017). With Cov(z) = L L^T:

    Cov(x, z) L^-T = U S V^T,
    y = S^(1-g) V^T L^-1 (z - mean(z)) + m,    m = a S^-g U^T mean(x),    |m|^2 = c / (1 - c) E|y - m|^2.

The spectrum g in [0, 1] equalises directions: 1 is the rotated white z, 0 the part of x linear in z. The mean share c
in [0, 1) is the average cosine of unrelated texts. The ``demoted`` leading directions, which all sentences share (Mu &
Viswanath 2018), are scaled like the last direction and are not part of m.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastflow.errors import CannotFit, FastflowError
from fastflow.stages.calibration import Stage, apply_wide
from fastflow.stages.truncation import Rows
from fastflow.train.data.moments import Moments, measure_moments

RIDGE, FEW = 1e-3, 2  # RIDGE times z's mean variance is added, for fewer texts than FEW times z's channels
LEAST = 1e-6  # share of the largest singular value: directions below are left out


def measure_joint(stages: Sequence[Stage], pooled: Rows) -> Moments:
    """Measure the Moments of rows (x, z) (n, D + D'): x from ``pooled`` (n, D), z after ``stages``."""
    return measure_moments(pooled, lambda x: np.hstack([np.asarray(x, np.float64), apply_wide(stages, x)]))


def fit_recolour(joint: Moments, dim: int, spectrum: float, mean_share: float, demoted: int = 0) -> Stage:
    """Fit to ``joint`` Moments of (x, z), x of ``dim`` channels; raises a FastflowError if no direction is left."""
    mean, latent_mean, covariance = joint.mean[:dim], joint.mean[dim:], joint.covariance
    own, cross = covariance[dim:, dim:], covariance[:dim, dim:]
    variance = np.trace(own) / len(own)
    if not variance > 0:
        raise CannotFit(f"recolour: the {joint.count} texts have one and the same embedding; give more text")
    ridge = RIDGE * variance if joint.count < FEW * len(own) else 0.0
    spread, axes = np.linalg.eigh(own + ridge * np.eye(len(own)))
    whiten = axes / np.sqrt(np.where(spread > LEAST**2 * spread[-1], spread, np.inf))  # L^-T, up to a rotation of V
    left, scale, right = np.linalg.svd(cross @ whiten, full_matrices=False)
    sign = np.sign(left[np.abs(left).argmax(axis=0), np.arange(len(right))])
    left, right = left * sign, right * sign[:, None]
    live = int((scale > LEAST * scale[0]).sum())
    if demoted >= live:
        raise FastflowError(f"recolour: {demoted} of {live} directions cannot be demoted; use a smaller --demoted")
    power, shift = np.zeros(len(scale)), np.zeros(len(scale))
    shift[demoted:live] = (left.T @ mean)[demoted:live] * scale[demoted:live] ** -spectrum
    power[:live] = np.where(np.arange(live) < demoted, scale[live - 1], scale[:live]) ** (1 - spectrum)
    order = [*range(demoted, live), *range(demoted), *range(live, len(scale))]
    right, power, shift = right[order], power[order], shift[order]
    matrix = whiten @ right.T * power
    around = float(np.sum((own @ matrix) * matrix))
    length = float(np.linalg.norm(shift))
    wanted = np.sqrt(mean_share / (1 - mean_share) * around)
    shift = shift * (wanted / length) if length else shift
    return Stage(
        "recolour",
        {"spectrum": float(spectrum), "mean_share": float(mean_share), "demoted": demoted},
        {"mean": latent_mean, "matrix": matrix, "shift": shift},
    )
