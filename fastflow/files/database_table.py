"""The table of embeddings in a SQLite file: its names, opening it to read only, and its rows and its run."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.files.printing import Block

FORMAT = 1
PAGE = 16_384  # bytes: a row of 768 floats takes 3.3 kB with it, 4.1 kB with SQLite's 4,096
TABLE = "texts"
ROWS = 512  # read at a time: more would leave the caches
DTYPES = {  # of a vector, by the run's precision
    "float32": "<f4", "float16": "<f2", "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"
}  # fmt: skip


def quoted(name: str) -> str:
    """``name`` as SQL spells the name of a column."""
    return '"' + name.replace('"', '""') + '"'


def folded(name: str) -> str:
    """Names of columns are one to SQLite if they differ in the case of ASCII letters alone."""
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def connect(path: Path) -> sqlite3.Connection:
    """The database at ``path`` to read; raises a FastflowError where there is none."""
    try:
        with path.open("rb"):  # SQLite would call any failure 'unable to open'
            pass
    except OSError as error:
        raise FastflowError(f"{path} cannot be read: {error.strerror}") from error
    return sqlite3.connect(f"{Path(os.path.abspath(path)).as_uri()}?mode=ro", uri=True, isolation_level=None)


def run_of(db: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """The table ``run``; raises a FastflowError for a file that fastflow embed did not make, or that is damaged."""
    try:
        run = dict(db.execute("SELECT name, value FROM run"))
        columns_of(db)
    except (sqlite3.Error, ValueError) as error:
        raise FastflowError(f"{path} is no .db of fastflow embed, or damaged: {error}") from error
    if (version := run.get("format")) != FORMAT:
        raise FastflowError(f"{path} is of version {version} of .db, and this fastflow reads {FORMAT}; update")
    if run.get("precision") not in DTYPES or not isinstance(run.get("dim"), int) or run["dim"] < 1:
        raise FastflowError(f"{path} is damaged: its table run has no precision or dim; make the file again")
    return run


def columns_of(db: sqlite3.Connection) -> list[str]:
    """The names of the table's columns, but ``vector``."""
    names = [name for _, name, *_ in db.execute(f"PRAGMA table_info({TABLE})")]
    for own in ("row", "text", "vector"):
        if own not in names:
            raise ValueError(f"no column {own}")
    return [name for name in names if name != "vector"]


def width_of(run: dict[str, Any]) -> int:
    """The numbers in a stored vector; of bits the bytes."""
    return -(-run["dim"] // 8) if run["precision"] in ("binary", "ubinary") else run["dim"]


def about_of(path: Path) -> dict[str, Any]:
    """What the table ``run`` of a part has beyond its manifest."""
    with closing(connect(path)) as db:
        run = run_of(db, path)
        return {name: run.get(name) for name in ("dim", "truncate_dim", "prompt")}


def blocks(path: Path, scored: bool) -> Iterator[Block]:
    """All rows, ROWS at a time, for another database; no rows are a block too, for it has width and dtype.

    ``scored``: the column ``log_prob`` is of the run, and no field that was kept.
    Raises ValueError for a table that is damaged.
    """
    with closing(connect(path)) as db:
        run = run_of(db, path)
        dtype, width = np.dtype(DTYPES[run["precision"]]), width_of(run)
        kept = [name for name in columns_of(db) if name not in ("row", "text", *["log_prob"] * scored)]
        names = ["row", "text", "vector", *["log_prob"] * scored, *kept]
        yield Block([], [], None, np.zeros((0, width), dtype), np.zeros(0) if scored else None, {n: [] for n in kept})
        try:
            cursor = db.execute(f"SELECT {', '.join(map(quoted, names))} FROM {TABLE} ORDER BY row")  # noqa: S608
            while rows := cursor.fetchmany(ROWS):
                numbers, texts, vectors, *rest = zip(*rows, strict=True)
                scores = np.array(rest.pop(0), np.float64) if scored else None
                columns = dict(zip(kept, rest, strict=True))
                yield Block(numbers, texts, None, matrix(vectors, dtype, width), scores, columns)
        except sqlite3.Error as error:
            raise ValueError(str(error)) from error


def matrix(vectors: Sequence[Any], dtype: np.dtype[Any], width: int) -> NDArray[Any]:
    """Vectors as they are stored as (n, width); raises ValueError for one of another length."""
    if any(type(vector) is not bytes or len(vector) != width * dtype.itemsize for vector in vectors):
        raise ValueError(f"a vector is not {width} numbers of {dtype}")
    return np.frombuffer(b"".join(vectors), dtype).reshape(len(vectors), width)
