"""Writing embeddings to a .npy, .jsonl or .safetensors file, and what every output file has in common.

A file is written under NAME.partial next to the target and renamed when whole, so the final name never holds half a
result. Blocks go to disk as they come: memory does not grow with the input.
"""

from __future__ import annotations

import contextlib
import json
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
from fastflow.files.write.scored import column, joined


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


class VectorFile(OutputFile):
    """Raw little-endian rows after a header that is filled in at the end, when the number of rows is known."""

    def encode(self, block: Block) -> bytes:
        self.dtype, self.width = block.vectors.dtype, block.vectors.shape[1]
        self.scored = block.log_probs is not None
        return joined(block.vectors, block.log_probs)

    def complete(self, handle: BinaryIO) -> None:
        handle.seek(0)
        handle.write(self.header())

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.width

    def column(self, name: str) -> Iterator[bytes]:
        """The bytes of the vectors, or of the log-densities, of a file whose rows hold both."""
        return column(self._handle, self.header_bytes, self.dtype, self.width, name)

    def header(self) -> bytes:
        raise NotImplementedError


class NpyFile(VectorFile):
    """.npy of shape (rows, D')."""

    header_bytes = 128
    keeps_log_prob = False

    def header(self) -> bytes:
        return npy_header(self.shape, self.dtype, self.header_bytes)


class SafetensorsFile(VectorFile):
    """.safetensors with ``embeddings``, ``log_prob`` where asked for, and the run's description as metadata."""

    header_bytes = 2048

    def header(self) -> bytes:
        names = {"float32": "F32", "float64": "F64", "float16": "F16", "int8": "I8", "uint8": "U8"}
        first = 8 * self.rows if self.scored else 0  # log_prob comes first, where its numbers are aligned
        ends = [first, first + self.rows * self.width * self.dtype.itemsize]
        tensors: dict[str, Any] = {
            "embeddings": {"dtype": names[self.dtype.name], "shape": list(self.shape), "data_offsets": ends}
        }
        if self.scored:
            tensors["log_prob"] = {"dtype": "F64", "shape": [self.rows], "data_offsets": [0, first]}
        meta = {name: str(value) for name, value in self.meta.items()}
        text = json.dumps({"__metadata__": meta, **tensors}).encode()
        room = self.header_bytes - 8  # the format allows trailing spaces
        if len(text) > room:
            text = json.dumps(tensors).encode()
        return struct.pack("<Q", room) + text.ljust(room)

    def finish(self) -> None:
        """Give the file its final name; if its rows hold two things, part them into another file first."""
        if not self.scored:
            super().finish()
            return
        with self.apart() as path, path.open("wb") as out:
            out.write(self.header())
            for name in ("log_prob", "vector"):
                out.writelines(self.column(name))
            out.flush()
            os.fsync(out.fileno())


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> bytes:
    """A version 1.0 .npy header of exactly ``size`` bytes (a multiple of 64)."""
    fields = f"{{'descr': {npy.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    return npy.magic(1, 0) + struct.pack("<H", size - 10) + fields.ljust(size - 11).encode("latin1") + b"\n"
