"""Rows that ``--errors skip`` leaves out: counted, and listed in OUT.skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fastflow.atomic import replace_bytes
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import RowFault

if TYPE_CHECKING:
    from tempfile import SpooledTemporaryFile

MOST_PLACES = 20  # skipped rows that a message lists
HELD = 1 << 20  # bytes of the list in memory; a temporary file takes more
FIELDS = ["row", "reason"]


def skipped_path(target: Path) -> Path:
    """Return the path of the list of skipped rows."""
    return target.with_name(target.name + ".skipped")


def is_list(path: Path) -> bool:
    """Whether fastflow wrote ``path``, judged by its first line."""
    try:
        with path.open("rb") as handle:
            found = json.loads(handle.readline(HELD))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and list(found) == FIELDS


def check_list(target: Path) -> None:
    """Raise a UsageError if the list of skipped rows would replace another file."""
    path = skipped_path(target)
    if path.exists() and not is_list(path):
        raise UsageError(f"{path} is no list of skipped rows, and would be replaced; rename it, or choose another -o")


class Skipped:
    """The rows that were left out: ``count``, and ``places`` of the first MOST_PLACES."""

    def __init__(self) -> None:
        self.count, self.places = 0, list[str]()
        self._lines: SpooledTemporaryFile[bytes] | None = None

    def add(self, row: int, fault: RowFault) -> None:
        if len(self.places) < MOST_PLACES:
            self.places.append(fault.place)
        self._append(json.dumps(dict(zip(FIELDS, (row, f"{fault.place}: {fault.fault}"), strict=True))).encode())

    def add_part(self, part: Path, count: int) -> None:
        """Add the list of a part that left out ``count`` rows; raises a FastflowError if it is absent or damaged."""
        path = skipped_path(part)
        try:
            lines = path.read_bytes().splitlines() if count else []
        except OSError as error:
            raise FastflowError(
                f"{path} cannot be read: {error.strerror}; put it back, or make the part again"
            ) from error
        if len(lines) != count:
            raise FastflowError(f"{path} lists {len(lines):,} rows, and the manifest {count:,}; make the part again")
        for line in lines:
            self._append(line)

    def _append(self, line: bytes) -> None:
        if self._lines is None:
            from tempfile import SpooledTemporaryFile

            self._lines = SpooledTemporaryFile(HELD)  # noqa: SIM115 (closed with the object)
        self._lines.write(line + b"\n")
        self.count += 1

    def write(self, target: Path) -> None:
        """Replace the list beside ``target``; remove it if no row was left out. Raises OSError."""
        path = skipped_path(target)
        if self._lines is not None:
            self._lines.seek(0)
            replace_bytes(path, self._lines)
        elif is_list(path):
            path.unlink()

    def describe(self, target: Path | None) -> str:
        more = "; …" * (self.count > len(self.places))
        rows = "1 row is" if self.count == 1 else f"{self.count:,} rows are"
        listed = "" if target is None else f" ({skipped_path(target)} has the reasons)"
        return f"{rows} left out{listed}: {'; '.join(self.places)}{more}"
