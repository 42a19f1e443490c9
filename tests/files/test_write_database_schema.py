"""A .db that is read: opened to read only, and refused where it is not what fastflow embed makes."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.files.write.database_schema import blocks, columns_of, folded, matrix, quoted, reading, width_of

from support.databases import make
from support.outputs import vectors_of


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "a ü?#%.db", vectors_of("float32"), {}, n=list(range(7)))


def test_nothing_can_be_written(path):
    before = path.read_bytes()
    with reading(path) as db:
        assert columns_of(db) == ["row", "text", "n"]
        for sql in ("DELETE FROM texts", "CREATE TABLE x (a)", "PRAGMA user_version = 3"):
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                db.execute(sql)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_rows_are_read_back(path):
    first, rest = blocks(path, scored=False)
    assert (len(first.rows), first.vectors.shape, first.vectors.dtype) == (0, (0, 5), np.float32)
    assert (rest.rows, rest.kept) == (tuple(range(7)), {"n": tuple(range(7))})
    assert np.array_equal(rest.vectors, vectors_of("float32"))


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
NONE = "is no .db of fastflow embed"
RUN = "INSERT OR REPLACE INTO run VALUES"
ROW = "DROP TABLE texts; CREATE TABLE texts (row, text, vector, n); INSERT INTO texts VALUES"
LOOSE = "CREATE TABLE t AS SELECT * FROM texts; DROP TABLE texts; ALTER TABLE t RENAME TO texts;"
SPOILT = [  # what is done to a sound file, sentence
    ("DROP TABLE run", f"{NONE}, or damaged: no such table: run"),
    ("ALTER TABLE texts RENAME COLUMN vector TO v", f"{NONE}, or damaged: no column vector"),
    ("UPDATE run SET value = 2 WHERE name = 'format'", "is of version 2 of .db, and this fastflow reads 1; update"),
    ("UPDATE run SET value = 'x' WHERE name = 'dim'", "its table run has no precision or dim"),
    ("DELETE FROM run WHERE name = 'precision'", "its table run has no precision or dim"),
    (f"{RUN} ('fingerprint', x'00')", "fingerprint in its table run is b'\\x00'"),
    (f"{RUN} ('prompt', x'00')", "prompt in its table run is b'\\x00'"),
    (f"{RUN} ('truncate_dim', x'00')", "truncate_dim in its table run is b'\\x00'"),
    (f"DROP TABLE run; CREATE VIEW run AS {ENDLESS} i AS name, i AS value FROM n", f"{NONE}: run is not a plain table"),
    (
        f"DROP TABLE texts; CREATE VIEW texts AS {ENDLESS} i AS row, 'a' AS text, x'00' AS vector FROM n",
        f"{NONE}: texts is not a plain table",
    ),
    (
        "DROP TABLE texts; CREATE VIRTUAL TABLE texts USING fts5(row, text, vector)",
        f"{NONE}: texts is not a plain table",
    ),
    (f"{ROW} (NULL, 'a', x'00', 1)", "row None comes after row -1"),
    (f"{ROW} (1e300, 'a', x'00', 1)", "row 1e+300 comes after row -1"),
    (f"{ROW} (-3, 'a', x'00', 1)", "row -3 comes after row -1"),
    (f"{ROW} ('x', 'a', x'00', 1)", "row 'x' comes after row -1"),
    (f"{ROW} (0, x'61', x'00', 1)", "row 0: its text is bytes, not text"),
    (f"{ROW} (0, 'a', 'b', 1)", "row 0: its vector is not 5 numbers of float32"),
    (f"{LOOSE} UPDATE texts SET vector = NULL WHERE row = 4", "row 4: its vector is not 5 numbers of float32"),
    (f"{LOOSE} UPDATE texts SET vector = 'abc' WHERE row = 4", "row 4: its vector is not 5 numbers of float32"),
    (f"{LOOSE} INSERT INTO texts SELECT * FROM texts WHERE row = 4", "row 4 comes after row 4"),
]


@pytest.mark.parametrize(("sql", "sentence"), SPOILT)
def test_a_file_that_is_not_as_it_was_made_is_refused(path, sql, sentence):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(sql)
    with pytest.raises((FastflowError, ValueError)) as caught:
        list(blocks(path, scored=False))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sentence"), [("absent.db", "No such file"), ("pipe.db", "it is not a file"), ("text.db", NONE)]
)
def test_no_database_at_all(tmp_path, name, sentence):
    os.mkfifo(tmp_path / "pipe.db")
    (tmp_path / "text.db").write_text("one text\n" * 1000)
    with pytest.raises(FastflowError) as caught, reading(tmp_path / name):
        pass
    assert f"{name} " in str(caught.value)
    assert sentence in str(caught.value)


def test_names_and_widths():
    assert quoted('a "b"') == '"a ""b"""'
    assert folded("ÄbC") == "Äbc"
    assert [width_of({"precision": p, "dim": 12}) for p in ("uint8", "binary", "ubinary")] == [12, 2, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
def test_a_number_that_is_none_is_named_by_its_row(bad, dtype):
    vectors = [np.array([1, 2], dtype).tobytes(), np.array([3, bad], dtype).tobytes()]
    with pytest.raises(ValueError, match="row 8: its vector holds NaN or infinity"):
        matrix([7, 8], vectors, np.dtype(dtype), 2)
