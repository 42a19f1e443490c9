"""The inputs of ``fastflow duplicates``: texts with their vectors, and the records that stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fastflow.atomic import replace_bytes
from fastflow.errors import FastflowError, UsageError
from fastflow.files import EmbedConfig, Run
from fastflow.files.embed import embed_file
from fastflow.files.read import InputFormat
from fastflow.files.read.inputs import reread, without_packing
from fastflow.files.read.matrix import MatrixFile, MatrixRows
from fastflow.files.read.sources import Sources, one_text
from fastflow.files.read.texts import format_of, records_of
from fastflow.files.write.partial import cannot_write, read_run
from fastflow.runtime import Runtime
from fastflow.search.pairs import encode_text, hash_all
from fastflow.search.source import Database

READ = 4096  # rows of a .db described at a time


class ComparedTexts:
    """The texts of files, or of a .db or .npy, with their vectors.

    ``numbers`` (n,): the rows; ``keys``: hashes of the texts, None without texts; ``ids`` and ``values``, a field to
    order by, or None. ``fingerprint``: of the model that made the vectors, None if unknown.
    """

    def __init__(
        self, paths: Sequence[str], texts: Path | None, layout: InputFormat, order: str | None, folder: Path,
        opened: ExitStack, runtime: Callable[[], Runtime], run: Run,
    ) -> None:  # fmt: skip
        self._layout, self._database = layout._replace(keep=() if order is None else (order,)), None
        stored = paths[0].endswith((".db", ".npy"))
        if stored and len(paths) > 1:
            raise UsageError(f"{paths[0]} and {paths[1]}: vectors are compared from one file; name it by itself")
        if texts is not None and not paths[0].endswith(".npy"):
            raise UsageError(f"--texts names the texts of a .npy, and {paths[0]} has texts itself")
        self.paths = [str(texts)] if texts is not None else [] if stored else list(paths)
        self._opened = {path: opened.enter_context(reread(path)) for path in self.paths}
        if paths[0].endswith(".db"):
            self._database = Database(Path(paths[0]))
            self.fingerprint, vectors = self._database.fingerprint, folder.with_suffix(".npy")
            self.numbers = _copy_vectors(self._database, vectors)
        elif stored:
            vectors = Path(paths[0])
            self.fingerprint = read_run(vectors).get("fingerprint")
        else:
            vectors, model = folder.with_suffix(".npy"), runtime()
            self.fingerprint = model.fingerprint
            run = replace(run, opened=lambda path: self._opened[path]())
            embed_file(model, self.paths, vectors, EmbedConfig(self._layout._replace(keep=(), id_field=None)), run)
        self.vectors: MatrixRows = opened.enter_context(MatrixFile(str(vectors))).matrix
        if self._database is None:
            self.numbers = np.arange(len(self.vectors))
        self.name, self.has_texts = paths[0], self._database is not None or bool(self.paths)
        self.id_field = layout.id_field if self._database is None else self._database.id_column
        self.ids, self.values = list[Any](), list[Any]()
        keys = hash_all(self._note_records())
        self.keys = keys if self.has_texts else None
        if self.has_texts and len(keys) != len(self.vectors):
            raise FastflowError(
                f"{self.paths[0]} has {len(keys):,} texts, and {self.name} {len(self.vectors):,} vectors: give the "
                "file that was embedded"
            )

    def _note_records(self) -> Iterator[bytes]:
        for text, identity, value in self.read():
            if self.id_field is not None:
                self.ids.append(identity)
            if self._layout.keep:
                self.values.append(value)
            yield encode_text(text)

    def read(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the text, id and order field of each row."""
        field = next(iter(self._layout.keep), None)
        if self._database is not None:
            if field is not None and field not in self._database.columns:
                raise UsageError(f"{self.name} has no column {field!r} to order by: keep it with fastflow embed --keep")
            for start in range(0, len(self.numbers), READ):
                some = self.numbers[start : start + READ].tolist()
                for hit in self._database.hits([(row, 0.0) for row in some]):
                    named: dict[Any, Any] = {**hit.fields, "row": hit.row, "text": hit.text, self.id_field: hit.id}
                    yield str(hit.text), hit.id, named[field] if field else None
        elif self.paths:
            with Sources(self.paths, lambda path: self._opened[path]()) as sources:
                for row in sources.rows(self._layout):
                    yield one_text(row), row.record.id, next(iter(row.record.kept), None)

    def name_row(self, place: int) -> dict[str, Any]:
        """Return the row at ``place``, and its id if the input has ids."""
        return {"row": int(self.numbers[place])} | ({} if self.id_field is None else {"id": self.ids[place]})

    def pick(self, places: Iterable[int]) -> dict[int, str]:
        """Return the texts at ``places``."""
        wanted = set(map(int, places))
        return {place: text for place, (text, _, _) in enumerate(self.read()) if place in wanted}

    def sort(self, order: str | None) -> NDArray[np.int64] | None:
        """Return the places by the order field, descending with - in front; rows without it are last."""
        if order == "longest":
            return np.argsort([-len(text) for text, _, _ in self.read()], kind="stable").astype(np.int64)
        if order is None:
            return None
        found = [(value, place) for place, value in enumerate(self.values) if value not in (None, "")]
        try:
            key: Any = {place: float(value) for value, place in found}.__getitem__
        except (TypeError, ValueError):
            key = {place: str(value) for value, place in found}.__getitem__
        first = sorted((place for _, place in found), key=key, reverse=order.startswith("-"))
        rest = [place for place, value in enumerate(self.values) if value in (None, "")]
        return np.array(first + rest, np.int64)

    def write_kept(self, removed: NDArray[np.int64], target: Path) -> None:
        """Write the records without those at ``removed`` places, as they are in the input."""
        gone = frozenset(removed.tolist())
        try:
            if self.paths and format_of(self.paths[0], self._layout.format) == "parquet":
                _write_parquet_rows(self.paths, gone, target)
            else:
                replace_bytes(target, self._read_kept_lines(gone))
        except OSError as error:
            raise cannot_write(target, error) from error

    def _read_kept_lines(self, gone: frozenset[int]) -> Iterator[bytes]:
        table, place = format_of(self.paths[0], self._layout.format) in ("csv", "tsv"), 0
        layout = self._layout._replace(id_field=None, keep=())
        header = table and layout.header
        if table:
            layout = layout._replace(header=False, field="1")
        end = b"\0" if layout.null else b"\n"
        for number, path in enumerate(self.paths):
            with self._opened[path]() as ends, self._opened[path]() as source:
                lines = _split_lines(source.chunks(), end)
                at = 0
                for record, found in enumerate(records_of(ends, layout)):
                    some = list(islice(lines, max(0, found.line - at)))  # type: ignore[union-attr]
                    at += len(some)
                    if header and record == 0:
                        yield from some if number == 0 else ()
                        continue
                    if place not in gone:
                        yield from (
                            line if line.endswith(end) or number + 1 == len(self.paths) else line + end for line in some
                        )
                    place += 1
                yield from lines


def check_kept(paths: Sequence[str], texts: Path | None, layout: InputFormat, kept: Path) -> None:
    """Raise a UsageError for an input whose records --kept cannot write."""
    path = paths[0] if texts is None else str(texts)
    if path.endswith((".db", ".npy")):
        raise UsageError(f"--kept writes records of a file of texts, and {path} is none: give the file it was made of")
    if format_of(path, layout.format) == "json":
        raise UsageError(f"--kept writes lines or rows, and {path} is one JSON list: make a .jsonl of it")
    if kept.suffix != (wanted := Path(without_packing(path)).suffix):
        raise UsageError(f"--kept {kept} gets the records of {path} as they are: name a file that ends in {wanted}")
    if layout.encoding is not None and "a\n".encode(layout.encoding) != b"a\n":
        raise UsageError(
            f"--kept keeps lines as they are, and those of {layout.encoding} end by several bytes: make {path} UTF-8"
        )


def _split_lines(chunks: Iterator[bytes], end: bytes) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(end)
        yield from (line + end for line in whole)
    if rest:
        yield rest


def _write_parquet_rows(paths: Sequence[str], gone: frozenset[int], target: Path) -> None:
    from pyarrow import parquet

    place, made = 0, target.with_name(target.name + ".tmp")
    writer = None
    try:
        for path in paths:
            file = parquet.ParquetFile(path)
            for batch in file.iter_batches():
                writer = writer or parquet.ParquetWriter(made, file.schema_arrow)
                writer.write_batch(batch.filter([place + at not in gone for at in range(len(batch))]))
                place += len(batch)
            writer = writer or parquet.ParquetWriter(made, file.schema_arrow)
        if writer is not None:
            writer.close()
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)


def _copy_vectors(source: Database, target: Path) -> NDArray[np.int64]:
    """Write the vectors of a .db to a .npy of float32; packed bits become -1 and 1. Return the rows."""
    numbers, at = np.empty(source.count(), np.int64), 0
    with target.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (len(numbers), source.dim)})
        for rows, vectors in source.blocks():
            if source.kind == "bits":
                vectors = np.unpackbits(vectors, axis=1)[:, : source.dim] * np.float32(2) - 1
            file.write(vectors.astype("<f4").tobytes())
            numbers[at : at + len(rows)] = rows
            at += len(rows)
    return numbers
