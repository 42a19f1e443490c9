"""Writing embeddings to a .npy, .npz, .jsonl or .safetensors file.

A file is written under NAME.partial beside the target and renamed when whole, so the final name never holds half a
result. Blocks go to disk as they come: memory does not grow with the input.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import zipfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fastflow.errors import UsageError
from fastflow.files.partial import archive_path, cannot_write, open_partial, partial_path
from fastflow.files.printing import Block, json_lines
from fastflow.files.records import Identity
from fastflow.files.scored import column, joined

SUFFIXES = (".npy", ".npz", ".jsonl", ".safetensors")


class OutputFile:
    """A growing NAME.partial, held for this run alone; subclasses turn rows into bytes, and write header and end."""

    header_bytes = 0
    keeps_ids = False
    keeps_log_prob = True

    def __init__(self, target: Path, meta: dict[str, Any]) -> None:
        """``meta`` describes the run (fingerprint, precision ...). Nothing is changed before ``begin``."""
        self.target, self.partial, self.meta = target, partial_path(target), meta
        self.rows = 0
        self._handle: BinaryIO = open_partial(target)

    def begin(self, resume_at: int | None = None) -> None:
        """Start empty, or go on after ``resume_at`` bytes of an interrupted run."""
        try:
            self._handle.truncate(resume_at or 0)
            self._handle.seek(resume_at or self.header_bytes)
        except OSError as error:
            raise cannot_write(self.partial, error) from error

    def write(self, block: Block) -> None:
        """Append the rows of ``block``."""
        try:
            self._handle.write(self.encode(block))
            self._handle.flush()
        except OSError as error:
            raise cannot_write(self.target, error) from error
        self.rows += len(block.rows)

    def skip(self, rows: Sequence[int], ids: Sequence[Identity] | None) -> None:
        """Count rows that an interrupted run has written already."""
        self.rows += len(rows)

    def sync(self) -> int:
        """Make sure that the written rows outlive a power cut; returns its size in bytes."""
        try:
            os.fsync(self._handle.fileno())
        except OSError as error:
            raise cannot_write(self.target, error) from error
        return self._handle.tell()

    def finish(self) -> None:
        """Complete the file and give it its final name."""
        try:
            self.complete(self._handle)
            self.sync()
            self.partial.replace(self.target)
        except OSError as error:
            raise cannot_write(self.target, error) from error

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
        """Give the file its final name; where its rows hold two things, part them into another file first."""
        if not self.scored:
            super().finish()
            return
        apart = archive_path(self.target)
        try:
            with apart.open("wb") as out:
                out.write(self.header())
                for name in ("log_prob", "vector"):
                    out.writelines(self.column(name))
                out.flush()
                os.fsync(out.fileno())
            apart.replace(self.target)
            self.remove()
        except OSError as error:
            raise cannot_write(self.target, error) from error
        finally:
            apart.unlink(missing_ok=True)


class NpzFile(NpyFile):
    """.npz with ``embeddings``, ``index``, ``ids`` and ``log_prob`` where asked for, and the run's description as
    ``meta`` (JSON).
    """

    keeps_ids = keeps_log_prob = True

    def __init__(self, target: Path, meta: dict[str, Any]) -> None:
        super().__init__(target, meta)
        self._rows = array("q")  # eight bytes a row, where a list would take forty
        self._ids: list[Identity] = []

    def write(self, block: Block) -> None:
        super().write(block)
        self._remember(block.rows, block.ids)

    def skip(self, rows: Sequence[int], ids: Sequence[Identity] | None) -> None:
        super().skip(rows, ids)
        self._remember(rows, ids)

    def _remember(self, rows: Sequence[int], ids: Sequence[Identity] | None) -> None:
        self._rows.extend(rows)
        self._ids.extend(ids or ())

    def finish(self) -> None:
        """Move the finished .npy into the archive, uncompressed, and rename that."""
        archive = archive_path(self.target)
        try:
            self.complete(self._handle)
            self._handle.flush()
            with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED, allowZip64=True) as bundle:
                self._add_rows(bundle)
                _add(bundle, "index.npy", np.asarray(self._rows, np.int64))
                if self._ids:
                    _add(bundle, "ids.npy", id_array(self._ids))
                _add(bundle, "meta.npy", np.asarray(json.dumps(self.meta)))
            archive.replace(self.target)
            self.remove()
        except OSError as error:
            raise cannot_write(self.target, error) from error
        finally:
            archive.unlink(missing_ok=True)

    def _add_rows(self, bundle: zipfile.ZipFile) -> None:
        """The vectors, and the log-densities if the rows hold any."""
        with bundle.open("embeddings.npy", "w", force_zip64=True) as entry:
            if self.scored:
                entry.write(self.header())
                entry.writelines(self.column("vector"))
            else:
                self._handle.seek(0)
                shutil.copyfileobj(self._handle, entry, 1 << 20)
        if self.scored:
            with bundle.open("log_prob.npy", "w", force_zip64=True) as entry:
                entry.write(npy_header((self.rows,), np.dtype("<f8"), self.header_bytes))
                entry.writelines(self.column("log_prob"))


def id_array(ids: Sequence[Identity]) -> NDArray[Any]:
    """(rows,) ids: int64 where all are whole numbers that fit, else strings, those of other JSON values as JSON."""
    if all(type(i) is int and -(2**63) <= i < 2**63 for i in ids):
        return np.asarray(ids, np.int64)
    return np.asarray([i if isinstance(i, str) else json.dumps(i) for i in ids])


def _add(bundle: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    with bundle.open(name, "w", force_zip64=True) as handle:
        npy.write_array(handle, array, allow_pickle=False)


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> bytes:
    """A version 1.0 .npy header of exactly ``size`` bytes (a multiple of 64)."""
    fields = f"{{'descr': {npy.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    return npy.magic(1, 0) + struct.pack("<H", size - 10) + fields.ljust(size - 11).encode("latin1") + b"\n"


WRITERS = {".npy": NpyFile, ".npz": NpzFile, ".jsonl": JsonLinesFile, ".safetensors": SafetensorsFile}


def writer_for(target: Path) -> type[OutputFile]:
    """The class that writes ``target``, by its suffix."""
    if target.suffix not in WRITERS:
        raise UsageError(f"{target}: unknown suffix {target.suffix!r}; the output can be {', '.join(SUFFIXES)}")
    return WRITERS[target.suffix]
