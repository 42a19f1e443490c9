"""Writers of JSON and safetensors files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fastflow.values import system_errors


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write ``value`` as a JSON file; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write ``arrays`` as a safetensors file that transformers loads too; makes its folder."""
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    with system_errors():
        save_file(dict(arrays), path, {"format": "pt"})
