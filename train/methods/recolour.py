"""Give back part of the embedding's spectrum and mean after a calibration that equalises all directions.

In a flow's latent z, N(0, I), noise counts as much as meaning, and the mean is lost. The best linear reconstruction of
the pooled embedding x from z has principal directions U and deviations S, with Cov(z) = L L^T,

    Cov(x, z) L^-T = U S V^T,
    y = S^(1-g) V^T L^-1 (z - mean(z)) + m,    m = a S^-g U^T mean(x),    |m|^2 = c / (1 - c) E|y - m|^2.

The spectrum g in [0, 1] equalises directions: 1 is the rotated white latent, 0 the part of x linear in z. The
mean share c in [0, 1) is the average cosine of two unrelated texts. The ``demoted`` leading directions carry common
properties of sentences, as in NATSV (Mu & Viswanath 2018): they are scaled like the last one and have no part in m.
Dimensions are in the order of their scale; dimensions unrelated to x are last, and 0. In image style transfer this is
a partial whitening-colouring transform (Li et al., NeurIPS 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastflow.errors import CannotFit, FastflowError
from fastflow.stages.calibration import Stage, apply
from fastflow.stages.rows import Rows
from fastflow.train.data.moments import BLOCK, Moments

RIDGE = 1e-3  # of the mean variance of z, with fewer texts than FEW times its dimensions
FEW = 2
LEAST = 1e-6  # of the largest singular value


def measure_joint(stages: Sequence[Stage], pooled: Rows) -> Moments:
    """Measure the Moments of (x, z), (n, D + D'): z is ``stages`` of x, ``pooled`` (n, D)."""
    wide = [stage.astype(np.float64) for stage in stages]
    out: Moments | None = None
    for start in range(0, len(pooled), BLOCK):
        x = np.asarray(pooled[start : start + BLOCK], np.float64)
        both = np.hstack([x, np.asarray(apply(wide, x))])
        out = (out or Moments(both.shape[1])).update(both)
    if out is None:
        raise FastflowError("recolour: there is no text to fit on")
    return out


def fit_recolour(joint: Moments, dim: int, spectrum: float, mean_share: float, demoted: int = 0) -> Stage:
    """Fit to the ``joint`` Moments of (x, z), with ``dim`` channels of x.

    Raises a FastflowError if z is constant, or no direction is left.
    """
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
