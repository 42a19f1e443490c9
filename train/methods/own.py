"""A user's calibration: an object with ``fit(X)`` and ``transform(X)``, as scikit-learn's transformers have them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.train.methods.chain import Fitted, take_sample
from fastflow.train.options import OWN, TrainOptions
from fastflow.train.reporter import refuse
from fastflow.transforms.calibration import PYTHON, Stage, transform_in_python
from fastflow.transforms.truncation import Rows

TOLERANCE = 1e-4  # largest difference of a linear map to ``transform``, over its largest value


def check_own(calibration: Any, method: str) -> None:
    """Raise a UsageError unless ``calibration`` can be fitted, and only it is asked for."""
    for name in ("fit", "transform"):
        if not callable(getattr(calibration, name, None)):
            kind = type(calibration).__name__
            raise UsageError(f"calibration must have fit(X) and transform(X), and {kind} has no {name}")
    if method != "auto":
        raise UsageError(f"calibration is fitted in place of a method: leave out method={method!r}")


def check_options(options: TrainOptions, calibration: Any) -> None:
    """Raise a UsageError for a command's ``own``, and for a corpus of which only sums are kept."""
    if options.method == OWN and calibration is None:
        raise refuse("{method:own} is an object, the argument calibration of fastflow.fit: name another {method}")
    if options.stream and calibration is not None:
        raise refuse("{stream} keeps sums of a corpus, and calibration is fitted to its rows: leave one out")


def fit_own(calibration: Any, rows: Rows) -> Fitted:
    """Fit ``calibration`` to rows (n, D) of float32; a linear map becomes a stage of arrays, any other stays Python.

    Raises a FastflowError if ``transform`` does not give finite floats (n, D').
    """
    calibration.fit(np.ascontiguousarray(rows[:], np.float32))
    x = np.asarray(take_sample(rows), np.float32)
    z = transform_in_python(calibration, x)
    if not np.isfinite(z).all():
        raise FastflowError(
            f"{type(calibration).__name__}.transform gave NaN or infinity for the rows it was fitted on"
        )
    linear = _find_linear(calibration, x, z)
    return Fitted([linear or Stage(PYTHON, {"object": calibration, "dim": z.shape[1]})])


def _find_linear(calibration: Any, x: NDArray[np.float32], z: NDArray[Any]) -> Stage | None:
    """Find x A + b that ``transform`` computes, from its values at 0 and on each axis; None if it is not linear."""
    size = max(float(np.abs(x).max()), 1e-6)
    axes = np.vstack([np.zeros((1, x.shape[1])), size * np.eye(x.shape[1])])
    at = transform_in_python(calibration, axes).astype(np.float64)
    matrix, shift = (at[1:] - at[0]) / size, at[0]
    far = np.vstack([x, -3 * x[:32]])
    wanted = np.vstack([z, transform_in_python(calibration, far[len(x) :])]).astype(np.float64)
    difference = np.abs(far.astype(np.float64) @ matrix + shift - wanted).max()
    if not difference <= TOLERANCE * np.abs(wanted).max():  # NaN must fail
        return None
    return Stage("linear", {}, {"matrix": matrix, "shift": shift})
