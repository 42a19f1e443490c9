"""An existing output is replaced only if a record says that fastflow made all of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fastflow.errors import UsageError
from fastflow.files.write.partial import FAULTS, identify, run_path


def check_replaceable(target: Path, overwrite: bool) -> None:
    """Raise a UsageError if ``target`` exists, unless fastflow made all of it or ``overwrite``."""
    if not os.path.lexists(target):
        return
    if not target.is_symlink() and not target.is_file():
        raise UsageError(f"{target} is not a regular file; choose another output with -o")
    if not overwrite and (reason := _find_foreign(target)) is not None:
        append = ", add to it with --append" * (target.suffix == ".db")
        raise UsageError(
            f"{target} exists, and {reason}: choose another output with -o{append}, or replace it with --overwrite"
        )


def _find_foreign(target: Path) -> str | None:
    if target.is_symlink():
        return "is a link"
    if target.suffix == ".db":
        from fastflow.files.write.database_schema import find_foreign

        if (found := find_foreign(target)) is not None:
            return found
    from fastflow.files.parts.manifest import is_whole, manifest_path, read_manifest

    if manifest_path(target).exists() and is_whole(target.parent, read_manifest(manifest_path(target))):
        return None
    try:
        record = json.loads(run_path(target).read_text(encoding="utf-8"))
        known = identify(target) in (record["file"], record["before"])
    except FAULTS:
        known = False
    return None if known else f"no {run_path(target).name} says that one run made it as it is"
