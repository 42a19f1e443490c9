"""``fastflow merge``: join parts to the file of one run, in constant memory."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from fastflow.atomic import is_locked
from fastflow.errors import FastflowError, UsageError
from fastflow.files import check_replaceable
from fastflow.files.database import DatabaseFile, about_of, blocks
from fastflow.files.read.parquet import arrow
from fastflow.files.shards.manifest import Manifest, check_bytes, is_present, manifests, part_name
from fastflow.files.write import Block
from fastflow.files.write.outputs import CsvFile, JsonLinesFile, OutputFile, add_part, check_list, read_head, writer_for
from fastflow.files.write.parquet import ParquetOutput, cast, join_schemas
from fastflow.files.write.partial import State, is_unfinished, partial_path, state_path
from fastflow.progress import Progress
from fastflow.values import open_regular, reason, system_failed

ROWS, CHUNK = 4096, 1 << 20  # rows and bytes read at a time


def merge(folder: Path, target: Path, shown: bool = False, overwrite: bool = False) -> list[Manifest]:
    """Join the parts in ``folder`` to ``target``; return their manifests.

    Raises a FastflowError for a part that is missing, changed or of another run, before any byte is written, and for a
    ``target`` that fastflow did not make, unless ``overwrite``.
    """
    kind, found = writer_for(target), manifests(folder)
    check_complete(folder, found)
    paths = [folder / manifest.part for manifest in found]
    for path in paths:
        if path.suffix != target.suffix:
            raise UsageError(f"{target}: the parts are {path.suffix} files, such as {path}; give -o the same suffix")
        if target.exists() and target.samefile(path):
            raise UsageError(f"{target} is one of the parts; choose another output with -o")
    check_replaceable(target, overwrite)
    with Progress("check", sum(path.stat().st_size for path in paths), "bytes", shown) as checked:
        check_bytes(folder, found, checked.advance)
    if any(manifest.skipped for manifest in found):
        check_list(target)
    meta = {name: value for name, value in found[0].run.items() if name != "options"}
    rows = found[0].total - sum(manifest.skipped for manifest in found)
    with Progress("merge", found[0].total, "rows", shown) as progress, kind(target, meta) as writer:
        writer.begin()
        writer.seal = lambda whole: State(target, None, found[0].run).done(whole, rows)
        try:
            for path, manifest in zip(paths, found, strict=True):
                add_part(writer.skipped, path, manifest.skipped)
            if isinstance(writer, DatabaseFile):
                writer.about = about_of(paths[0])
            if isinstance(writer, ParquetOutput):
                writer.rows = rows
                with _joining(f"{folder}: the parts", "make them again"):
                    _join_parquet(writer, paths, progress.advance)
            else:
                for path, manifest in zip(paths, found, strict=True):
                    _append(writer, path, manifest, progress.advance)
                writer.finish()
        except BaseException:
            writer.remove()
            raise
    return found


def check_complete(folder: Path, found: list[Manifest]) -> None:
    """Raise a FastflowError unless all parts have their full size."""
    whole = {manifest.shard[0] for manifest in found if is_present(folder, manifest)}
    of = found[0].shard[1]
    if absent := [str(number) for number in range(1, of + 1) if number not in whole]:
        listed = ", ".join(absent[:10]) + ", …" * (len(absent) > 10)
        which = f"part {listed} of {of} is" if len(absent) == 1 else f"parts {listed} of {of} are"
        raise FastflowError(f"{folder}: {which} missing; fastflow status {folder} shows the commands")


@contextmanager
def _joining(what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the readers raise many kinds for damaged content
        if system_failed(error) or isinstance(error, FastflowError):
            raise
        raise FastflowError(f"{what} cannot be joined: {reason(error)}; {remedy}") from error


def _append(writer: OutputFile, path: Path, manifest: Manifest, count: Callable[[int], None]) -> None:
    rows, (start, stop) = 0, manifest.rows
    joining = _joining(str(path), "make the part again")
    with joining, open_regular(path) as raw, io.BufferedReader(raw) as handle:  # type: ignore[type-var]
        if isinstance(writer, JsonLinesFile | CsvFile):
            if isinstance(writer, CsvFile) and (head := read_head(handle)) and manifest.shard[0] == 1:
                writer.append(head)
            while chunk := handle.read(CHUNK):
                writer.append(chunk)
            writer.rows += stop - start - manifest.skipped
            count(stop - start)
            return
        of_part = blocks(path) if path.suffix == ".db" else _npy_blocks(handle, start)
        for block in of_part:
            writer.write(block)
            rows += len(block.rows)
            count(len(block.rows))
    if rows != (named := stop - start - manifest.skipped):
        raise FastflowError(f"{path} has {rows:,} rows, and its manifest names {named:,}; make the part again")


def _npy_blocks(handle: IO[bytes], start: int) -> Iterator[Block]:
    if npy.read_magic(handle) != (1, 0):
        raise ValueError("its .npy header is of another version")
    (rows, width), fortran, dtype = npy.read_array_header_1_0(handle)
    if fortran:
        raise ValueError("it is stored column by column")
    yield Block([], [], np.zeros((0, width), dtype))
    for first in range(0, rows, ROWS):
        count = min(ROWS, rows - first)
        vectors = np.frombuffer(handle.read(count * width * dtype.itemsize), dtype).reshape(count, width)
        yield Block(range(start + first, start + first + count), [], vectors)


def _join_parquet(writer: ParquetOutput, paths: list[Path], count: Callable[[int], None]) -> None:
    _, parquet = arrow(f"{writer.target}: joining Parquet")
    schemas = [parquet.read_schema(path) for path in paths]
    schema = join_schemas(schemas)
    if schema is None:
        other = next(
            path for path, each in zip(paths, schemas, strict=True) if join_schemas([schemas[0], each]) is None
        )
        raise FastflowError(f"{other} has other columns than {paths[0]}; make the parts again with one version")

    def batches() -> Iterator[Any]:
        for path in paths:
            with parquet.ParquetFile(path, pre_buffer=False) as file:
                for group in range(file.metadata.num_row_groups):
                    for batch in file.iter_batches(ROWS, row_groups=[group]):
                        yield cast(batch, schema)
                        count(batch.num_rows)

    writer.put(schema, batches())


PRESENT = "present"  # with its full size; its content is not checked


class Status(NamedTuple):
    """The parts of a run: the manifest ``first`` of a part, and (file, state) of each part, by number."""

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
    if is_present(folder, manifest):
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
