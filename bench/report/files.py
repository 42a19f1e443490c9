"""A benchmark's results as a JSON file to keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastflow.console import write_text


def number(value: Any) -> Any:
    """Floats at six significant digits, inside lists and dictionaries too: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: number(item) for key, item in value.items()}
    return [number(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write ``report`` (machine, rows, ratios, ...) to ``path``, whole or not at all."""
    write_text(str(path), json.dumps(number(report), indent=1, allow_nan=False) + "\n")
