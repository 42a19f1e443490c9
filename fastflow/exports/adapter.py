"""A calibrated model without the weights of its encoder: whoever has these puts them in their place.

Every other file stays, fastflow.json with the sha256 of the weights too, so that a model with other weights does not
open, and one with the right weights has the fingerprint of the whole.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from fastflow.errors import UsageError
from fastflow.exports.record import Record
from fastflow.model.encoder.weights import weight_files
from fastflow.model.hashing import MANIFEST
from fastflow.model.kinds import Model


def left_out(model: Model) -> list[str]:
    """The files of the model that an adapter lacks, by their paths; none if its encoder lies elsewhere."""
    if not model.encoder.is_relative_to(model.path):
        return []
    return [path.relative_to(model.path).as_posix() for path in weight_files(model.encoder)]


def write_adapter(model: Model, folder: Path, record: Record) -> None:
    """Copy the model to ``folder`` without the weights of its encoder; raises a UsageError for one that is no more."""
    if not model.manifest:
        raise UsageError(f"{model.path} has no calibration of its own: without its weights nothing would be left")
    if record.dim is not None or record.normalize:
        raise UsageError("an adapter is the model itself: give --dim and --normalize where it is used")
    without = left_out(model)
    for name in [MANIFEST, *model.manifest["files"]]:
        if name not in without:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model.path / name, folder / name)
