"""Write embeddings to an SQLite database: append records to NAME.partial, and copy them to a table at the end.

While it copies, the rows are on the disk twice.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError
from fastflow.files.read import plain
from fastflow.files.write import Block
from fastflow.files.write.database_schema import FORMAT, JOURNALS, PAGE, RUN, TABLE, fold_case, quote_name
from fastflow.files.write.outputs import OutputFile
from fastflow.version import __version__

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
        self._handle.seek(0)
        while head := self._handle.read(HEAD.size):
            text, size = HEAD.unpack(head)
            columns = json.loads(self._handle.read(text))
            vectors, width = self._handle.read(size), size // max(1, len(columns["row"]))
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
