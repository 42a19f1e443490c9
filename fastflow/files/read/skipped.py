"""OUT.skipped, which lists the rows that ``--errors skip`` leaves out."""

from __future__ import annotations

import json
from pathlib import Path

from fastflow.atomic import replace_bytes
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import Skipped


def _path(target: Path) -> Path:
    return target.with_name(target.name + ".skipped")


def is_list(path: Path) -> bool:
    """Judge by the first line whether fastflow wrote ``path``."""
    try:
        with path.open("rb") as handle:
            return list(json.loads(handle.readline(1 << 20))) == ["row", "reason"]
    except (OSError, ValueError, TypeError):
        return False


def check_list(target: Path) -> None:
    """Raise a UsageError if the list would replace another file."""
    path = _path(target)
    if path.exists() and not is_list(path):
        raise UsageError(f"{path} is no list of skipped rows, and would be replaced; rename it, or choose another -o")


def write_list(skipped: Skipped, target: Path) -> None:
    """Replace the list beside ``target``; remove it if no row was left out. Raises OSError."""
    if skipped.lines is not None:
        skipped.lines.seek(0)
        replace_bytes(_path(target), skipped.lines)
    elif is_list(_path(target)):
        _path(target).unlink()


def add_part(skipped: Skipped, part: Path, count: int) -> None:
    """Add a part's list of ``count`` rows."""
    path = _path(part)
    try:
        lines = path.read_bytes().splitlines() if count else []
    except OSError as error:
        raise FastflowError(f"{path} cannot be read: {error.strerror}; put it back, or make the part again") from error
    if len(lines) != count:
        raise FastflowError(f"{path} lists {len(lines):,} rows, and the manifest {count:,}; make the part again")
    for line in lines:
        skipped.append(line)
