"""The closed-form calibrations, fitted from the statistics of ``statistics`` in float64.

Standardize is the paper's SN, nullspace its NATSV (Mu & Viswanath 2018, centred), components the same without the
centring, whiten is Su et al. 2021.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import CannotFit, UsageError
from fastflow.stages.calibration import Stage
from fastflow.train.data.moments import Moments

NEGLIGIBLE = 1e-10  # relative to the largest eigenvalue: below it a direction is rounding noise


def fit_closed_form(kind: str, dims: int | None, m: Moments) -> Stage:
    """The stage of the closed form ``kind``; ``dims``, its K, is kept by whiten (None: all), else removed (None: 1)."""
    if kind == "standardize":
        return fit_standardize(m)
    if kind == "whiten":
        return fit_whiten(m, dims)
    return (fit_nullspace if kind == "nullspace" else fit_components)(m, 1 if dims is None else dims)


def fit_standardize(m: Moments) -> Stage:
    """(x - mean) / deviation; raises for a channel that is constant on the corpus."""
    variance = np.diag(m.covariance)
    constant = np.flatnonzero(variance <= NEGLIGIBLE * variance.max())
    if len(constant):
        raise CannotFit(
            f"standardize: channel {constant[0]} is constant over the {m.count} {m.unit}; give more {m.unit} or use "
            "another method"
        )
    return Stage("standardize", {}, {"mean": m.mean, "deviation": np.sqrt(variance)})


def fit_nullspace(m: Moments, remove: int = 1) -> Stage:
    """Centre and remove the ``remove`` leading principal directions; raises when that leaves only rounding noise."""
    return Stage("nullspace", {}, {"mean": m.mean, "directions": _leading("nullspace", m, remove)})


def fit_components(m: Moments, remove: int = 1) -> Stage:
    """Remove the ``remove`` leading principal directions and keep the mean, which is the corpus's own and not that of
    other texts: nullspace with a mean of 0. Raises like it.
    """
    return Stage("nullspace", {}, {"mean": np.zeros_like(m.mean), "directions": _leading("components", m, remove)})


def _leading(what: str, m: Moments, remove: int) -> NDArray[np.float64]:
    """(remove, D), the leading principal directions about the mean."""
    check_dims(what, remove, len(m.mean) - 1)
    values, vectors = _principal(m)
    if remove >= (rank := _rank(values)):
        raise CannotFit(
            f"{what}: {m.count} {m.unit} span {rank} dimensions, and removing {remove} leaves nothing; give more "
            f"{m.unit}"
        )
    return vectors[:, :remove].T.copy()


def fit_whiten(m: Moments, dims: int | None = None) -> Stage:
    """(x - mean) Q Lambda^(-1/2), the leading ``dims`` columns (None: all); raises when the corpus has less rank."""
    dims = len(m.mean) if dims is None else dims
    check_dims("whiten", dims, len(m.mean))
    values, vectors = _principal(m)
    if dims > (rank := _rank(values)):
        remedy = f"use whiten:{rank} or more {m.unit}" if rank else f"give more {m.unit}"
        raise CannotFit(f"whiten: {m.count} {m.unit} span {rank} of the {dims} dimensions; {remedy}")
    return Stage("whiten", {}, {"mean": m.mean, "matrix": vectors[:, :dims] / np.sqrt(values[:dims])})


def _principal(m: Moments) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eigenvalues, descending, and eigenvectors (D, D) in columns, each with its largest entry positive."""
    values, vectors = np.linalg.eigh(m.covariance)
    vectors = vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    return values[::-1], vectors * np.sign(vectors[largest, np.arange(len(values))])


def _rank(values: NDArray[np.float64]) -> int:
    """How many of the descending eigenvalues are more than rounding noise."""
    return int((values > NEGLIGIBLE * values[0]).sum())


def check_dims(what: str, dims: int, most: int) -> None:
    """Raise a UsageError unless ``what`` can take 1 <= ``dims`` <= ``most``."""
    if not 1 <= dims <= most:
        raise UsageError(f"{what}:{dims} is out of range: it takes 1 to {most}")
