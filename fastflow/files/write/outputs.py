"""Write embeddings to a .npy or .jsonl file, and the base of all output files.

A file is written under NAME.partial next to the target and renamed when whole, so the final name never holds half a
result. Blocks go to disk as they come: memory does not grow with the input.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from fastflow.files.write.partial import archive_path, cannot_write, open_partial, partial_path
from fastflow.files.write.printing import FIELDS, Block, json_lines


class OutputFile:
    """A growing NAME.partial, held for this run alone; subclasses turn rows into bytes, and write header and end."""

    header_bytes = 0
    keeps_ids = False
    keeps_log_prob = True
    own: tuple[str, ...] = ()  # fields that the output has itself

    def __init__(self, target: Path, meta: dict[str, Any]) -> None:
        """``meta`` describes the run (fingerprint, precision ...). Nothing is changed before ``begin``."""
        self.target, self.partial, self.meta = target, partial_path(target), meta
        self.rows = 0
        self.named = False  # whether the whole file has its final name
        self.started: Callable[[], None] | None = None  # called before the first rows are written
        self.seal: Callable[[Path], None] | None = None  # called with the whole file before it gets its name
        self.types: dict[str, Any] = {}  # of the input's columns, if they have types
        self.of_shard = False  # whether this is one part of a run, which is joined with the others later
        self.about: dict[str, Any] = {}  # more of the run, for a file that has a place for it
        self._handle: BinaryIO = open_partial(target)

    @classmethod
    def check_extra(cls, target: Path) -> None:
        """Raise a FastflowError if a library that the format needs is absent."""

    @staticmethod
    def same(name: str) -> str:
        """The form of a field's name by which the format tells fields apart: equal forms clash. Here, ``name``."""
        return name

    def begin(self, resume_at: int | None = None) -> None:
        """Start empty, or go on after ``resume_at`` bytes of an interrupted run."""
        try:
            self._handle.truncate(resume_at or 0)
            self._handle.seek(resume_at or self.header_bytes)
        except OSError as error:
            raise cannot_write(self.partial, error) from error

    def write(self, block: Block) -> None:
        """Append the rows of ``block``."""
        if len(block.rows) and self.started is not None:
            self.started()
            self.started = None
        self.append(self.encode(block))
        self.rows += len(block.rows)
        self.note(block)

    def append(self, data: bytes) -> None:
        """Append rows as they lie in the file."""
        try:
            self._handle.write(data)
            self._handle.flush()
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def skip(self, block: Block) -> None:
        """Count rows that an interrupted run has written already; their vectors are not there."""
        self.rows += len(block.rows)
        self.note(block)

    def note(self, block: Block) -> None:
        """Values that a format needs of all rows when it ends, of this run or before; nothing by default."""

    def sync(self) -> int:
        """Make sure that the written rows outlive a power cut; returns its size in bytes."""
        try:
            self._handle.flush()  # a header that was patched last is in Python's buffer still
            os.fsync(self._handle.fileno())
        except OSError as error:
            raise cannot_write(self.target, error) from error
        return self._handle.tell()

    def finish(self) -> None:
        """Complete the file and give it its final name."""
        try:
            self.complete(self._handle)
            self.sync()
            self.name(self.partial)
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def name(self, whole: Path) -> None:
        """Give the file ``whole`` its final name."""
        if self.seal is not None:
            self.seal(whole)
        whole.replace(self.target)
        self.named = True

    @contextlib.contextmanager
    def apart(self) -> Iterator[Path]:
        """Where the whole file is put together next to the partial one; at the end of the block it gets its name."""
        path = archive_path(self.target)
        try:
            path.unlink(missing_ok=True)  # of a run that was killed
            yield path
            self.name(path)
        except OSError as error:
            raise cannot_write(self.target, error) from error
        finally:
            path.unlink(missing_ok=True)
            if self.named:
                self.remove()

    def remove(self) -> None:
        """Remove the partial file."""
        self.partial.unlink(missing_ok=True)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the partial file, which stays where it is unless it was finished or removed."""
        with contextlib.suppress(OSError):  # of a full disk, which write() has reported
            self._handle.close()

    def encode(self, block: Block) -> bytes:
        raise NotImplementedError

    def complete(self, handle: BinaryIO) -> None:
        """Patch headers; nothing by default."""


class JsonLinesFile(OutputFile):
    """.jsonl: the lines that standard output would get."""

    keeps_ids = True
    own = FIELDS

    def encode(self, block: Block) -> bytes:
        return json_lines(block).encode("utf-8")


class NpyFile(OutputFile):
    """.npy of shape (rows, D'): little-endian rows after a header that is filled in at the end."""

    header_bytes = 128
    keeps_log_prob = False

    def encode(self, block: Block) -> bytes:
        self.dtype, self.width = block.vectors.dtype, block.vectors.shape[1]
        return block.vectors.tobytes()

    def complete(self, handle: BinaryIO) -> None:
        handle.seek(0)
        handle.write(npy_header((self.rows, self.width), self.dtype, self.header_bytes))


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> bytes:
    """A version 1.0 .npy header of exactly ``size`` bytes (a multiple of 64)."""
    fields = f"{{'descr': {npy.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    return npy.magic(1, 0) + struct.pack("<H", size - 10) + fields.ljust(size - 11).encode("latin1") + b"\n"
