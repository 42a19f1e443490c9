"""Reading a .db without our own reader, and making small ones."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fastflow.files.database import DatabaseFile
from fastflow.files.write import Block

DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows, their vectors as arrays, and the run."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        run = dict(db.execute("SELECT name, value FROM run"))
        db.row_factory = sqlite3.Row
        rows = [dict(row) for row in db.execute("SELECT * FROM texts ORDER BY row")]
    for row in rows:
        row["vector"] = np.frombuffer(row["vector"], DTYPES[run["precision"]])
    return rows, run


def make(path: Path, vectors: np.ndarray, meta: dict[str, Any] | None = None, **columns: list[Any]) -> Path:
    texts = columns.pop("text", [f"text {i}" for i in range(len(vectors))])
    with DatabaseFile(path, meta or {}) as writer:
        writer.begin()
        for some in (slice(0, 0), slice(0, 3), slice(3, None)):
            kept = {name: values[some] for name, values in columns.items()}
            writer.write(Block(range(len(vectors))[some], texts[some], vectors[some], kept=kept))
        writer.finish()
    return path
