"""Read a .db of embeddings: open it read-only, check its schema, and yield its rows."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import plain
from fastflow.files.words import TABLE, WORDS, create_words, is_duplicates, read_kind
from fastflow.files.write import Block
from fastflow.files.write.outputs import OutputFile
from fastflow.transforms.vectors import first_bad
from fastflow.values import open_regular, short
from fastflow.version import __version__

FORMAT = 1
PAGE = 16_384  # bytes; rows of 768 floats waste less than with SQLite's 4,096
RUN = "run"
KEY_INDEX = "texts_by_key"  # of --append
JOURNALS = ("-journal", "-wal", "-shm")  # SQLite's files beside a database that is written
STEPS = 10_000  # steps of SQLite between looks for a signal: about a millisecond
LIMITS = {"LENGTH": 1 << 28, "SQL_LENGTH": 1 << 20, "EXPR_DEPTH": 200, "COMPOUND_SELECT": 20, "ATTACHED": 0}
ABOUT = ("dim", "truncate_dim", "prompt", "id_field", "text_field", "model")  # fields of a run that a manifest lacks
ASKED = 500  # keys in a query
ROWS = 512  # rows at a time: more would not fit the caches
DTYPES = {  # --precision of the run -> dtype of its vectors
    "float32": "<f4", "float16": "<f2", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"
}  # fmt: skip
OPTIONS = {  # entry of the table run that appended rows share -> option
    "fingerprint": "-m",
    "dtype": "--dtype",
    "precision": "--precision",
    "normalized": "--normalize",
    "truncate_dim": "--dim",
    "prompt": "--prompt",
    "id_field": "--id-field",
    "text_field": "--text-field",
}


def quote_name(name: str) -> str:
    """Quote ``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def select_in(db: sqlite3.Connection, sql: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``sql``, which ends with IN, for ``values`` of any number."""
    for start in range(0, len(values), ASKED):
        some = values[start : start + ASKED]
        yield from db.execute(f"{sql} ({', '.join('?' * len(some))})", some).fetchall()


def fold_case(name: str) -> str:
    """Lower the ASCII letters of a name, as SQLite ignores their case."""
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


class InterruptibleConnection:
    """Catches signals, such as Ctrl-C, while SQLite runs a statement.

    SQLite calls a generator every STEPS; Python runs a signal's handler there, and its ``error`` ends the statement.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.error: BaseException | None = None
        steps = self._steps()
        next(steps)
        db.set_progress_handler(steps.__next__, STEPS)

    def _steps(self) -> Iterator[int]:
        while self.error is None:
            try:
                yield 0
            except GeneratorExit:
                return
            except BaseException as error:  # raised again by ``reading``
                self.error = error
        while True:
            yield 1


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open ``path``, which may be hostile, for reading the tables ``texts`` and ``run`` only.

    Raises a FastflowError if it is absent, or a table is a view or virtual.
    """
    try:
        with open_regular(path):  # SQLite calls any failure 'unable to open', and waits for a pipe
            pass
    except OSError as error:
        raise FastflowError(f"{path} cannot be read: {error.strerror}") from error
    uri = f"{Path(os.path.abspath(path)).as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        heard = InterruptibleConnection(db)
        try:
            _check_tables(db, path)
            read_only(db, TABLE, RUN, "sqlite_master")
            yield db
        except (sqlite3.Error, FastflowError):
            if heard.error is not None:
                raise heard.error from None
            raise


def _check_tables(db: sqlite3.Connection, path: Path) -> None:
    if hasattr(db, "setlimit"):
        for limit, most in LIMITS.items():
            db.setlimit(getattr(sqlite3, f"SQLITE_LIMIT_{limit}"), most)
    try:
        db.execute("PRAGMA trusted_schema = OFF")
        sql = "SELECT name, type, sql FROM sqlite_master WHERE name COLLATE NOCASE IN (?, ?)"
        found = {name: (kind, str(made)) for name, kind, made in db.execute(sql, (TABLE, RUN))}
        if read_kind(db) is not None:
            db.execute(f"SELECT 1 FROM {WORDS} LIMIT 0")  # noqa: S608 (FTS5 opens it while all is allowed)
    except (sqlite3.Error, ValueError) as error:  # ValueError: a table's name is not text
        if "readonly" in str(error):  # not mended here: a hostile journal could delete a file
            raise FastflowError(
                f"{path} was left by a killed run, with {path.name}-journal: repeat its --append, which mends it"
            ) from error
        raise FastflowError(f"{path} is no .db of fastflow embed, or damaged: {error}; make it again") from error
    for name, (kind, made) in found.items():
        if kind != "table" or not made.upper().startswith("CREATE TABLE"):
            raise FastflowError(f"{path} is no .db of fastflow embed: {name} is not a plain table; make the file again")


def read_only(db: sqlite3.Connection, *tables: str) -> None:
    """Restrict ``db`` to ``tables`` and functions; RUN lists columns too, and WORDS allows the parts of word search."""

    def allow(action: int, first: str | None, second: str | None, *_: object) -> int:
        words = WORDS in tables and str(first).startswith(WORDS)
        reads = action == sqlite3.SQLITE_READ and (first in tables or words)
        known = ["table_info"] * (RUN in tables) + ["data_version"] * (WORDS in tables)
        lists = action == sqlite3.SQLITE_PRAGMA and first in known
        calls = action == sqlite3.SQLITE_FUNCTION and second != "load_extension"
        fine = reads or lists or calls or action == sqlite3.SQLITE_SELECT
        return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY

    db.set_authorizer(allow)


def run_of(db: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """Return the table ``run``; raises a FastflowError for a damaged or foreign file."""
    try:
        run = dict(db.execute("SELECT name, value FROM run"))
        columns_of(db)
    except (sqlite3.Error, ValueError) as error:
        raise FastflowError(
            f"{path} is no .db of fastflow embed, or damaged: {error}; make it again, or if it is the FILE.db of "
            "--cache, search the file of -o"
        ) from error
    if (version := run.get("format")) != FORMAT:
        raise FastflowError(f"{path} is of version {short(version)} of .db, and this fastflow reads {FORMAT}; update")
    if run.get("precision") not in DTYPES or not isinstance(run.get("dim"), int) or run["dim"] < 1:
        raise FastflowError(f"{path} is damaged: its table run has no precision or dim; make the file again")
    for name, kind in (("fingerprint", str), ("prompt", str), ("truncate_dim", int), ("id_field", str), ("model", str)):
        if not isinstance(run.get(name), kind | None):
            said = f"{name} in its table run is {short(run[name])}"
            raise FastflowError(f"{path} is damaged: {said}; make the file again")
    return run


def _describe_option(option: str, value: Any) -> str:
    given = f" {short(value)}" * (not isinstance(value, int) or option == "--dim")
    return f"with {option}{given}" if value else f"without {option}"


def check_appendable(db: sqlite3.Connection, path: Path, now: dict[str, Any], names: list[str]) -> dict[str, str]:
    """Return the declared types of ``names``; raises a UsageError unless a run ``now`` may append to ``path``."""
    try:
        before = run_of(db, path)
    except FastflowError as error:
        raise UsageError(
            f"{path} has a table {TABLE} or {RUN} of another program, and --append needs these names; give "
            "another output with -o"
        ) from error
    for name, option in OPTIONS.items():
        if before.get(name) != now[name] and (name in before or name != "text_field"):
            shown = "model" if option == "-m" else name
            was, has = (_describe_option(option, run.get(shown)) for run in (before, now))
            has = "with another version of it" if was == has else has
            raise UsageError(f"{path} was made {was}, and this run is {has}; give the same, or another output with -o")
    declared = {name: kind for _, name, kind, *_ in db.execute(f"PRAGMA table_info({TABLE})")}
    mine, theirs = ({fold_case(name): name for name in each} for each in (names, declared))
    if absent := [theirs[name] for name in theirs if name not in mine]:
        raise UsageError(f"{path} has the column {absent[0]}: fill it, by --keep or fields= of Index.add")
    if absent := [mine[name] for name in mine if name not in theirs]:
        raise UsageError(f"{path} has no column {absent[0]}: leave it out, or choose another output with -o")
    return {mine[name]: declared[theirs[name]] for name in mine}


def columns_of(db: sqlite3.Connection) -> list[str]:
    """Return the names of the columns except ``vector``."""
    names = [name for _, name, *_ in db.execute(f"PRAGMA table_info({TABLE})")]
    for own in ("row", "text", "vector"):
        if own not in names:
            raise ValueError(f"no column {own}")
    return [name for name in names if name != "vector"]


def width_of(run: dict[str, Any]) -> int:
    """Return the numbers of a stored vector, or its bytes if they are bits."""
    return -(-run["dim"] // 8) if run["precision"] in ("binary", "ubinary") else run["dim"]


def find_foreign(path: Path) -> str | None:
    """Describe a part of ``path`` that fastflow did not make, or return None."""
    if beside := [path.name + end for end in JOURNALS if path.with_name(path.name + end).exists()]:
        return f"{beside[0]} shows that another program writes it"
    try:
        with reading(path) as db:
            run_of(db, path)
        with closing(sqlite3.connect(f"{Path(os.path.abspath(path)).as_uri()}?mode=ro", uri=True)) as db:
            named = db.execute("SELECT type, name, sql FROM sqlite_master")
            own, ours = (TABLE, RUN, KEY_INDEX), ("sqlite_", WORDS)
            others = (each for each in named if each[1] not in own and not each[1].startswith(ours))
            foreign = next((each for each in others if not is_duplicates(*each[1:])), None)
    except (sqlite3.Error, ValueError, FastflowError):
        return "it is no .db that fastflow embed made"
    return None if foreign is None else f"it has the {foreign[0]} {short(foreign[1])}, which fastflow did not make"


def about_of(path: Path) -> dict[str, Any]:
    """Return the fields of ``run`` that a part's manifest lacks."""
    with reading(path) as db:
        run = run_of(db, path)
        return {name: run.get(name) for name in ABOUT}


def blocks(path: Path) -> Iterator[Block]:
    """Yield a block of no rows, then all rows, ROWS at a time; raises ValueError for a damaged table."""
    with reading(path) as db:
        run = run_of(db, path)
        dtype, width = np.dtype(DTYPES[run["precision"]]), width_of(run)
        kept = [name for name in columns_of(db) if name not in ("row", "text")]
        names, last = ["row", "text", "vector", *kept], -1
        yield Block([], [], np.zeros((0, width), dtype), kept={name: [] for name in kept})
        try:
            cursor = db.execute(f"SELECT {', '.join(map(quote_name, names))} FROM {TABLE} ORDER BY row")  # noqa: S608
            while rows := cursor.fetchmany(ROWS):
                numbers, texts, vectors, *rest = zip(*rows, strict=True)
                last = check_rows(numbers, last)
                check_texts(numbers, texts)
                columns = dict(zip(kept, rest, strict=True))
                yield Block(numbers, texts, matrix(numbers, vectors, dtype, width), kept=columns)
        except sqlite3.Error as error:
            raise ValueError(str(error)) from error


def check_rows(numbers: Sequence[Any], last: int) -> int:
    """Return the last of the row ``numbers``; raises ValueError unless they rise from ``last``."""
    for number in numbers:
        if type(number) is not int or number <= last:
            raise ValueError(f"row {short(number)} comes after row {last}, and rows are whole numbers that grow")
        last = number
    return last


def check_texts(numbers: Sequence[int], texts: Sequence[Any]) -> None:
    """Raise ValueError for a text that is not a str."""
    for number, text in zip(numbers, texts, strict=True):
        if type(text) is not str:
            raise ValueError(f"row {number}: its text is {type(text).__name__}, not text")


def matrix(numbers: Sequence[int], vectors: Sequence[Any], dtype: np.dtype[Any], width: int) -> NDArray[Any]:
    """Return ``vectors`` as (n, width); raises ValueError for another length, NaN or infinity."""
    for number, vector in zip(numbers, vectors, strict=True):
        if type(vector) is not bytes or len(vector) != width * dtype.itemsize:
            raise ValueError(f"row {number}: its vector is not {width} numbers of {dtype}")
    found = np.frombuffer(b"".join(vectors), dtype).reshape(len(vectors), width)
    if dtype.kind == "f" and (bad := first_bad(found)) is not None:
        raise ValueError(f"row {numbers[bad]}: its vector holds NaN or infinity")
    return found


HEAD = struct.Struct("<QQ")  # of a record: the sizes of its JSON and of its vectors
FIXED = {"row": " INTEGER PRIMARY KEY", "text": " TEXT NOT NULL", "vector": " BLOB NOT NULL"}
AFFINITY = {frozenset({str}): " TEXT", frozenset({int}): " INTEGER", frozenset({float}): " REAL"}
PRECISIONS = {"float32": "float32", "float16": "float16", "int8": "int8", "uint8": "ubinary"}
WHOLE = range(-(2**63), 2**63)


class DatabaseFile(OutputFile):
    """Writes a .db: table ``texts`` of row, text, id, kept fields, and vector as a little-endian BLOB.

    Table ``run`` describes the run. A column is declared with a type if its values have one type.
    """

    own = ("row", "text", "vector")
    same = staticmethod(fold_case)

    def __init__(self, target: Path, meta: dict[str, Any]) -> None:
        super().__init__(target, meta)
        self._kinds: dict[str, set[type]] = {}  # column -> types of its values

    def note(self, block: Block) -> None:
        for name, values in _columns(block).items():
            self._kinds.setdefault(name, set()).update(type(v) for v in values if v is not None)

    def encode(self, block: Block) -> bytes:
        self._numbers, self._width = block.vectors.dtype.name, block.vectors.shape[1]
        columns = {"row": list(block.rows), "text": list(block.texts)} | _columns(block)
        text = json.dumps(columns).encode()
        return HEAD.pack(len(text), block.vectors.nbytes) + text + block.vectors.tobytes()

    def finish(self) -> None:
        self.sync()
        try:
            with self.apart() as path:
                self._build(path)
                with path.open("rb+") as handle:
                    os.fsync(handle.fileno())
        except sqlite3.Error as error:
            raise FastflowError(
                f"{self.target} cannot be written: {error}; free some space or choose another place with -o"
            ) from error

    def name(self, whole: Path) -> None:
        if self.rows:  # the replaced file's journal would be applied to the new file
            for end in JOURNALS:
                self.target.with_name(self.target.name + end).unlink(missing_ok=True)
        super().name(whole)

    def _build(self, path: Path) -> None:
        records = self._records()
        names, first = next(records)  # an empty input has a record too
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            # no process reads the file before the renaming: SQLite need not guard it
            for pragma in (f"page_size = {PAGE}", "encoding = 'UTF-8'", "journal_mode = off", "synchronous = off"):
                db.execute(f"PRAGMA {pragma}")
            db.execute("BEGIN")
            db.execute(f"CREATE TABLE {TABLE} ({', '.join(map(self._declare, names))})")
            insert = f"INSERT INTO {TABLE} VALUES ({', '.join('?' * len(names))})"  # noqa: S608 (a fixed name)
            for rows in chain([first], (rows for _, rows in records)):
                db.executemany(insert, rows)
            if self.words:
                create_words(db)
            self._write_run(db)
            db.execute("COMMIT")

    def describe_run(self) -> dict[str, Any]:
        """Return the entries of the table ``run``."""
        numbers = {"precision": PRECISIONS[self._numbers], "dim": self._width}
        return numbers | self.meta | self.about | {"format": FORMAT, "version": __version__}

    def _write_run(self, db: sqlite3.Connection) -> None:
        db.execute(f"CREATE TABLE {RUN} (name TEXT PRIMARY KEY, value) WITHOUT ROWID")
        db.executemany(f"INSERT INTO {RUN} VALUES (?, ?)", self.describe_run().items())  # noqa: S608 (a fixed name)

    def _records(self) -> Iterator[tuple[list[str], Iterable[Sequence[Any]]]]:
        self.handle.seek(0)
        while head := self.handle.read(HEAD.size):
            text, size = HEAD.unpack(head)
            columns = json.loads(self.handle.read(text))
            vectors, width = self.handle.read(size), size // max(1, len(columns["row"]))
            columns["vector"] = [vectors[at : at + width] for at in range(0, size, width)] if size else []
            yield list(columns), zip(*columns.values(), strict=True)

    def _declare(self, name: str) -> str:
        return quote_name(name) + (FIXED.get(name) or AFFINITY.get(frozenset(self._kinds.get(name, ())), ""))


def _columns(block: Block) -> dict[str, list[Any]]:
    return {name: [to_column(value) for value in values] for name, values in block.columns().items()}


def to_column(value: Any) -> str | int | float | None:
    """Return a JSON value for a column: lists, objects and integers beyond 64 bits as JSON text."""
    value = plain(value)
    if value is None or isinstance(value, (str, float)):
        return value
    if isinstance(value, int) and value in WHOLE:
        return int(value)
    return json.dumps(value, ensure_ascii=False)
