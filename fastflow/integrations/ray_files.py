"""``fastflow embed --ray``: Parquet in, a folder of Parquet out, computed by the nodes of a cluster.

Ray does not keep the order of rows, so each carries its number in all inputs. A folder without a whole manifest is not
whole: on a file system the folder has its name only when it is, on an object store, which cannot rename a folder, the
manifest is written last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
from pyarrow import fs
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.parquet import BATCH, agree, columns_of, counts_of, plain_type
from fastflow.files.read.records import Layout
from fastflow.files.write.parquet_output import GROUP
from fastflow.integrations.ray import Embedder, job_of, mapped
from fastflow.integrations.ray_cluster import first_line, sentences

MANIFEST = "_fastflow.json"  # readers of Parquet folders pass over names with an underscore in front
TEXT = "fastflow: text"  # the column of the texts on their way to the actors
ROW = "row"
PART = 65_536  # rows of a read task, where row groups are smaller
SHARE = 0.25  # of a CPU, for reading and writing: with a whole one each, actors on all CPUs would wait for ever


@dataclass(frozen=True)
class Part:
    """Row groups of a file that one task reads, and the file as it was seen.

    ``row`` is the number of the first row in all inputs, ``line`` that in the file.
    """

    path: str
    groups: tuple[int, ...]
    row: int
    line: int
    rows: int
    seen: tuple[int, int | None]


@dataclass(frozen=True)
class Columns:
    """The columns of the inputs: of the text and of the id, and those to keep."""

    text: str
    id: str | None
    keep: tuple[str, ...]


def embed_parquet(
    paths: Sequence[str], output: str, layout: Layout, model: str | None, options: dict[str, Any],
    dtype: str, threads: int, connected: AbstractContextManager[None],
) -> int:  # fmt: skip
    """Embed the Parquet files ``paths`` into the folder ``output``; the number of rows.

    Paths and ``output`` are local names that every node has, or URLs of pyarrow's file systems. ``options`` are those
    of Runtime.encode; ``connected`` is the cluster, which is entered here.
    Raises a FastflowError, before the cluster computes, for inputs that cannot be read, an output that exists, and a
    cluster that does not answer; and for a text that is null, by the task that reads it.
    """
    place = Output(output)
    parts, columns = parts_of(paths, layout)
    job = job_of(model, dtype, TEXT, "embedding", options, threads, "--dim")
    total = sum(part.rows for part in parts)
    described = {"inputs": inputs_of(parts), "run": job.numbers | options}
    with connected, sentences():
        place.begin(described)
        rows = ray.data.read_datasource(Rows(parts, columns), num_cpus=SHARE)
        out = mapped(rows, RowEmbedder, job)
        out.write_parquet(
            place.working, ray_remote_args={"num_cpus": SHARE}, row_group_size=GROUP, use_dictionary=False
        )
    place.finish(described, total)
    return total


class RowEmbedder(Embedder):
    """``Embedder`` without the texts in its output, and with the run's description in the schema."""

    def __call__(self, table: pa.Table) -> pa.Table:
        out = super().__call__(table).drop_columns([TEXT])
        meta = self._job.numbers | {
            "precision": self._job.options["precision"],
            "normalized": self._job.options["normalize_embeddings"],
        }
        return out.replace_schema_metadata({"fastflow": json.dumps(meta)})


class Rows(Datasource):
    """The rows of ``parts`` with their numbers: ``row``, ``id`` where asked for, the columns to keep, and the text."""

    def __init__(self, parts: list[Part], columns: Columns) -> None:
        super().__init__()
        self._parts, self._columns = parts, columns

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *limits: Any, **more: Any) -> list[ReadTask]:
        """A task a part."""
        columns = self._columns

        def task(part: Part) -> ReadTask:
            known = BlockMetadata(num_rows=part.rows, size_bytes=None, input_files=(part.path,), exec_stats=None)
            return ReadTask(lambda: read_part(part, columns), known)

        return [task(part) for part in self._parts]


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URL, and the path in it. Raises a FastflowError for a URL of no known one."""
    if "://" not in path:
        return fs.LocalFileSystem(), os.path.abspath(path)
    try:
        return fs.FileSystem.from_uri(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FastflowError(f"{path} cannot be opened: {first_line(error)}") from error


def files_of(path: str) -> list[str]:
    """``path`` itself, or the Parquet files in the folder that it names, sorted."""
    place, inner = filesystem(path)
    try:
        if place.get_file_info(inner).type != fs.FileType.Directory:
            return [path]
        found = place.get_file_info(fs.FileSelector(inner, recursive=True))
    except OSError as error:
        raise FastflowError(f"{path} cannot be opened: {first_line(error)}") from error
    names = sorted(os.path.relpath(each.path, inner) for each in found if each.path.endswith(".parquet"))
    files = [f"{path.rstrip('/')}/{name}" for name in names if not re.search(r"(^|/)[_.]", name)]
    if not files:
        raise FastflowError(f"{path} holds no .parquet file")
    return files


def parts_of(paths: Sequence[str], layout: Layout) -> tuple[list[Part], Columns]:
    """The parts of all inputs, of which only the footers are read, and their columns."""
    for name in (layout.id_field, *layout.keep):
        if name in (ROW, "embedding"):
            option = "--keep" if name in layout.keep else "--id-field"
            raise UsageError(f"the output has a column {name!r} of its own; rename yours, or leave out {option} {name}")
    parts: list[Part] = []
    types: dict[str, Any] = {}
    row, texts = 0, ""
    for path in (file for given in paths for file in files_of(given)):
        with opened(path) as (file, seen):
            names, _ = columns_of(path, file.schema_arrow, layout)
            if len(names) > 1:
                raise UsageError(f"{path} holds pairs of texts; choose one with --text-field {names[0]} or {names[1]}")
            if texts and names[0] != texts:
                raise FastflowError(f"{path}: its texts are in {names[0]!r}, in {texts!r} of an input before")
            texts = names[0]
            agree(types, path, file.schema_arrow, layout)
            counts, held, before = counts_of(file, path), list[int](), row
            for group in range(len(counts)):
                held.append(group)
                rows = sum(counts[each] for each in held)
                if rows >= PART or group + 1 == len(counts):
                    parts.append(Part(path, tuple(held), row, row - before, rows, seen))
                    row, held = row + rows, []
    if not row:
        raise FastflowError(f"{', '.join(paths)}: there is no row to embed")
    return parts, Columns(texts, layout.id_field, layout.keep)


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[pq.ParquetFile, tuple[int, int | None]]]:
    """A Parquet file with its size and time. Raises a FastflowError for one that cannot be read."""
    place, inner = filesystem(path)
    try:
        info = place.get_file_info(inner)
        if info.type == fs.FileType.NotFound:
            raise FastflowError(f"{path}: no such file or folder")
        with place.open_input_file(inner) as handle:
            yield pq.ParquetFile(handle, pre_buffer=False), (info.size, info.mtime_ns)
    except (OSError, ValueError, pa.ArrowException) as error:  # a name that is not UTF-8 is a ValueError
        raise FastflowError(f"{path} cannot be read as Parquet: {first_line(error)}") from error


def read_part(part: Part, columns: Columns) -> Iterator[pa.Table]:
    """The rows of a part, some thousands at a time. Raises if the file is not the one that the driver saw."""
    wanted = list(dict.fromkeys([columns.text, *columns.keep, *([] if columns.id is None else [columns.id])]))
    row = part.row
    with opened(part.path) as (file, seen):
        if seen != part.seen:
            raise FastflowError(f"{part.path} was changed while it was read; start again")
        for batch in file.iter_batches(BATCH, row_groups=list(part.groups), columns=wanted):
            found = {ROW: pa.array(range(row, row + batch.num_rows), pa.int64())}
            found |= {} if columns.id is None else {columns.id: plain_column(batch, columns.id)}
            found |= {name: plain_column(batch, name) for name in columns.keep}
            found[TEXT] = plain_column(batch, columns.text)
            if found[TEXT].null_count:
                at = row - part.row + part.line + found[TEXT].to_pylist().index(None)
                raise FastflowError(
                    f"{part.path}, row {at}: field {columns.text!r} is null, not a text; fill it or remove the row"
                )
            row += batch.num_rows
            yield pa.table(found)
        if row != part.row + part.rows:
            there = row - part.row
            raise FastflowError(f"{part.path} is damaged: {part.rows} rows were to be read, and {there} are there")


def plain_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column with its values, not numbers of a dictionary."""
    found = batch.column(name)
    return found if plain_type(found.type) == found.type else found.dictionary_decode()


class Output:
    """The folder of a run: ``working`` until it is whole. Raises a FastflowError if it cannot be written."""

    def __init__(self, name: str) -> None:
        self.name, self._fs, self._path = name, *filesystem(name)
        if os.path.splitext(name.rstrip("/"))[1] in (".parquet", ".npy", ".npz", ".jsonl", ".safetensors", ".db"):
            raise UsageError(f"--ray writes a folder of Parquet files, and {name} names a file: -o FOLDER")
        info = self._fs.get_file_info(self._path)
        if info.type == fs.FileType.File or self._content(self._path):
            raise FastflowError(f"{name} exists and is not empty: remove it, or choose another folder")
        self._local = isinstance(self._fs, fs.LocalFileSystem)
        self._inner = self._path.rstrip("/") + ".partial" if self._local else self._path

    @property
    def working(self) -> str:
        """The name under which the files are written."""
        return self._inner if self._local else self.name

    def begin(self, described: dict[str, Any]) -> None:
        """An empty folder with a manifest that is not whole; one of an earlier run is removed."""
        content = self._content(self._inner)
        if content and MANIFEST not in [os.path.basename(each.path) for each in content]:
            raise FastflowError(f"{self.working} exists and is no unfinished run of this command: remove it")
        try:
            if content:
                self._fs.delete_dir_contents(self._inner)
            self._fs.create_dir(self._inner, recursive=True)
            self._write(described | {"rows": None})
        except OSError as error:
            raise FastflowError(f"{self.working} cannot be written: {first_line(error)}") from error

    def finish(self, described: dict[str, Any], total: int) -> None:
        """Give the folder its name, if it holds as many rows as the inputs."""
        files = [each.path for each in self._content(self._inner) if each.path.endswith(".parquet")]
        rows = 0
        for file in files:
            with self._fs.open_input_file(file) as handle:
                rows += pq.ParquetFile(handle).metadata.num_rows
        if rows != total:
            raise FastflowError(
                f"{self.working} holds {rows:,} rows, and the inputs {total:,}: it is not whole, so embed them again"
            )
        self._write(described | {"rows": total})
        if self._local:
            if os.path.isdir(self._path):
                os.rmdir(self._path)  # an empty one
            os.rename(self._inner, self._path)

    def _content(self, folder: str) -> list[fs.FileInfo]:
        return list(self._fs.get_file_info(fs.FileSelector(folder, allow_not_found=True)))

    def _write(self, manifest: dict[str, Any]) -> None:
        with self._fs.open_output_stream(f"{self._inner}/{MANIFEST}") as out:
            out.write(json.dumps(manifest, indent=2).encode() + b"\n")


def inputs_of(parts: list[Part]) -> list[dict[str, Any]]:
    """Name, rows and bytes of each input, in their order."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        entry = found.setdefault(part.path, {"name": os.path.basename(part.path), "rows": 0, "bytes": part.seen[0]})
        entry["rows"] += part.rows
    return list(found.values())
