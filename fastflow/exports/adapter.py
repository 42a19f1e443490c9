"""A calibrated model without its encoder's weights, which a user adds.

fastflow.json keeps their sha256: other weights are refused, the right ones give the model's fingerprint.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from fastflow.errors import UsageError
from fastflow.exports.record import Record
from fastflow.model.encoder.weights import weight_files
from fastflow.model.hashing import MANIFEST
from fastflow.model.kinds import Model


def list_left_out(model: Model) -> list[str]:
    """List the model's files that an adapter lacks."""
    if not model.encoder.is_relative_to(model.path):
        return []
    return [path.relative_to(model.path).as_posix() for path in weight_files(model.encoder)]


def write_adapter(model: Model, folder: Path, record: Record) -> None:
    """Copy the model to ``folder`` without its encoder's weights."""
    if not model.manifest:
        raise UsageError(f"{model.path} has no calibration of its own: without its weights nothing would be left")
    if record.dim is not None or record.normalize:
        raise UsageError("an adapter is the model itself: give --dim and --normalize where it is used")
    without = list_left_out(model)
    for name in [MANIFEST, *model.manifest["files"]]:
        if name not in without:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model.path / name, folder / name)
