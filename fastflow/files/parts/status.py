"""``fastflow status``: the parts in a folder, those that are missing, and the command that makes each."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from fastflow.files.parts.manifest import Manifest, is_whole, manifests, part_name, unfinished
from fastflow.files.write.locks import try_lock
from fastflow.files.write.partial import partial_path, state_path
from fastflow.values import open_regular

PRESENT = "present"  # in full, by its size; its bytes are not read


def report(folder: Path) -> list[str]:
    """The lines of the report: a line a part, then a command a part that is not there and not being written.

    Sizes are compared; ``fastflow merge`` compares the bytes. Raises as ``manifests`` does.
    """
    found = {manifest.shard[0]: manifest for manifest in manifests(folder)}
    first = next(iter(found.values()))
    of, suffix = first.shard[1], Path(first.part).suffix
    lines, commands, present = [], [], 0
    for number in range(1, of + 1):
        part = folder / (found[number].part if number in found else part_name((number, of), suffix))
        state = _state(folder, part, found.get(number))
        present += state == PRESENT
        lines.append(f"{number:>{len(str(of))}}/{of}  {part.name}  {state}")
        if state not in (PRESENT, "being written"):
            commands.append(command(first, part, number))
    names = ", ".join(each["name"] for each in first.inputs[:3]) + ", …" * (len(first.inputs) > 3)
    model = str(first.run.get("fingerprint"))[:12]
    lines.insert(0, f"{folder}: {present} of {of} parts of {names}, {first.total:,} rows, model {model}")
    if commands:
        return [*lines, "Commands that make the rest:", *commands]
    if present == of:
        merge = f"fastflow merge {shlex.quote(str(folder))} -o OUT{suffix}"
        lines.append(f"Every part is there; this joins them, and first compares the sha256 of each: {merge}")
    return lines


def command(first: Manifest, part: Path, number: int) -> str:
    """The command that makes a part, typed in the folder in which the others were begun."""
    words = ["fastflow", "embed", *first.arguments, "--shard", f"{number}/{first.shard[1]}", "-o", str(part)]
    return shlex.join([*words, *["--resume"] * unfinished(part)])


def _state(folder: Path, part: Path, manifest: Manifest | None) -> str:
    """One of: missing, without its manifest, being written, N of M rows, of another size, PRESENT."""
    if manifest is None:
        return "without its manifest" if part.exists() else "missing"
    start, stop = manifest.rows
    if _is_held(partial_path(part)):
        return "being written"
    if unfinished(part):
        return f"{_rows(part):,} of {stop - start:,} rows"
    if is_whole(folder, manifest):
        return PRESENT
    return "of another size than it was made" if manifest.sha256 and part.exists() else "missing"


def _is_held(path: Path) -> bool:
    try:
        with open_regular(path) as handle:
            return not try_lock(handle)
    except OSError:  # none is there, or it is no file of a run
        return False


def _rows(part: Path) -> int:
    try:
        return int(json.loads(state_path(part).read_text(encoding="utf-8"))["rows"])
    except (OSError, ValueError, KeyError, TypeError):  # it is being replaced
        return 0
