"""Write a .npy or .jsonl file, and the base of all outputs.

A file grows as NAME.partial next to the target and is renamed when whole, in constant memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from numpy.lib import format as npy

from fastflow.console import add_note, say
from fastflow.files.read import Skipped
from fastflow.files.write import FIELDS, Block, json_lines
from fastflow.files.write.partial import State, archive_path, cannot_write, open_partial, partial_path


class OutputFile:
    """Appends rows to NAME.partial, locked; subclasses encode rows and write header and end."""

    header_bytes = 0
    keeps_fields = True  # whether the format has ids and fields
    own: tuple[str, ...] = ()  # names of the fields that this format adds

    def __init__(self, target: Path, meta: dict[str, Any]) -> None:
        self.target, self.partial, self.meta = target, partial_path(target), meta
        self.rows = 0
        self.named = self.unused = False  # the file got its name, or had no rows and replaced none
        self.started: Callable[[], None] | None = None  # called before the first rows are written
        self.seal: Callable[[Path], None] | None = None  # called with the whole file before the renaming
        self.types: dict[str, Any] = {}  # Arrow types of the input's columns
        self.of_shard = False  # whether this is a part of a run
        self.about: dict[str, Any] = {}  # more about the run, for .db
        self.skipped = Skipped()  # rows of the input that are not written
        self._handle: BinaryIO = open_partial(target)

    @classmethod
    def check_extra(cls, target: Path) -> None:
        """Raise a FastflowError if the format's library is absent."""

    @staticmethod
    def same(name: str) -> str:
        return name

    def begin(self, resume_at: int | None = None) -> None:
        """Empty NAME.partial, or cut it at ``resume_at`` bytes."""
        try:
            self._handle.truncate(resume_at or 0)
            self._handle.seek(resume_at or self.header_bytes)
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
            self._handle.write(data)
            self._handle.flush()
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
            self._handle.flush()  # a patched header may be in Python's buffer
            os.fsync(self._handle.fileno())
        except OSError as error:
            raise cannot_write(self.target, error) from error
        return self._handle.tell()

    def finish(self) -> None:
        try:
            self.complete(self._handle)
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
            from fastflow.files.read.skipped import write_list

            write_list(self.skipped, self.target)

    @contextlib.contextmanager
    def apart(self) -> Iterator[Path]:
        """Give a path for the whole file, which is renamed after the block."""
        path = archive_path(self.target)
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
            self._handle.close()

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
    """Writes .npy of shape (rows, D'), little-endian; its header is written at the end."""

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
