"""Fit closed-form calibrations in float64 to Moments, mean and covariance.

Standardize is BERT-flow's SN, nullspace its NATSV (Mu & Viswanath 2018, centred), components the same without centring;
whiten is Su et al. 2021. Every method leaves constant channels and directions at 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import CannotFit, UsageError
from fastflow.stages.calibration import Stage
from fastflow.train.data.moments import Moments

NEGLIGIBLE = 1e-12  # share of the largest variance: constant directions have 1e-15, others at least 1e-5
ROUNDING = 2.0**-20  # relative error of a value: sixteen times float32's rounding


def fit_closed_form(kind: str, dims: int | None, m: Moments) -> Stage:
    """Fit ``kind``: whiten keeps ``dims`` directions (None: all), nullspace and components remove them (None: 1).

    Raises CannotFit for too few texts.
    """
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


def _fit_whiten(m: Moments, dims: int | None) -> Stage:
    """Fit (x - mean) Q Lambda^(-1/2), the leading ``dims`` eigenvectors Q; None also keeps constant ones, as 0."""
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
