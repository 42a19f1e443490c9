"""The interface through which .db and .npy are searched."""

from __future__ import annotations

import os
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files import database
from fastflow.files.read import InputFormat
from fastflow.files.read.matrix import MatrixFile, MatrixRows
from fastflow.files.read.sources import Sources, one_text
from fastflow.files.words import TABLE, WORDS, find_words, quote_query, read_kind
from fastflow.files.write.partial import read_options, read_run
from fastflow.model.locate import PACKAGED, find_present_name
from fastflow.options import check_texts, iterate_in_order
from fastflow.values import short

Rows = NDArray[np.int64]
Where = str | Mapping[str, Any]  # an SQL condition, or a value or list of values for each column
NPY_ROWS = 8192  # rows read at a time
SHOWN = 80  # characters of a text in the repr of a Hit


class Hit(NamedTuple):
    """A found row; ``text`` and ``id`` are None if the file has none; ``fields``: the kept fields.

    ``rows``: the found rows of the same text, ``row`` first. A search by words and vectors has the ``similarity`` and
    the BM25 (``words``) of which ``score`` is made; None if the row is not among the best of that list.
    """

    row: int
    score: float
    text: str | None = None
    id: str | int | float | None = None
    fields: dict[str, object] = {}  # noqa: RUF012 (never written to)
    rows: tuple[int, ...] = ()
    similarity: float | None = None
    words: float | None = None

    def __repr__(self) -> str:
        more: dict[str, Any] = {"text": self.text and shorten(self.text, SHOWN), "id": self.id, "fields": self.fields}
        more["rows"] = self.rows if len(self.rows) > 1 else None
        given = [f"{name}={value!r}" for name, value in more.items() if value not in (None, {})]
        return f"Hit({', '.join([f'row={self.row}', f'score={self.score:.4f}', *given])})"


def group_equal(hits: Sequence[Hit]) -> list[Hit]:
    """Join hits of the same text: the first of each, with the rows of all."""
    groups: dict[str | int, list[Hit]] = {}
    for hit in hits:
        groups.setdefault(hit.row if hit.text is None else hit.text, []).append(hit)
    return [each[0]._replace(rows=tuple(hit.row for hit in each)) for each in groups.values()]


class Source(ABC):
    """The rows of a searched file: row numbers, and vectors of ``dim`` numbers in ``precision``.

    ``kind``: ``floats``, ``int8`` about 0, or ``bits``, eight to a byte. ``fingerprint``: of the model. ``truncated``:
    vectors were shortened to ``dim``. ``normalized``: to L2 norm 1.
    """

    path: Path
    dim: int
    precision: str = "float32"
    kind: str = "floats"
    fingerprint: str | None = None
    id_column: str | None = None
    columns: Sequence[str] = ()
    truncated: bool = False
    normalized: bool = False
    words: str | None = None  # the kind of tokenizer of its word search
    maker: str = ""  # the name of the model, for a message

    @abstractmethod
    def count(self) -> int:
        """Count the rows."""

    @abstractmethod
    def blocks(self, where: Where | None = None) -> Iterator[tuple[Rows, NDArray[Any]]]:
        """Yield ascending row numbers (b,) and vectors (b, width) that meet ``where``."""

    @abstractmethod
    def vectors(self, rows: Rows) -> NDArray[Any]:
        """Read the vectors (n, width) of ``rows``, in their order."""

    @abstractmethod
    def numbers(self, where: Where) -> Rows:
        """Read the ascending numbers of rows that meet ``where``."""

    def find_words(self, text: str, k: int, where: Where | None) -> list[tuple[int, float]]:
        """Return the ``k`` best (row, BM25) for ``text``; none without ``words``."""
        return []

    def is_changed(self) -> bool:
        """Whether the file was changed since it was opened."""
        return False

    @abstractmethod
    def hits(self, found: Sequence[tuple[int, float]]) -> list[Hit]:
        """Return a Hit for each (row, score) in ``found``."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class MatrixSource(Source):
    """The rows of a .npy of floats; ``texts``: the file of its texts."""

    def __init__(self, path: Path, texts: Path | None = None) -> None:
        self.path, self._texts = path, texts
        self._file = MatrixFile(str(path))
        self._matrix, self._blocks = self._file.matrix, self._file.blocks
        self.dim = self._matrix.shape[1]
        run = read_run(path)
        self.fingerprint, self.normalized = run.get("fingerprint"), bool(run.get("normalized"))
        self.truncated = read_options(run).get("dim") is not None

    def count(self) -> int:
        return len(self._matrix)

    def blocks(self, where: Where | None = None) -> Iterator[tuple[Rows, NDArray[Any]]]:
        if where is not None:
            raise self._refuse_condition()
        start = 0
        for block in self._blocks(NPY_ROWS):
            yield np.arange(start, start + len(block)), block
            start += len(block)

    def numbers(self, where: Where) -> Rows:
        raise self._refuse_condition()

    def vectors(self, rows: Rows) -> NDArray[Any]:
        return self._matrix[rows]

    def hits(self, found: Sequence[tuple[int, float]]) -> list[Hit]:
        texts = {} if self._texts is None else self._read_texts({row for row, _ in found})
        return [Hit(row, score, texts.get(row)) for row, score in found]

    def close(self) -> None:
        self._file.__exit__(None, None, None)

    def _read_texts(self, rows: set[int]) -> dict[int, str]:
        texts, count = {}, 0
        with Sources([str(self._texts)]) as sources:
            for row in sources.rows(InputFormat()):
                count += 1
                if row.number in rows:
                    texts[row.number] = one_text(row)
        if count != len(self._file.matrix):
            raise FastflowError(
                f"{self._texts} has {count:,} texts, and {self.path} has {len(self._file.matrix):,} vectors; give the "
                "file that was embedded"
            )
        return texts

    def _refuse_condition(self) -> UsageError:
        return UsageError(f"{self.path} has no columns, so no condition can choose its rows; make a .db for that")


class ArraySource(MatrixSource):
    """Vectors (n, D) and texts (n,) of a program."""

    def __init__(self, vectors: Any, texts: Sequence[str] | None) -> None:
        self.path, self._own = Path("the index"), texts
        self._matrix = MatrixRows(np.asarray(vectors), "the index")
        self._blocks, self.dim = self._matrix.blocks, self._matrix.shape[1]
        if texts is not None and len(texts) != len(self._matrix):
            raise UsageError(f"{len(texts):,} texts for {len(self._matrix):,} vectors: give one for each vector")

    def hits(self, found: Sequence[tuple[int, float]]) -> list[Hit]:
        return [Hit(row, score, None if self._own is None else self._own[row]) for row, score in found]

    def close(self) -> None:
        """No file is open."""


KINDS = {"int8": "int8", "uint8": "int8", "binary": "bits", "ubinary": "bits"}  # others are floats
FLIPPED = {"uint8": np.int8, "binary": np.uint8}  # stored 128 off: the highest bit is inverted
TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?P<name>(?:[^"]|"")*)" | `[^`]*` | \[[^\]]*\] | --[^\n]* | /\*.*?\*/
    | (?P<round>[()]) | .""",
    re.S | re.X,
)


def find_model(path: Path) -> str | None:
    """Return the model that the .db names, or None; raises if it is missing."""
    with database.reading(path) as db:
        name = find_present_name(database.run_of(db, path))
    if name in PACKAGED:
        return str(PACKAGED[name])
    if name is not None and not (os.path.isabs(name) and os.path.isdir(name)):  # else it would pass for a Hub id
        raise FastflowError(
            f"{path} was made with the model {name}, which is not there: give the model that made it with -m"
        )
    return name


class Database(Source):
    """A .db, opened in every call, so that threads and forks may call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with database.reading(path) as db:
            self.run = database.run_of(db, path)
            self.columns = database.columns_of(db)
            self.words = read_kind(db)
        self.maker = f", {self.run['model']}" if self.run.get("model") else ""
        name = self.run.get("id_field") or "id"
        self.id_column = name if name in self.columns else None
        self._identity = self._stat()
        self.dim, self.precision = self.run["dim"], self.run["precision"]
        self.kind = KINDS.get(self.precision, self.kind)
        self.fingerprint, self.normalized = self.run.get("fingerprint"), bool(self.run.get("normalized"))
        self.truncated = self.run.get("truncate_dim") is not None
        self._dtype, self._width = np.dtype(database.DTYPES[self.precision]), database.width_of(self.run)

    def count(self) -> int:
        with self._open() as db:
            return int(db.execute(f"SELECT count(*) FROM {TABLE}").fetchone()[0])  # noqa: S608 (a fixed name)

    def blocks(self, where: Where | None = None) -> Iterator[tuple[Rows, NDArray[Any]]]:
        condition, values = ("1", []) if where is None else compile_condition(where, self.columns)
        with self._open(where) as db:
            last = -1
            cursor = db.execute(f"SELECT row, vector FROM {TABLE} WHERE {condition} ORDER BY row", values)  # noqa: S608 (checked)
            while found := cursor.fetchmany(database.ROWS):
                rows, vectors = zip(*found, strict=True)
                with self._check_content():
                    last = database.check_rows(rows, last)
                yield np.array(rows, np.int64), self._matrix(rows, vectors)

    def numbers(self, where: Where) -> Rows:
        condition, values = compile_condition(where, self.columns)
        with self._open(where) as db:
            sql = f"SELECT row FROM {TABLE} WHERE {condition} ORDER BY row"  # noqa: S608 (checked)
            rows = [row for (row,) in db.execute(sql, values)]
        with self._check_content():
            database.check_rows(rows, -1)
        return np.array(rows, np.int64)

    def vectors(self, rows: Rows) -> NDArray[Any]:
        found = self._read_rows("row, vector", rows.tolist())
        return self._matrix(rows.tolist(), [found[row][1] for row in rows.tolist()])

    def find_words(self, text: str, k: int, where: Where | None) -> list[tuple[int, float]]:
        allowed = None if where is None else frozenset(self.numbers(where).tolist()).__contains__
        with self._open() as db:
            database.read_only(db, TABLE, WORDS)
            return find_words(db, quote_query(text, str(self.words)), k, allowed)

    def is_changed(self) -> bool:
        return self._stat() != self._identity

    def hits(self, found: Sequence[tuple[int, float]]) -> list[Hit]:
        rest = [name for name in self.columns if name not in ("row", "text", self.id_column)]
        given = "NULL" if self.id_column is None else database.quote_name(self.id_column)
        names = ", ".join(["row", "text", given, *map(database.quote_name, rest)])
        rows = self._read_rows(names, [row for row, _ in found])
        hits = []
        for row, score in found:
            _, text, identity, *values = rows[row]
            with self._check_content():
                database.check_texts([row], [text])
                if isinstance(identity, bytes):
                    raise ValueError(f"row {row}: its id is bytes, neither text nor a number")
            hits.append(Hit(row, score, text, identity, dict(zip(rest, values, strict=True))))
        return hits

    def close(self) -> None:
        """No file stays open between calls."""

    def _read_rows(self, names: str, rows: list[int]) -> dict[int, Sequence[Any]]:
        with self._open() as db:
            sql = f"SELECT {names} FROM {TABLE} WHERE row IN"  # noqa: S608 (our names)
            found: dict[int, Sequence[Any]] = {each[0]: each for each in database.select_in(db, sql, rows)}
        if absent := [row for row in rows if row not in found]:
            raise FastflowError(f"{self.path} has no row {absent[0]}")
        return found

    @contextmanager
    def _check_content(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise FastflowError(f"{self.path} is damaged: {error}; make it again") from error

    def _matrix(self, rows: Sequence[int], vectors: Sequence[Any]) -> NDArray[Any]:
        with self._check_content():
            found = database.matrix(rows, vectors, self._dtype, self._width)
        if self.precision in FLIPPED:
            return (found.view(np.uint8) ^ np.uint8(128)).view(FLIPPED[self.precision])
        return found

    @contextmanager
    def _open(self, where: Where | None = None) -> Iterator[sqlite3.Connection]:
        try:
            self._check_unchanged()
            with database.reading(self.path) as db:
                self._check_unchanged()
                database.read_only(db, TABLE)
                yield db
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            if isinstance(where, str):
                raise refuse(where, error, self.columns) from error
            raise FastflowError(f"{self.path} cannot be read: {error}; make it again") from error

    def _check_unchanged(self) -> None:
        if self.is_changed():
            raise FastflowError(f"{self.path} was changed since it was opened; open it again")

    def _stat(self) -> tuple[int, ...]:
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise FastflowError(f"{self.path} cannot be read: {error.strerror}") from error
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def open_source(path: Any, texts: Any) -> Source:
    """Open a .npy, a .db without ``texts``, or vectors and texts of a program."""
    if not isinstance(path, str | os.PathLike):
        return ArraySource(path, None if texts is None else list(check_texts(iterate_in_order(texts))))
    path, texts = Path(path), None if texts is None else Path(texts)
    if path.suffix == ".npy":
        return MatrixSource(path, texts)
    if path.suffix != ".db":
        raise UsageError(f"{path}: {short(path.suffix)} cannot be searched; make a .db with fastflow embed -o OUT.db")
    if texts is not None:
        raise UsageError(f"{path} has the texts itself: leave out {texts}")
    return Database(path)


def compile_condition(where: Where, columns: Sequence[str]) -> tuple[str, list[Any]]:
    """Return SQL and its bound values: each column of a mapping equals its value, or one of a list."""
    if isinstance(where, str):
        return check_condition(where, columns), []
    known, parts, values = {database.fold_case(name) for name in columns}, ["1"], list[Any]()
    for name, wanted in where.items():
        if not isinstance(name, str) or database.fold_case(name) not in known:
            raise UsageError(f"no column is called {short(name)}; the columns are {', '.join(columns[:20])}")
        some = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
        if odd := [each for each in some if not isinstance(each, str | int | float | None)]:
            raise UsageError(f"the filter {name} holds {short(odd[0])}: give a text, a number, null, or a list of them")
        equal = f"{database.quote_name(name)} IN ({', '.join('?' * len(some))})"
        parts.append(f"({equal} OR {database.quote_name(name)} IS NULL)" if None in some else equal)
        values += some
    return " AND ".join(parts), values


def check_condition(where: str, columns: Sequence[str]) -> str:
    """Return ``where`` in parentheses; raises a UsageError unless it is a condition on ``columns``.

    SQLite would take an unknown name in double quotes as a text.
    """
    depth, known = 0, {database.fold_case(name) for name in columns}
    for token in TOKEN.finditer(where):
        depth += {"(": 1, ")": -1}.get(token["round"] or "", 0)
        if depth < 0:
            break
        name = token["name"]
        if name is not None and database.fold_case(name.replace('""', '"')) not in known:
            raise refuse(where, f"no column is called {name!r} (a text needs single quotes)", columns)
    if depth or not where.strip():
        raise refuse(where, "its parentheses do not match" if depth else "it is empty", columns)
    return f"(\n{where}\n)"  # the line end closes a comment


def refuse(where: str, why: object, columns: Sequence[str]) -> UsageError:
    """Make the error for a condition that SQLite cannot run."""
    names = ", ".join(columns[:20]) + ", …" * (len(columns) > 20)
    why = " ".join(str(why).split())  # SQLite quotes the added line end
    if why.startswith("unrecognized token: ") and why[20:22] in ("\"'", '""', '"`', '"['):  # an unclosed quote
        why = "a quote is not closed"
    if why.startswith("no such column: "):
        why += " (a text needs single quotes)"
    if why == 'near ")": syntax error' and ")" not in where:  # the parenthesis that was added
        why = "it ends too soon"
    return UsageError(f"the condition {short(where)} cannot be used: {why}; the columns are {names}")
