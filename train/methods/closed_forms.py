"""Fit closed-form calibrations to Moments in float64.

Standardize is the paper's SN, nullspace its NATSV (Mu & Viswanath 2018, centred), components the same without centring,
whiten is Su et al. 2021.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import CannotFit, UsageError
from fastflow.stages.calibration import Stage
from fastflow.train.data.moments import Moments
from fastflow.train.methods.constant import is_constant, mask_constant


def fit_closed_form(kind: str, dims: int | None, m: Moments) -> Stage:
    """Fit ``kind``; whiten keeps ``dims`` directions (None: all), others remove them (None: 1)."""
    if kind == "standardize":
        return fit_standardize(m)
    if kind == "whiten":
        return fit_whiten(m, dims)
    return (fit_nullspace if kind == "nullspace" else fit_components)(m, 1 if dims is None else dims)


def fit_standardize(m: Moments) -> Stage:
    """Fit (x - mean) / deviation, 1 for a constant channel; raises if all are constant."""
    variance = np.diag(m.covariance)
    constant = mask_constant(m.mean, variance)
    if constant.all():
        raise CannotFit(f"standardize: every channel is constant over the {m.count} {m.unit}; give more {m.unit}")
    return Stage("standardize", {}, {"mean": m.mean, "deviation": np.where(constant, 1.0, np.sqrt(variance))})


def fit_nullspace(m: Moments, remove: int = 1) -> Stage:
    """Centre, and remove the leading principal directions; raises if only rounding noise is left."""
    return Stage("nullspace", {}, {"mean": m.mean, "directions": _find_leading("nullspace", m, remove)})


def fit_components(m: Moments, remove: int = 1) -> Stage:
    """Remove the leading principal directions without centring; raises like nullspace."""
    return Stage("nullspace", {}, {"mean": np.zeros_like(m.mean), "directions": _find_leading("components", m, remove)})


def _find_leading(what: str, m: Moments, remove: int) -> NDArray[np.float64]:
    check_dims(what, remove, len(m.mean) - 1)
    _, vectors, rank = _decompose(m)
    if remove >= rank:
        raise CannotFit(
            f"{what}: {m.count} {m.unit} span {rank} dimensions, and removing {remove} leaves nothing; give more "
            f"{m.unit}"
        )
    return vectors[:, :remove].T.copy()


def fit_whiten(m: Moments, dims: int | None = None) -> Stage:
    """Fit (x - mean) Q Lambda^(-1/2), the leading ``dims`` columns; None for all, 0 for constant ones.

    Raises for too few texts, and if ``dims`` counts a constant direction.
    """
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
    """Give descending eigenvalues, eigenvectors (D, D) in columns, and the rank.

    The largest entry of an eigenvector is positive.
    """
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
