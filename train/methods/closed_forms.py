"""Fit closed-form calibrations in float64 to Moments, mean and covariance.

Standardize is BERT-flow's SN, nullspace its NATSV (Mu & Viswanath 2018, centred), components the same without centring;
whiten is Su et al. 2021; groups is LSAR (Xie et al. 2022). Every method leaves constant channels and directions at 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import CannotFit, FastflowError, UsageError
from fastflow.train.data.moments import BLOCK, Moments, measure_moments
from fastflow.train.options import name_grouped
from fastflow.train.reporter import name_options
from fastflow.transforms.calibration import Stage, apply_wide
from fastflow.transforms.truncation import Rows

NEGLIGIBLE = 1e-12  # share of the largest variance: constant directions have 1e-15, others at least 1e-5
ROUNDING = 2.0**-20  # relative error of a value: sixteen times float32's rounding


def fit_closed_form(kind: str, dims: int | None, m: Moments) -> Stage:
    """Fit ``kind``: whiten keeps ``dims`` directions (None: all), nullspace and components remove them (None: 1).

    Raises CannotFit for too few texts, a UsageError for groups, which ``fit_groups`` fits.
    """
    name_grouped(kind, given=False)
    if kind == "standardize":
        return _fit_standardize(m)
    if kind == "whiten":
        return _fit_whiten(m, dims)
    directions = _find_leading(kind, m, 1 if dims is None else dims)
    mean = m.mean if kind == "nullspace" else np.zeros_like(m.mean)
    return Stage("nullspace", {}, {"mean": mean, "directions": directions})


def _fit_standardize(m: Moments) -> Stage:
    variance = np.diag(m.covariance)
    constant = mask_constant(m.mean, variance)
    if constant.all():
        raise CannotFit(f"standardize: every channel is constant over the {m.count} {m.unit}; give more {m.unit}")
    return Stage("standardize", {}, {"mean": m.mean, "deviation": np.where(constant, 1.0, np.sqrt(variance))})


def _find_leading(what: str, m: Moments, remove: int) -> NDArray[np.float64]:
    check_dims(what, remove, len(m.mean) - 1)
    _, vectors, rank = _decompose(m)
    if remove >= rank:
        raise CannotFit(
            f"{what}: {m.count} {m.unit} span {rank} dimensions, and removing {remove} leaves nothing; give more "
            f"{m.unit}"
        )
    return vectors[:, :remove].T.copy()


def fit_groups(rows: Rows, labels: Sequence[str], dims: int | None) -> Stage:
    """Fit the removal of directions between the means of groups, linear and without centring.

    ``rows`` (n, D) have the groups ``labels`` (n,); each group counts the same. ``dims`` None: all directions, after
    which groups have one mean. Raises CannotFit if the means do not differ in so many.
    """
    names, of = np.unique(np.asarray(labels), return_inverse=True)
    means = np.zeros((len(names), rows.shape[1]))
    for start in range(0, len(of), BLOCK):
        np.add.at(means, of[start : start + BLOCK], np.asarray(rows[start : start + BLOCK], np.float64))
    means /= np.bincount(of)[:, None]
    _, scale, directions = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)
    rank = int((scale > ROUNDING * np.linalg.norm(means)).sum())
    if not 1 <= (dims or 1) <= rank:
        raise CannotFit(f"groups: the means of {len(names)} groups differ in {rank} directions; give other groups or K")
    return Stage("nullspace", {}, {"mean": np.zeros(rows.shape[1]), "directions": directions[: dims or rank]})


def _fit_whiten(m: Moments, dims: int | None) -> Stage:
    """Fit (x - mean) Q Lambda^(-1/2), Q the leading ``dims`` eigenvectors; ``dims`` None: all, constant ones as 0."""
    size = len(m.mean)
    check_dims("whiten", size if dims is None else dims, size)
    values, vectors, rank = _decompose(m)
    if rank < (dims or size) and (m.count <= size or not rank):
        remedy = f"use whiten:{rank} or more {m.unit}" if rank else f"give more {m.unit}"
        raise CannotFit(f"whiten: {m.count} {m.unit} span {rank} of the {dims or size} dimensions; {remedy}")
    if dims is not None and rank < dims:
        raise CannotFit(
            f"whiten: {size - rank} of the {size} directions are constant over the {m.count} {m.unit}, and {dims} of "
            f"them are asked for; use whiten:{rank}, or whiten, which leaves the constant ones at 0"
        )
    matrix = np.zeros((size, dims or size))
    kept = min(rank, matrix.shape[1])
    matrix[:, :kept] = vectors[:, :kept] / np.sqrt(values[:kept])
    return Stage("whiten", {}, {"mean": m.mean, "matrix": matrix})


def _decompose(m: Moments) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    values, vectors = np.linalg.eigh(m.covariance)
    values, vectors = values[::-1], vectors[:, ::-1]
    square = (np.square(m.mean) + np.diag(m.covariance)) @ np.square(vectors)
    constant = is_constant(values, square)
    order = np.argsort(constant, kind="stable")
    values, vectors = values[order], vectors[:, order]
    largest = np.abs(vectors).argmax(axis=0)
    return values, vectors * np.sign(vectors[largest, np.arange(len(values))]), int((~constant).sum())


def check_dims(what: str, dims: int, most: int) -> None:
    """Raise a UsageError unless 1 <= ``dims`` <= ``most``."""
    if not 1 <= dims <= most:
        raise UsageError(f"{what}:{dims} is out of range: it takes 1 to {most}")


def is_constant(variance: NDArray[np.float64], square: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mask (D,) directions with a ``variance`` that is only rounding next to the mean ``square``."""
    return np.asarray(variance <= np.maximum(NEGLIGIBLE * variance.max(initial=0.0), ROUNDING**2 * square))


def mask_constant(mean: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask (D,), True for each constant channel."""
    return is_constant(variance, np.square(mean) + variance)


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
        raise FastflowError(
            name_options(f"recolour: {demoted} of {live} directions cannot be demoted; use a smaller {{demoted}}")
        )
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
