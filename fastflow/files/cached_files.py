"""The user's cache folder: list and remove its files, and find files in use.

    KEY.npy           the pooled embeddings of one corpus by one encoder; KEY is the sha256 of both and of the pooling
    KEY.npy.partial   the same, unfinished: a run with the same KEY continues it
    KEY.json          encoder and corpus by name, for ``fastflow cache``
    KEY.int8          a trial: how far int8 is from float32 (``backends.precision``)

A file in use is locked (flock).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastflow.atomic import is_locked, replace_text, try_lock
from fastflow.cache_folder import OWN, TRIAL
from fastflow.errors import FastflowError
from fastflow.files.write.partial import partial_path

KEY = 64  # characters of a file's key
OURS = re.compile(rf"[0-9a-f]{{{KEY}}}\.(npy|npy\.partial|int8)")
MAGIC = b"\x93NUMPY"
DAY = 86_400.0


def bytes_for_people(size: int) -> str:
    """Return a size in words: ``12 MB``."""
    if size < 1e6:
        return f"{-(-size // 1000)} kB"
    return f"{size / 1e6:,.1f} MB" if size < 1e7 else f"{size / 1e6:,.0f} MB"


def description_path(path: Path) -> Path:
    """Return the path of the description of the array ``path``, finished or not."""
    return path.with_name(path.name[:KEY] + ".json")


def describe(path: Path, about: dict[str, Any]) -> None:
    """Write ``about``, the origin of the array ``path``, next to it."""
    replace_text(description_path(path), json.dumps({"fastflow_cache": 1, **about}), OWN)


@dataclass(frozen=True)
class CachedFile:
    """A file of the cache: an array, finished or not, or a trial of int8."""

    path: Path
    size: int
    made: float
    about: dict[str, Any]
    in_use: bool

    def describe(self, now: float) -> str:
        size, age = bytes_for_people(self.size), _age(now - self.made)
        state = ("finished" if self.path.suffix == ".npy" else "unfinished") + ", in use" * self.in_use
        of = "of an unknown corpus"
        if "texts" in self.about:
            of = "{texts:,} texts of {corpus}, encoder {encoder}".format_map(self.about)
        if self.path.suffix == ".int8":
            state, of = "trial of int8", self.about.get("model", "damaged")
        return f"{self.path.name[:12]}  {size:>8}  {age:>10}  {state:18}  {of}"

    def json(self) -> dict[str, Any]:
        kind = {".npy": "embeddings", ".int8": "trial of int8"}.get(self.path.suffix, "unfinished embeddings")
        facts = {"file": self.path.name, "kind": kind, "bytes": self.size, "made": self.made, "in_use": self.in_use}
        return facts | {"about": self.about}


def _age(seconds: float) -> str:
    for size, unit in ((DAY, "day"), (3600, "hour"), (60, "minute")):
        if (count := int(seconds // size)) >= 1:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "just now"


def count_in_words(found: list[CachedFile]) -> str:
    """Return number and size in words: ``2 entries, 3.1 MB``."""
    return f"{len(found)} {'entry' if len(found) == 1 else 'entries'}, {bytes_for_people(sum(e.size for e in found))}"


def entries(directory: Path) -> list[CachedFile]:
    """Return the entries of ``directory``, oldest first."""
    try:
        paths = [path for path in directory.iterdir() if OURS.fullmatch(path.name)] if directory.exists() else []
    except OSError as error:
        raise FastflowError(f"the cache {directory} cannot be read: {error.strerror}") from error
    found = []
    for path in paths:
        try:
            if path.is_symlink() or not path.is_file() or not _is_ours(path):
                continue
            stat, in_use = path.stat(), is_locked(path)
        except FileNotFoundError:  # renamed or removed by another process meanwhile
            continue
        except OSError as error:
            raise FastflowError(f"{path} cannot be read: {error.strerror}") from error
        about = _about_trial(path) if path.suffix == ".int8" else _about(description_path(path))
        found.append(CachedFile(path, stat.st_size, stat.st_mtime, about, in_use))
    return sorted(found, key=lambda entry: (entry.made, entry.path))


def _is_ours(path: Path) -> bool:
    with path.open("rb") as handle:
        if path.suffix == ".int8":
            return handle.read(len(TRIAL)) == TRIAL
        return handle.read(len(MAGIC)) in (MAGIC, b"", bytes(len(MAGIC)))  # an array gets its header at the end


def _about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = isinstance(about, dict) and about.get("fastflow_cache") == 1 and isinstance(about.get("texts"), int)
    return about if known and {"corpus", "encoder"} <= about.keys() else {}


def _about_trial(path: Path) -> dict[str, Any]:
    from fastflow.backends.precision import read_trial

    return {} if (read := read_trial(path)) is None else read[0]


def clear(found: list[CachedFile]) -> tuple[list[CachedFile], list[CachedFile]]:
    """Remove the entries ``found``; return (removed, kept because in use)."""
    removed = [entry for entry in found if _remove(entry.path)]
    return removed, [entry for entry in found if entry not in removed]


def _remove(path: Path) -> bool:
    try:
        with path.open("rb") as handle:
            if not try_lock(handle):
                return False
            path.unlink()
            about, array = description_path(path), path.with_name(path.name[:KEY] + ".npy")
            if not (array.exists() or partial_path(array).exists()) and _about(about):
                about.unlink()
    except FileNotFoundError:  # renamed or removed meanwhile
        return True
    except OSError as error:
        raise FastflowError(f"{path} cannot be removed: {error.strerror}") from error
    return True
