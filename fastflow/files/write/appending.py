"""``--append``: add, replace and delete rows of a .db in place, in one transaction a window.

The key of a row is its id; in a file without ids it is its text. Tables of others in the file stay.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.console import add_note
from fastflow.errors import FastflowError, UsageError
from fastflow.files.database import (
    FIXED,
    KEY_INDEX,
    PAGE,
    RUN,
    DatabaseFile,
    check_appendable,
    quote_name,
    reading,
    run_of,
    select_in,
    to_column,
)
from fastflow.files.read import InputFormat
from fastflow.files.read.sources import Row, one_text
from fastflow.files.words import TABLE, create_words, trust_triggers
from fastflow.files.write import Block
from fastflow.files.write.partial import is_unfinished, run_path
from fastflow.options import cut_windows
from fastflow.values import short

WAIT = 60.0  # seconds to wait for another process that writes the file
# declared type -> values that SQLite does not convert
TYPES = {"TEXT": (str,), "INTEGER": (int,), "REAL": (int, float)}


def has_run(path: Path) -> bool:
    """Whether ``path`` has a table ``run``; what a killed run left half-done is rolled back."""
    with closing(sqlite3.connect(path, timeout=WAIT)) as db, explain_fault(path):
        return db.execute(f"PRAGMA table_info({RUN})").fetchone() is not None


def read_run_fields(path: Path) -> dict[str, Any]:
    """Return the table ``run`` with the fields that an addition needs."""
    has_run(path)
    with reading(path) as db:
        return dict.fromkeys(("id_field", "text_field", "truncate_dim", "normalized", "prompt")) | run_of(db, path)


@contextmanager
def explain_fault(path: Path) -> Iterator[None]:
    """Raise an error of SQLite as a FastflowError."""
    try:
        yield
    except sqlite3.Error as error:
        if "not a database" in str(error):
            raise UsageError(f"{path} is no SQLite file; choose another output with -o") from error
        raise FastflowError(f"{path} cannot be written: {error}; mend that, and give the same command again") from error


class Entry(NamedTuple):
    """A row of the input, with its key and the values of its other columns."""

    row: Row
    text: str
    key: Any
    kept: tuple[Any, ...]

    @property
    def digest(self) -> bytes:
        key = int(self.key) if isinstance(self.key, float) and self.key.is_integer() else self.key
        return hashlib.blake2b(json.dumps(key).encode(), digest_size=16).digest()


class AppendedFile(DatabaseFile):
    """Writes rows into the tables ``texts`` and ``run`` of ``target``, made if absent.

    ``counts``: the rows added, replaced, the same as before, and deleted. ``unit``: the word before a row's number in
    messages. Raises as ``check_appendable``, and if another run writes the file.
    """

    def __init__(self, target: Path, meta: dict[str, Any], layout: InputFormat, unit: str, deletes: bool) -> None:
        if is_unfinished(target):
            raise UsageError(f"{target} has an interrupted run: finish it with --resume, or remove {target}.partial")
        super().__init__(target, meta)
        self.counts = {"added": 0, "replaced": 0, "same": 0, "deleted": 0}
        self._layout, self._unit, self._deletes = layout, unit, deletes
        self._key = "text" if layout.id_field is None else layout.id_field
        self._places: dict[int, int] = {}  # number in the input -> row that it replaces
        self._texts: bool | None = None
        self._updates: list[tuple[Any, ...]] = []  # (*kept, row, *kept) of rows with the same text
        self._new, self._lacks_words = not target.exists(), False
        with explain_fault(self.target):
            self._db = sqlite3.connect(target, timeout=WAIT, isolation_level=None)
            trust_triggers(self._db)
            if self._new:
                self._db.execute(f"PRAGMA page_size = {PAGE}")

    def write(self, block: Block) -> None:
        with explain_fault(self.target):
            if not len(block.rows):
                self._begin(block)
                return
            columns: dict[str, list[Any]] = {"text": list(block.texts)}
            columns |= {name: list(map(to_column, values)) for name, values in block.columns().items()}
            columns["vector"] = [vector.tobytes() for vector in block.vectors]
            numbers = [self._places.pop(row, None) for row in block.rows]
            new = sum(number is None for number in numbers)
            fresh = iter(range(self._last + 1, self._last + 1 + new))
            columns = {"row": [next(fresh) if number is None else number for number in numbers]} | columns
            names, marks = ", ".join(map(quote_name, columns)), ", ".join("?" * len(columns))
            with self._changing():
                same = ", ".join(f"{name} = excluded.{name}" for name in map(quote_name, columns))
                sql = f"INSERT INTO {TABLE} ({names}) VALUES ({marks}) ON CONFLICT (row) DO UPDATE SET {same}"  # noqa: S608
                self._db.executemany(sql, zip(*columns.values(), strict=True))  # triggers would not see a REPLACE
                if self._lacks_words:
                    create_words(self._db)
                    trust_triggers(self._db)
                    self._lacks_words = False
            self._last += new
            self.rows += len(numbers)
            self.counts["added"] += new
            self.counts["replaced"] += len(numbers) - new

    def finish(self) -> None:
        with explain_fault(self.target), self._changing():
            if self._deletes:
                (seen,) = self._db.execute("SELECT count(*) FROM seen").fetchone()
                if not seen:
                    raise UsageError(
                        f"the input has no rows, so --delete-missing would empty {self.target}: leave it out"
                    )
                gone = f"DELETE FROM {TABLE} WHERE row <= ? AND row NOT IN (SELECT row FROM kept)"  # noqa: S608
                self.counts["deleted"] = self._db.execute(gone, [self._first]).rowcount
        self.list_skipped()

    def __enter__(self) -> AppendedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._db.close()
        if isinstance(error[1], BaseException):
            if self._new and not self.rows:
                self.target.unlink(missing_ok=True)
            elif self.rows:
                add_note(error[1], f"{self.rows:,} rows are in {self.target}; the same command adds the rest")
        self.remove()
        super().__exit__(*error)

    def pick_changed(self, rows: Iterable[Row], together: int) -> Iterator[Row]:
        """Yield the rows that need a vector: a new key, or an id with another text.

        Changed fields of other rows are written with the next window. Raises a FastflowError for a repeated id.
        ``together``: rows that are looked up at once.
        """
        for some in cut_windows(iter(rows), together, lambda row: len(one_text(row))):
            entries = [self._read(row) for row in some]
            with explain_fault(self.target):
                entries = self._note(entries)
                found = self._find([entry.key for entry in entries])
            for entry in entries:
                places = found.get(entry.key, [])
                if len(places) > 1 and self._layout.id_field is not None:
                    both = " and ".join(str(number) for number, _ in places[:2])
                    raise FastflowError(
                        f"{self.target}: rows {both} have the id {short(entry.key)}; delete one of them"
                    )
                if not places or places[0][1] != entry.text:
                    if places:
                        self._places[entry.row.number] = places[0][0]
                    yield entry.row
                else:
                    self.counts["same"] += 1
                    if entry.kept and len(places) == 1:
                        self._updates.append((*entry.kept, places[0][0], *entry.kept))
            if len(self._updates) >= together:
                with explain_fault(self.target), self._changing():
                    pass

    def delete(self, keys: Sequence[Any]) -> int:
        """Delete the rows of ids, or of texts in a file without ids; return their number."""
        with explain_fault(self.target), self._changing():
            self._index()
            sql = f"DELETE FROM {TABLE} WHERE {quote_name(self._key)} = ?"  # noqa: S608 (a quoted name)
            return self._db.executemany(sql, [(to_column(key),) for key in keys]).rowcount

    def _begin(self, block: Block) -> None:
        self._numbers, self._width = block.vectors.dtype.name, block.vectors.shape[1]
        names = ["row", "text", *block.columns(), "vector"]
        with self._changing():
            made = self._db.execute("SELECT 1 FROM sqlite_master WHERE name COLLATE NOCASE IN (?, ?)", (TABLE, RUN))
            if made.fetchone() is None:
                # without declared types, for later values may be of others
                self._db.execute(f"CREATE TABLE {TABLE} ({', '.join(quote_name(n) + FIXED.get(n, '') for n in names)})")
                self._write_run(self._db)
                self._lacks_words = self.words
            self._types = check_appendable(self._db, self.target, self.describe_run(), names)
            self._index()
            self._db.execute("CREATE TEMP TABLE seen (key BLOB PRIMARY KEY, place TEXT) WITHOUT ROWID")
            self._db.execute("CREATE TEMP TABLE kept (row INTEGER PRIMARY KEY)")
        (self._last,) = self._db.execute(f"SELECT coalesce(max(row), -1) FROM {TABLE}").fetchone()  # noqa: S608
        self._first = self._last
        run_path(self.target).unlink(missing_ok=True)  # of the run that wrote the whole file

    def _index(self) -> None:
        self._db.execute(f"CREATE INDEX IF NOT EXISTS {KEY_INDEX} ON {TABLE} ({quote_name(self._key)})")

    def _read(self, row: Row) -> Entry:
        text, layout = one_text(row), self._layout
        kept = tuple(map(to_column, row.record.kept))
        key = text if layout.id_field is None else to_column(row.record.id)
        if layout.id_field is not None and key in (None, ""):
            raise FastflowError(f"{self._place(row)}: its id is empty, by which --append would find it again; fill it")
        if isinstance(key, str) != self._is_text(key):
            raise FastflowError(
                f"{self._place(row)}: the id {short(key)} is {type(key).__name__}, and others are not, so '7' and 7 "
                "would be two rows; give all ids one type"
            )
        named = [*zip(layout.keep, kept, strict=True), *[(layout.id_field, key)] * (layout.id_field is not None)]
        for name, value in named:
            declared = self._types[str(name)]
            if value is not None and declared in TYPES and not isinstance(value, TYPES[declared]):
                raise FastflowError(
                    f"{self._place(row)}: {name} is {short(value)}, and the column of {self.target} is {declared}, so "
                    "SQLite would change it; change the value, or make the file again"
                )
        return Entry(row, text, key, kept)

    def _is_text(self, key: Any) -> bool:
        """Whether ids are texts, as the first one of the file, or else of the input."""
        if self._texts is None:
            kind = f"SELECT typeof({quote_name(self._key)}) = 'text' FROM {TABLE} LIMIT 1"  # noqa: S608 (a quoted name)
            found = self._db.execute(kind).fetchone()
            self._texts = isinstance(key, str) if found is None else bool(found[0])
        return self._texts

    def _note(self, entries: list[Entry]) -> list[Entry]:
        """Note the keys of ``entries``; return the entries with a new key."""
        digests = [entry.digest for entry in entries]
        seen = dict(select_in(self._db, "SELECT key, place FROM seen WHERE key IN", digests))
        fresh: dict[bytes, str] = {}
        first = []
        for entry, digest in zip(entries, digests, strict=True):
            place = self._place(entry.row)
            if (before := seen.get(digest) or fresh.get(digest)) is None:
                fresh[digest] = place
                first.append(entry)
            elif self._layout.id_field is None:
                self.counts["same"] += 1
            else:
                raise FastflowError(f"{place}: the id {short(entry.key)} is that of {before} too; keep one of them")
        self._db.executemany("INSERT INTO seen VALUES (?, ?)", fresh.items())
        return first

    def _find(self, keys: list[Any]) -> dict[Any, list[tuple[int, str]]]:
        """Return (row, text) of the file's rows with each key."""
        key, found = quote_name(self._key), dict[Any, list[tuple[int, str]]]()
        sql = f"SELECT {key}, row, text FROM {TABLE} WHERE {key} IN"  # noqa: S608 (a quoted name)
        for each, row, text in select_in(self._db, sql, keys):
            found.setdefault(each, []).append((row, text))
        if self._deletes:
            rows = [(row,) for places in found.values() for row, _ in places]
            self._db.executemany("INSERT OR IGNORE INTO kept VALUES (?)", rows)
        return found

    def _place(self, row: Row) -> str:
        return f"{row.path}, {self._unit} {row.record.line}"

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Run a transaction, which first writes ``_updates``."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            if self._updates:
                columns = list(map(quote_name, self._layout.keep))
                same = " AND ".join(f"{name} IS ?" for name in columns)
                sql = f"UPDATE {TABLE} SET {' = ?, '.join(columns)} = ? WHERE row = ? AND NOT ({same})"  # noqa: S608
                changed = self._db.executemany(sql, self._updates).rowcount
                self.counts["replaced"] += changed
                self.counts["same"] -= changed
            yield
        self._updates.clear()
