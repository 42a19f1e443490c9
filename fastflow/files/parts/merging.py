"""``fastflow merge``: parts that --shard made, joined to the file that one run would have made, in constant memory."""

from __future__ import annotations

import errno
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.parts.manifest import CHUNK, Manifest, check_bytes, is_whole, manifests
from fastflow.files.read.parquet import arrow
from fastflow.files.write.database import DatabaseFile
from fastflow.files.write.database_schema import about_of, blocks
from fastflow.files.write.json_columns import cast, joined
from fastflow.files.write.outputs import JsonLinesFile, OutputFile
from fastflow.files.write.parquet_output import ParquetOutput
from fastflow.files.write.printing import Block
from fastflow.files.write.writers import writer_for
from fastflow.progress import Progress
from fastflow.values import open_regular, reason

ROWS = 4096  # read at a time
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I8": "i1", "U8": "u1"}  # of safetensors


def merge(folder: Path, target: Path, shown: bool = False) -> list[Manifest]:
    """Join the parts in ``folder`` into ``target``, which appears only when whole; returns their manifests.

    ``shown``: with progress.

    The bytes are those of one run without --shard. A .npz holds its ids and fields in memory, as a run does.
    Raises a FastflowError for a part that is missing, changed or of another run, before anything is written.
    """
    kind, found = writer_for(target), manifests(folder)
    check_complete(folder, found)
    paths = [folder / manifest.part for manifest in found]
    for path in paths:
        if path.suffix != target.suffix:
            raise UsageError(f"{target}: the parts are {path.suffix} files, such as {path}; give -o the same suffix")
        if target.exists() and target.samefile(path):
            raise UsageError(f"{target} is one of the parts; choose another output with -o")
    with Progress("check", sum(path.stat().st_size for path in paths), "bytes", shown) as checked:
        check_bytes(folder, found, checked.advance)
    meta = {name: value for name, value in found[0].run.items() if name != "options"}
    with Progress("merge", found[0].total, "rows", shown) as progress, kind(target, meta) as writer:
        writer.begin()
        try:
            if isinstance(writer, DatabaseFile):
                writer.about = about_of(paths[0])
            if isinstance(writer, ParquetOutput):
                try:
                    _join_parquet(writer, paths, progress.advance)
                except FastflowError:
                    raise
                except Exception as error:  # as in _append
                    if isinstance(error, OSError) and error.errno is not None:
                        raise
                    raise FastflowError(
                        f"{folder}: the parts cannot be joined: {reason(error)}; make them again"
                    ) from error
            else:
                for path, manifest in zip(paths, found, strict=True):
                    _append(writer, path, manifest, progress.advance)
                writer.finish()
        except BaseException:
            writer.remove()
            raise
    return found


def check_complete(folder: Path, found: list[Manifest]) -> None:
    """Raise a FastflowError unless all parts are there in full."""
    whole = {manifest.shard[0] for manifest in found if is_whole(folder, manifest)}
    of = found[0].shard[1]
    if absent := [str(number) for number in range(1, of + 1) if number not in whole]:
        listed = ", ".join(absent[:10]) + ", …" * (len(absent) > 10)
        which = f"part {listed} of {of} is" if len(absent) == 1 else f"parts {listed} of {of} are"
        raise FastflowError(f"{folder}: {which} missing; fastflow status {folder} shows the commands")


def _append(writer: OutputFile, path: Path, manifest: Manifest, count: Callable[[int], None]) -> None:
    """The rows of one part after those before; ``count`` takes the number of each block's."""
    rows, (start, stop) = 0, manifest.rows
    try:
        with open_regular(path) as raw, io.BufferedReader(raw) as handle:  # type: ignore[type-var]
            if isinstance(writer, JsonLinesFile):
                while chunk := handle.read(CHUNK):
                    writer.append(chunk)
                    count(chunk.count(b"\n"))
                return
            readers = {".npy": _npy_blocks, ".npz": _npz_blocks, ".safetensors": _safetensors_blocks}
            scored = bool(manifest.run.get("options", {}).get("log_prob"))
            of_part = blocks(path, scored) if path.suffix == ".db" else readers[path.suffix](handle, start)
            for block in of_part:
                writer.write(block)
                rows += len(block.rows)
                count(len(block.rows))
    except FastflowError:
        raise
    except Exception as error:  # a body that was spoilt before it was hashed: the libraries raise anything for it
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # of a disk
            raise
        raise FastflowError(f"{path} cannot be joined: {reason(error)}; make the part again") from error
    if rows != stop - start:
        raise FastflowError(f"{path} has {rows:,} rows, and its manifest names {stop - start:,}; make the part again")


def _npy_blocks(handle: IO[bytes], start: int) -> Iterator[Block]:
    shape, dtype = _npy_shape(handle)
    yield from _blocks(_rows(handle, shape, dtype), shape, dtype, start)


def _npz_blocks(handle: IO[bytes], start: int) -> Iterator[Block]:
    with zipfile.ZipFile(handle) as bundle:
        names = [name for name in bundle.namelist() if name not in ("embeddings.npy", "log_prob.npy")]
        held = {name.removesuffix(".npy"): _array(bundle, name) for name in names}
        mixed = json.loads(str(held.pop("meta"))).get("json", [])
        rows = held.pop("index").tolist()
        ids = held.pop("ids").tolist() if "ids" in held else None
        with bundle.open("embeddings.npy") as entry:
            shape, dtype = _npy_shape(entry)
            scores: Iterator[NDArray[Any]] | None = None
            if "log_prob.npy" in bundle.namelist():
                other = bundle.open("log_prob.npy")
                scores = _rows(other, *_npy_shape(other))
            for block in _blocks(_rows(entry, shape, dtype), shape, dtype, start, scores):
                at = slice(block.rows[0] - start, block.rows[-1] + 1 - start) if len(block.rows) else slice(0)
                kept = {name: values[at].tolist() for name, values in held.items()}
                kept |= {name: [json.loads(value) for value in kept[name]] for name in mixed}
                found = None if ids is None else ids[at]
                yield Block(rows[at], [], found, block.vectors, block.log_probs, kept)


def _safetensors_blocks(handle: IO[bytes], start: int) -> Iterator[Block]:
    (size,) = struct.unpack("<Q", handle.read(8))
    tensors = json.loads(handle.read(size))
    of, scores = tensors["embeddings"], None
    shape, dtype = tuple(of["shape"]), np.dtype(DTYPES[of["dtype"]])
    vectors = _rows_at(handle, 8 + size + of["data_offsets"][0], shape, dtype)
    if "log_prob" in tensors:
        first = 8 + size + tensors["log_prob"]["data_offsets"][0]
        scores = _rows_at(handle, first, tuple(tensors["log_prob"]["shape"]), np.dtype("<f8"))
    yield from _blocks(vectors, shape, dtype, start, scores)


def _blocks(
    vectors: Iterator[NDArray[Any]],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    start: int,
    scores: Iterator[NDArray[Any]] | None = None,
) -> Iterator[Block]:
    """Vectors and log-densities, ROWS at a time; no rows are a block too, for it has width and dtype."""
    none = np.zeros(0) if scores is not None else None
    yield Block([], [], None, np.zeros((0, shape[1]), dtype), none)
    for each in vectors:
        yield Block(range(start, start + len(each)), [], None, each, None if scores is None else next(scores))
        start += len(each)


def _rows(handle: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    """The rows of a matrix that begins where ``handle`` stands."""
    width = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    for start in range(0, shape[0], ROWS):
        count = min(ROWS, shape[0] - start)
        data = handle.read(count * width)
        if len(data) != count * width:
            raise EOFError("it ends before its last row")
        yield np.frombuffer(data, dtype).reshape(count, *shape[1:])


def _rows_at(handle: IO[bytes], first: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    """The rows of a matrix that begins at byte ``first``, whatever is read in between."""
    width = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    for start in range(0, shape[0], ROWS):
        handle.seek(first + start * width)
        yield from _rows(handle, (min(ROWS, shape[0] - start), *shape[1:]), dtype)


def _npy_shape(handle: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if npy.read_magic(handle) != (1, 0):
        raise ValueError("its .npy header is of another version")
    shape, fortran, dtype = npy.read_array_header_1_0(handle)
    if fortran:
        raise ValueError("it is stored column by column")
    return shape, dtype


def _array(bundle: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with bundle.open(name) as entry:
        return npy.read_array(entry, allow_pickle=False)


def _join_parquet(writer: ParquetOutput, paths: list[Path], count: Callable[[int], None]) -> None:
    """Row groups of one size over the parts; ``count`` takes the number of rows of each batch."""
    _, parquet = arrow(f"{writer.target}: joining Parquet")
    schemas = [parquet.read_schema(path) for path in paths]
    schema = joined(schemas)
    if schema is None:
        other = next(path for path, each in zip(paths, schemas, strict=True) if joined([schemas[0], each]) is None)
        raise FastflowError(f"{other} has other columns than {paths[0]}; make the parts again with one version")

    def batches() -> Iterator[Any]:
        for path in paths:
            with parquet.ParquetFile(path, pre_buffer=False) as file:
                for group in range(file.metadata.num_row_groups):
                    for batch in file.iter_batches(ROWS, row_groups=[group]):
                        yield cast(batch, schema)
                        count(batch.num_rows)

    writer.put(schema, batches())
