"""Write a .npy, .jsonl or .csv file, the base of all outputs, and the choice of the class by the suffix.

A file grows as NAME.partial next to the target and is renamed when whole, in constant memory.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from numpy.lib import format as npy

from fastflow.atomic import replace_bytes
from fastflow.console import add_note, say
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import Skipped
from fastflow.files.write import FIELDS, Block, as_text, json_lines, number_list
from fastflow.files.write.partial import State, build_path, cannot_write, open_partial, partial_path


class OutputFile:
    """Appends rows to NAME.partial, locked; subclasses encode rows and write header and end."""

    header_bytes = 0
    keeps_fields = True  # whether the format has ids and fields
    own: tuple[str, ...] = ()  # names of the fields that this format adds

    def __init__(
        self, target: Path, meta: dict[str, Any], mode: int = 0o666, waiting: Callable[[], None] | None = None
    ) -> None:
        self.target, self.partial, self.meta = target, partial_path(target), meta
        self.rows = 0
        self.named = self.unused = False  # the file got its name, or had no rows and replaced none
        self.started: Callable[[], None] | None = None  # called before the first rows are written
        self.seal: Callable[[Path], None] | None = None  # called with the whole file before the renaming
        self.types: dict[str, Any] = {}  # Arrow types of the input's columns
        self.of_shard = False  # whether this is a part of a run
        self.about: dict[str, Any] = {}  # more about the run, for .db
        self.words = True  # whether a .db has a table for word search
        self.skipped = Skipped()  # rows of the input that are not written
        self.handle = open_partial(self.partial, mode, waiting)

    @classmethod
    def check_extra(cls, target: Path) -> None:
        """Raise a FastflowError if the format's library is absent."""

    @staticmethod
    def same(name: str) -> str:
        return name

    def begin(self, resume_at: int | None = None) -> None:
        """Empty NAME.partial, or cut it at ``resume_at`` bytes."""
        try:
            self.handle.truncate(resume_at or 0)
            self.handle.seek(resume_at or self.header_bytes)
        except OSError as error:
            raise cannot_write(self.partial, error) from error

    def write(self, block: Block) -> None:
        if len(block.rows) and self.started is not None:
            self.started()
            self.started = None
        self.append(self.encode(block))
        self.rows += len(block.rows)
        self.note(block)

    def append(self, data: bytes) -> None:
        try:
            self.handle.write(data)
            self.handle.flush()
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def skip(self, block: Block) -> None:
        """Count rows that an interrupted run wrote; ``block`` has no vectors."""
        self.rows += len(block.rows)
        self.note(block)

    def note(self, block: Block) -> None:
        """Record facts about ``block`` for the end of the file."""

    def sync(self) -> int:
        """Flush to the disk; returns the size in bytes."""
        try:
            self.handle.flush()  # a patched header may be in Python's buffer
            os.fsync(self.handle.fileno())
        except OSError as error:
            raise cannot_write(self.target, error) from error
        return self.handle.tell()

    def finish(self) -> None:
        try:
            self.complete(self.handle)
            self.sync()
            self.name(self.partial)
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def name(self, whole: Path) -> None:
        """Rename the ``whole`` file, unless it has no rows and would replace a file."""
        if not (self.rows or self.of_shard) and os.path.lexists(self.target):
            self.unused = True
            self.remove()
            return
        self.list_skipped()
        if self.seal is not None:
            self.seal(whole)
        whole.replace(self.target)
        self.named = True

    def list_skipped(self) -> None:
        """Write OUT.skipped, or remove the file of an earlier run."""
        if self.skipped.count or os.path.exists(f"{self.target}.skipped"):
            write_list(self.skipped, self.target)

    @contextlib.contextmanager
    def apart(self) -> Iterator[Path]:
        """Give a path for the whole file, which is renamed after the block."""
        path = build_path(self.target)
        try:
            path.unlink(missing_ok=True)  # left by a killed run
            yield path
            self.name(path)
        except OSError as error:
            raise cannot_write(self.target, error) from error
        finally:
            path.unlink(missing_ok=True)
            if self.named:
                self.remove()

    def remove(self) -> None:
        self.partial.unlink(missing_ok=True)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # write() has reported a full disk
            self.handle.close()

    def encode(self, block: Block) -> bytes:
        raise NotImplementedError

    def complete(self, handle: BinaryIO) -> None:
        """Write the header, after all rows."""


class JsonLinesFile(OutputFile):
    """Writes .jsonl: the lines of ``StandardOutput``."""

    own = FIELDS

    def encode(self, block: Block) -> bytes:
        return json_lines(block).encode("utf-8")


class NpyFile(OutputFile):
    """Writes .npy of shape (rows, D'), little-endian; its header is written at the end.

    Rows can be appended after an interruption: the caller or ``State`` knows how many are whole.
    """

    header_bytes = 128  # NumPy leaves room for any number of rows
    keeps_fields = False

    def encode(self, block: Block) -> bytes:
        self.dtype, self.width = block.vectors.dtype, block.vectors.shape[1]
        return block.vectors.tobytes()

    def complete(self, handle: BinaryIO) -> None:
        handle.seek(0)
        shape = self.rows, self.width
        npy.write_array_header_1_0(handle, {"descr": self.dtype.str, "fortran_order": False, "shape": shape})


@contextlib.contextmanager
def growing(writer: OutputFile, state: State, resume: bool) -> Iterator[int]:
    """Empty NAME.partial, or keep its finished rows if ``resume``; give their number.

    After an error, which gets a note, finished rows stay in NAME.partial. A finished file that is not a part gets a
    record for --resume.
    """
    if not writer.of_shard:
        writer.seal = lambda whole: state.done(whole, writer.rows)
    if not resume and (lost := state.left()):
        say(f"fastflow: starts again and replaces {lost}")
    rows, position = state.load() if resume else state.forget()
    writer.begin(position)
    try:
        yield rows
    except BaseException as error:
        if writer.named:  # interrupted after the renaming
            state.forget()
            add_note(error, f"{writer.target} is whole")
        elif state.rows or writer.rows:
            add_note(error, state.kept(writer.rows, error))
        else:
            writer.remove()
            state.forget()
            if isinstance(error, KeyboardInterrupt):  # other errors explain themselves
                add_note(error, f"no rows of {writer.target} were finished; the same command begins again")
        raise
    state.forget()


class CsvFile(OutputFile):
    """Writes .csv: row, id, text, kept fields, ``embedding``; cells are text or JSON, null is empty."""

    own = ("row", "text", "embedding")

    def encode(self, block: Block) -> bytes:
        columns = {"row": block.rows, **block.ids, "text": block.texts, **block.kept}
        cells = [as_text(values) for values in columns.values()]
        out = io.StringIO(newline="")
        writer = csv.writer(out)
        if self.handle.tell() == 0:
            writer.writerow([*columns, "embedding"])
        writer.writerows(zip(*cells, map(number_list, block.vectors), strict=True))
        return out.getvalue().encode("utf-8")


def read_head(handle: IO[bytes]) -> bytes:
    """Read the header; its names may hold line ends."""
    head = handle.readline()
    while head.count(b'"') % 2:
        head += handle.readline()
    return head


WRITERS = {  # suffix -> module, imported when needed, and class
    ".npy": ("write.outputs", "NpyFile"),
    ".jsonl": ("write.outputs", "JsonLinesFile"),
    ".csv": ("write.outputs", "CsvFile"),
    ".parquet": ("write.parquet", "ParquetOutput"),
    ".db": ("database", "DatabaseFile"),
}


def writer_for(target: Path) -> type[OutputFile]:
    """Return the class that writes ``target``; raises a UsageError."""
    if target.suffix not in WRITERS:
        raise UsageError(f"{target}: unknown suffix {target.suffix!r}; the output can be {', '.join(WRITERS)}")
    module, name = WRITERS[target.suffix]
    return cast("type[OutputFile]", getattr(import_module(f"fastflow.files.{module}"), name))


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
