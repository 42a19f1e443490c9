"""Numbers in an encoder's config.json, each checked as it is read; ``where`` is the directory that holds the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError
from fastflow.values import MOST, is_whole, read_object, short


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of an encoder directory; raises when it is absent or not JSON."""
    path = directory / "config.json"
    if not path.exists():
        raise FastflowError(f"{directory} is not an encoder: it has no config.json")
    return read_object(path)


def whole_number(config: dict[str, Any], name: str, where: Path, least: int = 1, most: int = MOST) -> int:
    """The field ``name`` of an encoder's config, a JSON whole number; raises naming file and field, ``where`` they are.

    4.0, "4" and true are refused, as transformers refuses them: a file that holds them was not written by it.
    """
    value = config.get(name)
    if type(value) is not int:
        said = "missing" if name not in config else f"missing or not a whole number: {short(value)}"
        raise FastflowError(f"{where / 'config.json'}, field {name}: {said}")
    if not is_whole(value, least, most):
        bound = f"at least {least}" if value < least else f"at most {most}"
        raise FastflowError(f"{where / 'config.json'}, field {name}: must be {bound}, not {short(value)}")
    return value


def number(value: Any, name: str, where: Path, least: float, most: float) -> float:
    """``value``, of the field ``name``, a JSON number within bounds; raises naming file and field."""
    if type(value) not in (int, float) or not least <= value <= most:  # NaN is neither
        raise FastflowError(
            f"{where / 'config.json'}, field {name}: must be a number from {least:g} to {most:g}, not {short(value)}"
        )
    return float(value)


def flag(config: dict[str, Any], name: str, where: Path) -> bool:
    """The field ``name``, true or false, false if it is missing; raises naming file and field."""
    value = config.get(name, False)
    if type(value) is not bool:
        raise FastflowError(f"{where / 'config.json'}, field {name}: must be true or false, not {short(value)}")
    return value
