"""The files of an export: record, JSON and tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.values import is_whole, read_object, short, system_errors

RECORD = "fastflow-export.json"


class ExportRecord(NamedTuple):
    """Format, model fingerprint and options of an export."""

    format: str
    fingerprint: str
    dim: int | None = None
    normalize: bool = False
    dtype: str = "float32"

    def options(self) -> dict[str, Any]:
        return {"truncate_dim": self.dim, "normalize_embeddings": self.normalize}

    def check(self, where: Path, fingerprint: str) -> None:
        if self.fingerprint != fingerprint:
            raise FastflowError(
                f"{where} was exported from another model: its fingerprint is {self.fingerprint[:16]}, not "
                f"{fingerprint[:16]}; export the model again"
            )


def read_record(folder: Path, wanted: str) -> ExportRecord:
    """Read the record of an export of the format ``wanted``."""
    path = folder / RECORD
    if not path.is_file():
        raise UsageError(f"{folder} was not written by fastflow export: it has no {RECORD}")
    found = read_object(path)
    kinds = {"format": str, "fingerprint": str, "normalize": bool, "dtype": str}
    for name, kind in kinds.items():
        if not isinstance(found.get(name), kind):
            raise FastflowError(f"{path}, field {name}: must be a {kind.__name__}, not {short(found.get(name))}")
    if (dim := found.get("dim")) is not None and not is_whole(dim, 1):
        raise FastflowError(f"{path}, field dim: must be a whole number or null, not {short(dim)}")
    if found["format"] != wanted:
        raise UsageError(f"{folder} is an export of the format {short(found['format'])}, not {wanted!r}")
    return ExportRecord(found["format"], found["fingerprint"], dim, found["normalize"], found["dtype"])


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write ``value`` as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write ``arrays`` as a safetensors file that transformers loads too."""
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    with system_errors():
        save_file(dict(arrays), path, {"format": "pt"})
