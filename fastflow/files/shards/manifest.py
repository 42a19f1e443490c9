"""The manifest of a part (one shard's output), PART.shard.json: rows, inputs, model and options.

It is written before the first row, and again with the part's hash after the last: a part with a hash is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.atomic import replace_text
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import InputFormat
from fastflow.files.read.inputs import Input
from fastflow.files.read.parquet import footer, row_count
from fastflow.files.read.sources import Sources
from fastflow.files.read.texts import format_of, rows_so_far
from fastflow.files.write.outputs import writer_for
from fastflow.files.write.partial import STRICT, cannot_write, is_unfinished, read_options
from fastflow.model.hashing import file_hash
from fastflow.values import is_whole, read_object, short

VERSION = 1
ENDING = ".shard.json"
LARGEST = 1 << 26


@dataclass(frozen=True)
class Manifest:
    """A part; ``bytes`` and ``sha256`` are None until it is whole, ``skipped`` is 0.

    ``shard``: (I, N). ``rows``: (first, end) of ``total``. ``arguments``: the command's, without --shard and -o.
    """

    part: str
    shard: tuple[int, int]
    rows: tuple[int, int]
    total: int
    inputs: list[dict[str, Any]]
    run: dict[str, Any]
    arguments: list[str]
    bytes: int | None = None
    sha256: str | None = None
    skipped: int = 0

    def write(self, part: Path) -> None:
        target = manifest_path(part)
        text = json.dumps({"fastflow_shard": VERSION, **asdict(self)}, indent=1, ensure_ascii=False)
        try:
            replace_text(target, text + "\n")
        except OSError as error:
            raise cannot_write(target, error) from error

    def describe(self) -> str:
        (number, of), (start, stop) = self.shard, self.rows
        rows = f"rows {start:,} to {stop - 1:,} of {self.total:,}" if stop > start else f"none of {self.total:,} rows"
        return f"part {number} of {of}, {rows}"

    def add_hash(self, whole: Path, skipped: int = 0) -> Manifest:
        return replace(self, bytes=whole.stat().st_size, sha256=file_hash(whole), skipped=skipped)

    def difference(self, other: Manifest) -> str | None:
        """Describe why the parts cannot be joined, or None."""
        mine, others = ([(i["rows"], i["size"], i["sha256"]) for i in m.inputs] for m in (self, other))
        if len(mine) != len(others):
            return f"{len(mine)} inputs, and of {len(others)}"
        for at, (a, b) in enumerate(zip(mine, others, strict=True)):
            if a != b:
                ours, theirs = self.inputs[at]["name"], other.inputs[at]["name"]
                return f"two versions of {ours}" if ours == theirs else f"two inputs, {ours} and {theirs}"
        if self.run.get("fingerprint") != other.run.get("fingerprint"):
            return "two models"
        if self.shard[1] != other.shard[1]:
            return f"{self.shard[1]} parts, and of {other.shard[1]}"
        own, foreign = (m.run | {"options": None} | read_options(m.run) for m in (self, other))
        for name, value in own.items():
            theirs = foreign.get(name)
            strict = name in STRICT and STRICT[name] in (value, theirs)  # strict only refuses rows: parts may differ
            if theirs != value and not strict:
                return f"two sets of options: {name} is {value!r}, and {theirs!r}"
        return None


def part_path(output: Path, shard: tuple[int, int], suffix: str = ".npy") -> Path:
    """Return ``output``, or if it is a folder, the part's path in it."""
    return output if output.suffix and not os.path.isdir(output) else output / part_name(shard, suffix)


def make_folder(part: Path) -> None:
    """Make the folder of ``part``; raises a FastflowError."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(part.parent, error) from error


def part_name(shard: tuple[int, int], suffix: str) -> str:
    """Return a name such as part-00001-of-00003.npy."""
    width = max(5, len(str(shard[1])))
    return f"part-{shard[0]:0{width}}-of-{shard[1]:0{width}}{suffix}"


def manifest_path(part: Path) -> Path:
    """Return the path of a part's manifest."""
    return part.with_name(part.name + ENDING)


def manifest_of(
    part: Path, shard: tuple[int, int], paths: list[str], found: list[Counted], run: dict[str, Any], given: list[str]
) -> Manifest:
    """Make the manifest of a part before its first row."""
    total = sum(each.rows for each in found)
    inputs = [{"name": path, **each._asdict()} for path, each in zip(paths, found, strict=True)]
    options = {name: value for name, value in run.get("options", {}).items() if name != "shard"}
    run = json.loads(json.dumps(run | {"options": options}))
    return Manifest(part.name, shard, span(total, shard), total, inputs, run, given)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; raises a FastflowError for a damaged one."""
    try:
        found = read_object(path, LARGEST)
    except FastflowError as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise FastflowError(f"{error}; remove it and make the part again") from error
    version = found.pop("fastflow_shard", None)
    if version != VERSION:
        raise FastflowError(
            f"{path} is of version {short(version)} of the manifest, and this fastflow reads {VERSION}; update, or "
            "remove it and make the part again"
        )
    if found_wrong := find_wrong_field(found):
        raise FastflowError(f"{path} is damaged, field {found_wrong}; remove it and make the part again")
    return Manifest(**found | {"shard": tuple(found["shard"]), "rows": tuple(found["rows"])})


def manifests(folder: Path) -> list[Manifest]:
    """Return the manifests in ``folder``, sorted by part; raises a FastflowError unless all are of one run."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.endswith(ENDING))
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}; name the folder of the parts") from error
    if not paths:
        raise FastflowError(f"{folder} holds no parts; make them with fastflow embed INPUT --shard I/N -o {folder}")
    found = sorted((read_manifest(path) for path in paths), key=lambda each: each.shard[0])
    for each in found:
        writer_for(folder / each.part)
    for each in found[1:]:
        if difference := each.difference(found[0]):
            raise FastflowError(
                f"{folder / each.part} and {found[0].part} are of {difference}; keep the parts of one run in this "
                f"folder, and remove the others, each with its {ENDING}"
            )
    for one, other in pairwise(found):
        if one.shard == other.shard:
            raise FastflowError(
                f"{folder / one.part} and {other.part} are both part {one.shard[0]}; remove one of them and "
                f"its {ENDING}"
            )
    return found


def is_done(part: Path, manifest: Manifest) -> bool:
    """Whether ``part`` is finished; raises a FastflowError if another run made it."""
    if not part.exists() or is_unfinished(part):
        return False
    if not manifest_path(part).exists():
        raise UsageError(
            f"{part} is finished, and no part: it has no {manifest_path(part).name}; leave out --resume to replace it, "
            "or choose another output with -o"
        )
    before = read_manifest(manifest_path(part))
    difference = before.difference(manifest) or ("two parts" if before.shard != manifest.shard else None)
    if difference:
        raise FastflowError(
            f"{part} and this run are of {difference}; choose another -o, or leave out --resume to make it again"
        )
    return is_present(part.parent, before)


def check_beside(part: Path, manifest: Manifest) -> None:
    """Raise a FastflowError if a part in its folder could not be merged with ``part``."""
    for path in sorted(part.parent.glob(f"*{ENDING}")):
        if path != manifest_path(part) and (difference := manifest.difference(other := read_manifest(path))):
            raise FastflowError(
                f"{part.name} and {path.parent / other.part} are of {difference}; give each run a folder of its own, "
                f"or remove the parts of the other, each with its {ENDING}"
            )


def is_present(folder: Path, manifest: Manifest) -> bool:
    """Whether the part has the size in its manifest."""
    part = folder / manifest.part
    return manifest.sha256 is not None and part.is_file() and part.stat().st_size == manifest.bytes


def check_bytes(folder: Path, found: Iterable[Manifest], count: Callable[[int], None] = lambda read: None) -> None:
    """Raise a FastflowError unless every part has the sha256 in its manifest."""
    for manifest in found:
        part = folder / manifest.part
        if file_hash(part, count) != manifest.sha256:
            raise FastflowError(
                f"{part} is not as it was made: its sha256 is another; remove it, then fastflow status {folder} shows "
                "the command that makes it again"
            )


class Counted(NamedTuple):
    """Numbers of rows and bytes of an input, and the sha256 of its unpacked content or Parquet footer."""

    rows: int
    size: int
    sha256: str


def count_rows(source: Input, layout: InputFormat) -> Counted:
    """Count the rows; raises a UsageError for a pipe, a FastflowError for a damaged line."""
    if source.identity is None:
        raise not_countable(source.path)
    size = source.identity[0]
    if format_of(source.path, layout.format) == "parquet":
        return Counted(row_count(source), size, hashlib.sha256(footer(source)).hexdigest())
    source.digest = hashlib.sha256()
    return Counted(max(rows_so_far(source, layout), default=0), size, source.digest.hexdigest())


def not_countable(path: str) -> UsageError:
    """Return the error for a pipe with --shard."""
    what = "standard input" if path == "-" else f"{path}, which is not a file,"
    return UsageError(f"--shard counts the rows before it takes its part, and cannot read {what} twice; give a file")


class Split(NamedTuple):
    """The counted inputs, and the row numbers of one shard: ``start`` to ``stop`` - 1."""

    inputs: list[Counted]
    start: int
    stop: int

    @property
    def counts(self) -> list[int]:
        return [each.rows for each in self.inputs]


def split_rows(sources: Sources, layout: InputFormat, shard: tuple[int, int]) -> Split:
    """Count the inputs and find the rows of ``shard``; raises as ``count_rows``."""
    found = [count_rows(sources.open(at), layout) for at in range(len(sources.paths))]
    return Split(found, *span(sum(each.rows for each in found), shard))


def span(rows: int, shard: tuple[int, int]) -> tuple[int, int]:
    """Return shard I of N as (first row, row after its last); shards differ by at most one row."""
    number, of = shard
    return rows * (number - 1) // of, rows * number // of


MOST_ROWS = 2**62
MOST_PARTS = 1_000_000


def find_wrong_field(found: dict[str, Any]) -> str | None:
    """Describe the first wrong field of the manifest ``found``, or None."""
    for name, fits in _FIELDS.items():
        if name not in found:
            return f"{name}: missing"
        if not fits(found[name]):
            return f"{name}: {short(found[name])}"
    if extra := sorted(found.keys() - _FIELDS.keys()):
        return f"{short(extra[0])}, which no manifest has"
    number, of = found["shard"]
    if not 1 <= number <= of or tuple(found["rows"]) != span(found["total"], (number, of)):
        return f"rows: {short(found['rows'])} of {found['total']} are not those of part {number} of {of}"
    if found["total"] != sum(each["rows"] for each in found["inputs"]):
        return f"total: {found['total']} rows are not those of the inputs"
    if found["skipped"] > found["rows"][1] - found["rows"][0]:
        return f"skipped: {found['skipped']} rows are more than the part has"
    if (found["bytes"] is None) != (found["sha256"] is None):
        return "sha256: a part that is whole has bytes and sha256"
    return None


def _counts(value: Any, most: int = MOST_ROWS) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(is_whole(each, 0, most) for each in value)


def _is_input(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"name", *Counted._fields}
        and isinstance(value["name"], str)
        and is_whole(value["rows"], 0, MOST_ROWS)
        and is_whole(value["size"], 0, MOST_ROWS)
        and _is_hash(value["sha256"])
    )


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _is_run(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    options = value.get("options", {})
    plain = all(isinstance(each, str | int | float | None) for name, each in value.items() if name != "options")
    return plain and isinstance(options, dict)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "part": lambda v: isinstance(v, str) and v not in ("", "..") and Path(v).name == v and len(v) < 256,
    "shard": lambda v: _counts(v, MOST_PARTS),
    "rows": _counts,
    "total": lambda v: is_whole(v, 0, MOST_ROWS),
    "inputs": lambda v: isinstance(v, list) and bool(v) and all(map(_is_input, v)),
    "run": _is_run,
    "arguments": lambda v: isinstance(v, list) and all(isinstance(each, str) for each in v),
    "bytes": lambda v: v is None or is_whole(v, 0, MOST_ROWS),
    "sha256": lambda v: v is None or _is_hash(v),
    "skipped": lambda v: is_whole(v, 0, MOST_ROWS),
}
