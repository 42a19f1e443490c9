"""The log-density that is usual for the corpus of a flow: a field of the manifest, read and never trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fastflow.errors import FastflowError, UsageError
from fastflow.model.hashing import MANIFEST
from fastflow.stages.calibration import Stage
from fastflow.stages.density import density_of
from fastflow.values import short

FIELD = "likelihood"
LARGEST = 1e300  # below the range of a float, which JSON's whole numbers may exceed


class Likelihood(NamedTuple):
    """``share`` of the fitted texts have a log-density below ``log_prob``."""

    log_prob: float
    share: float


def read_likelihood(directory: Path, manifest: dict[str, Any], stages: tuple[Stage, ...]) -> Likelihood | None:
    """The field of that name; None if there is none, as with a calibration that has no density.

    Raises a FastflowError that names the field for values that cannot be.
    """
    if FIELD not in manifest:
        return None
    where, entry = f"{directory / MANIFEST}, field {FIELD}", manifest[FIELD]
    if not isinstance(entry, dict) or set(entry) != set(Likelihood._fields):
        raise FastflowError(f"{where}: must hold {' and '.join(Likelihood._fields)}, not {short(entry)}")
    for name, low, high in (("log_prob", -LARGEST, LARGEST), ("share", 0, 1)):
        value = entry[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
            most = "a finite number" if name == "log_prob" else "above 0 and below 1"
            raise FastflowError(f"{where}, {name}: must be {most}, not {short(value)}")
    try:
        density_of(stages, directory)
    except UsageError as error:
        raise FastflowError(f"{where}: {error}") from error
    return Likelihood(float(entry["log_prob"]), float(entry["share"]))
