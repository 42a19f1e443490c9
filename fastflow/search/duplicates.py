"""``fastflow duplicates``: read inputs, compare in a folder that --resume continues, and write what was found."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fastflow.atomic import replace_bytes
from fastflow.console import add_note
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.files import EmbedConfig, Run
from fastflow.files.database import DUPLICATES, create_duplicates
from fastflow.files.embed import embed_file
from fastflow.files.read import InputFormat
from fastflow.files.read.inputs import reread
from fastflow.files.read.matrix import MatrixFile, MatrixRows
from fastflow.files.read.sources import Sources, one_text
from fastflow.files.read.texts import format_of, records_of
from fastflow.files.write.partial import State, cannot_write, read_run, renew_run
from fastflow.progress import Progress
from fastflow.runtime import Runtime
from fastflow.search.pairs import Comparison, Duplicates, Pairs, Plan, encode_text, hash_all
from fastflow.search.source import Database

LIMITS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
TABLE = (".csv", ".jsonl", ".parquet", ".db")
SHOWN = 3  # pairs
READ = 4096  # rows of a .db described at a time


class Texts:
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
                raise UsageError(f"{self.name} has no column {field!r}: give another --order")
            for start in range(0, len(self.numbers), READ):
                some = self.numbers[start : start + READ].tolist()
                for hit in self._database.hits([(row, 0.0) for row in some]):
                    named: dict[Any, Any] = {**hit.fields, "row": hit.row, "text": hit.text, self.id_field: hit.id}
                    yield str(hit.text), hit.id, named[field] if field else None
        elif self.paths:
            with Sources(self.paths, lambda path: self._opened[path]()) as sources:
                for row in sources.rows(self._layout):
                    yield one_text(row), row.record.id, next(iter(row.record.kept), None)

    def pick(self, places: Iterable[int]) -> dict[int, str]:
        """Return the texts at ``places``."""
        wanted = set(places)
        return {place: text for place, (text, _, _) in enumerate(self.read()) if place in wanted}

    def sort(self, order: str | None, longest: bool) -> NDArray[np.int64] | None:
        """Return the places by the order field, descending with - in front; rows without it are last."""
        if longest:
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
                replace_bytes(target, self._kept_lines(gone))
        except OSError as error:
            raise cannot_write(target, error) from error

    def _kept_lines(self, gone: frozenset[int]) -> Iterator[bytes]:
        table, place = format_of(self.paths[0], self._layout.format) in ("csv", "tsv"), 0
        layout = self._layout._replace(field=None, id_field=None, keep=())
        header = table and layout.header
        layout = layout._replace(header=False, field="1") if table else self._layout._replace(id_field=None, keep=())
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


def check_kept(paths: Sequence[str], texts: Path | None, layout: InputFormat) -> None:
    """Raise a UsageError for an input whose records --kept cannot write."""
    path = paths[0] if texts is None else str(texts)
    if path.endswith((".db", ".npy")):
        raise UsageError(f"--kept writes records of a file of texts, and {path} is none: leave it out")
    if format_of(path, layout.format) == "json":
        raise UsageError(f"--kept writes lines or rows, and {path} is one JSON list: make a .jsonl of it")
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


class Folder:
    """The folder of a comparison, OUT.partial: vectors, and strips that are compared; ``state`` says of what.

    It is removed at the end; a signal, or an error after the first strip, leaves it for --resume.
    """

    def __init__(self, path: Path, state: State | None, resume: bool) -> None:
        self.path, self._state = path, state
        if state is not None and path.exists():
            if not (path.is_dir() and state.path.is_file()):
                raise UsageError(f"{path} is no folder of fastflow duplicates: choose another -o")
            if resume:
                state.load()
            else:
                shutil.rmtree(path)
        path.mkdir(exist_ok=True)
        if state is not None:
            state.save(0, 0)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or (isinstance(error, FastflowError) and not self.strip(0).exists()):
            shutil.rmtree(self.path)
            if self._state is not None:
                self._state.forget()
        else:
            add_note(error, f"finished work is in {self.path}; the same command with --resume continues after it")

    def strip(self, number: int) -> Path:
        return self.path / f"strip-{number:05}.npy"

    def compare(self, run: Comparison, number: int) -> None:
        """Compare a strip, unless an earlier run did."""
        if not self.strip(number).exists():
            out = io.BytesIO()
            np.save(out, run.compare_strip(number))
            replace_bytes(self.strip(number), out.getvalue())


def compare_in(
    folder: Folder, plan: Plan, above: float, lower: Sequence[float], threads: int | None, shown: bool, ray: str | None
) -> Pairs:
    """Compare all strips, in this process or on the cluster ``ray``, with progress and the time left."""
    run = plan.compare(above, threads)
    if ray is not None:
        from fastflow.integrations.ray import compare_on_cluster

        plan.save(folder.path / "plan.npz", above)
        numbers = [number for number in range(len(run.strips)) if not folder.strip(number).exists()]
        with Progress("compare", len(numbers), "strips", shown) as progress:
            for _ in compare_on_cluster(folder.path, numbers, ray, threads or 1):
                progress.advance(1)
    with Progress("compare", run.count(0, len(run.strips)), "pairs", shown and ray is None) as progress:

        def watch() -> Iterator[NDArray[Any]]:
            for number in range(len(run.strips)):
                folder.compare(run, number)
                progress.advance(run.count(number, number + 1))
                yield np.load(folder.strip(number))

        return plan.collect(watch(), above, lower)


@lru_cache(maxsize=1)
def _open_comparison(place: str, threads: int) -> Comparison:
    """Open the comparison of a folder, which a process of a cluster keeps for its strips."""
    with np.load(Path(place) / "plan.npz") as saved:
        own, *other = (MatrixFile(path).matrix for path in saved["vectors"].tolist())
        plan = Plan(own, None, saved["order"], other[0] if other else None)
        plan.first = saved["first"]
        return plan.compare(float(saved["above"]), threads)


def compare_strip(place: str, number: int, threads: int) -> None:
    """Compare a strip of the folder ``place`` in a process of a cluster."""
    Folder(Path(place), None, False).compare(_open_comparison(place, threads), number)


def find_limit(pairs: Pairs, wanted: int) -> Duplicates:
    """Return the duplicates at the highest limit that leaves at most ``wanted`` rows."""
    limits = np.unique([*pairs.edges["cosine"], 1.0])
    low, high = 0, len(limits)  # limits[low] leaves few enough, limits[high] too many
    found = pairs.keep_first(float(limits[0]))
    if len(found.kept) > wanted:
        raise FastflowError(
            f"{len(found.kept):,} texts stay at the limit {pairs.above:g}, the lowest that was compared: give --to "
            "that number or more"
        )
    while high - low > 1:
        middle = (low + high) // 2
        one = pairs.keep_first(float(limits[middle]))
        low, high, found = (middle, high, one) if len(one.kept) <= wanted else (low, middle, found)
    return found


def describe_limits(pairs: Pairs) -> list[dict[str, Any]]:
    """Return for each of LIMITS the rows that would go, and up to three pairs of places between it and the next."""
    edges = pairs.edges[np.argsort(pairs.edges["cosine"], kind="stable")]
    found = []
    last = len(edges)
    for limit in (each for each in LIMITS if each >= pairs.above):
        first = int(np.searchsorted(edges["cosine"], limit))
        some = [tuple(edge) for edge in edges[first : min(first + SHOWN, last)].tolist()]
        last = first
        found.append({"limit": limit, "removed": len(pairs.keep_first(limit).removed), "pairs": some})
    return found


def tabulate(found: Duplicates, own: Texts, other: Texts) -> dict[str, list[Any]]:
    """Return the columns of OUT, by row; ids only if the input has them."""
    order = np.argsort(found.removed, kind="stable")
    removed, of = found.removed[order], found.of[order]
    columns = {"row": own.numbers[removed].tolist()}
    if own.id_field is not None:
        columns["id"] = [own.ids[place] for place in removed.tolist()]
    columns["kept_row"] = other.numbers[of].tolist()
    if own.id_field is not None and other.id_field is not None:
        columns["kept_id"] = [other.ids[place] for place in of.tolist()]
    return columns | {"cosine": found.cosine[order].tolist(), "exact": found.exact[order].tolist()}


def check_table(target: Path) -> None:
    """Raise a UsageError unless ``target`` can be written as a table."""
    if target.suffix not in TABLE:
        raise UsageError(f"{target}: unknown suffix {target.suffix!r}; the output can be {', '.join(TABLE)}")
    if target.suffix == ".parquet":
        try:
            import pyarrow as pyarrow
        except ImportError as error:
            raise missing_extra("parquet", str(error.name), str(target)) from None


def write_table(columns: Mapping[str, Sequence[Any]], target: Path) -> None:
    """Write columns of equal length; into a .db as the table ``duplicates``."""
    rows, out = list(zip(*columns.values(), strict=True)), io.StringIO(newline="")
    try:
        if target.suffix == ".db":
            before = target.stat() if target.exists() else None
            with closing(sqlite3.connect(target)) as db, db:
                create_duplicates(db, target, list(columns))
                db.executemany(f"INSERT INTO {DUPLICATES} VALUES ({', '.join('?' * len(columns))})", rows)  # noqa: S608
            renew_run(target, before)
            return
        if target.suffix == ".parquet":
            import pyarrow
            from pyarrow import parquet

            data = pyarrow.BufferOutputStream()
            parquet.write_table(pyarrow.table(dict(columns)), data)
            replace_bytes(target, data.getvalue().to_pybytes())
            return
        if target.suffix == ".csv":
            writer = csv.writer(out)
            writer.writerow(columns)
            writer.writerows([json.dumps(v) if isinstance(v, bool) else v for v in row] for row in rows)
        else:
            out.writelines(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
        replace_bytes(target, out.getvalue().encode("utf-8"))
    except OSError as error:
        raise cannot_write(target, error) from error
    except sqlite3.Error as error:
        raise FastflowError(f"{target} cannot be written: {error}; choose another output with -o") from error
