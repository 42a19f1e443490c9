"""A benchmark's results as a JSON file to keep."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError


def number(value: Any) -> Any:
    """Floats at six significant digits, inside lists and dictionaries too: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: number(item) for key, item in value.items()}
    return [number(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write ``report`` (machine, rows, ratios, ...) to ``path``, whole or not at all."""
    text = json.dumps(number(report), indent=1, allow_nan=False) + "\n"
    replace(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a file next to ``path``, then give it its name."""
    partial = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        write(partial)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise FastflowError(f"{path} cannot be written: {error.strerror or error}") from error
