"""``fastflow status``: the parts in a folder."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.files.parts.manifest import Manifest, is_whole, manifests, part_name
from fastflow.files.write.locks import is_locked
from fastflow.files.write.partial import is_unfinished, partial_path, state_path

PRESENT = "present"  # with its full size; its content is not checked


class Status(NamedTuple):
    """The parts of a run: the manifest ``first`` of one, and (file, state) of each, by number."""

    folder: Path
    first: Manifest
    parts: list[tuple[Path, str]]

    @classmethod
    def of(cls, folder: Path) -> Status:
        found = {manifest.shard[0]: manifest for manifest in manifests(folder)}
        first = next(iter(found.values()))
        count, suffix, parts = first.shard[1], Path(first.part).suffix, []
        for number in range(1, count + 1):
            part = folder / (found[number].part if number in found else part_name((number, count), suffix))
            parts.append((part, _state(folder, part, found.get(number))))
        return cls(folder, first, parts)

    @property
    def present(self) -> int:
        return sum(state == PRESENT for _, state in self.parts)

    def commands(self) -> dict[int, str]:
        """Return {number: command} of parts that are neither whole nor being written."""
        return {
            number: command(self.first, part, number)
            for number, (part, state) in enumerate(self.parts, 1)
            if state not in (PRESENT, "being written")
        }

    def lines(self) -> list[str]:
        first, of, commands = self.first, len(self.parts), self.commands()
        names = ", ".join(each["name"] for each in first.inputs[:3]) + ", …" * (len(first.inputs) > 3)
        model = str(first.run.get("fingerprint"))[:12]
        head = f"{self.folder}: {self.present} of {of} parts of {names}, {first.total:,} rows, model {model}"
        rows = [f"{n:>{len(str(of))}}/{of}  {part.name}  {state}" for n, (part, state) in enumerate(self.parts, 1)]
        if commands:
            return [head, *rows, "Commands that make the rest:", *commands.values()]
        if self.present == of:
            merge = f"fastflow merge {shlex.quote(str(self.folder))} -o OUT{Path(first.part).suffix}"
            rows.append(f"Every part is there; this joins them, and first compares the sha256 of each: {merge}")
        return [head, *rows]

    def json(self) -> dict[str, Any]:
        commands = self.commands()
        parts = [
            {"part": number, "file": part.name, "state": state, "command": commands.get(number)}
            for number, (part, state) in enumerate(self.parts, 1)
        ]
        about = {"rows": self.first.total, "fingerprint": self.first.run.get("fingerprint")}
        return {"folder": str(self.folder), "present": self.present, "of": len(parts), **about, "parts": parts}


def command(first: Manifest, part: Path, number: int) -> str:
    """Return the command that makes ``part``, to run in the first command's folder."""
    words = ["fastflow", "embed", *first.arguments, "--shard", f"{number}/{first.shard[1]}", "-o", str(part)]
    again = "--resume" if is_unfinished(part) else "--overwrite"
    return shlex.join([*words, *[again] * (is_unfinished(part) or part.exists())])


def _state(folder: Path, part: Path, manifest: Manifest | None) -> str:
    if manifest is None:
        return "without its manifest" if part.exists() else "missing"
    start, stop = manifest.rows
    if _is_held(partial_path(part)):
        return "being written"
    if is_unfinished(part):
        return f"{_rows(part):,} of {stop - start:,} rows"
    if is_whole(folder, manifest):
        return PRESENT
    return "of another size than it was made" if manifest.sha256 and part.exists() else "missing"


def _is_held(path: Path) -> bool:
    try:
        return is_locked(path)
    except OSError:  # absent, or no regular file
        return False


def _rows(part: Path) -> int:
    try:
        return int(json.loads(state_path(part).read_text(encoding="utf-8"))["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
