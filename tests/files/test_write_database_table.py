"""A .db that is read: opened to read only, and refused where it is not what fastflow embed makes."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.files.write.database_table import blocks, columns_of, folded, matrix, quoted, reading, run_of, width_of

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


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DROP TABLE run", "is no .db of fastflow embed, or damaged: no such table: run"),
        ("ALTER TABLE texts RENAME COLUMN vector TO v", "is no .db of fastflow embed, or damaged: no column vector"),
        ("UPDATE run SET value = 2 WHERE name = 'format'", "is of version 2 of .db, and this fastflow reads 1; update"),
        ("UPDATE run SET value = 'x' WHERE name = 'dim'", "its table run has no precision or dim"),
        ("DELETE FROM run WHERE name = 'precision'", "its table run has no precision or dim"),
    ],
)
def test_other_files_are_refused(path, sql, message):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(sql)
    with pytest.raises(FastflowError) as caught, reading(path) as db:
        run_of(db, path)
    assert message in str(caught.value)


def test_no_database_at_all(tmp_path):
    with (
        pytest.raises(FastflowError, match=r"absent\.db cannot be read: No such file"),
        reading(tmp_path / "absent.db"),
    ):
        pass
    os.mkfifo(tmp_path / "pipe.db")
    with (
        pytest.raises(FastflowError, match=r"pipe\.db cannot be read: it is not a file"),
        reading(tmp_path / "pipe.db"),
    ):
        pass
    (tmp_path / "text.db").write_text("one text\n" * 1000)
    with pytest.raises(FastflowError, match=r"is no \.db of fastflow embed"), reading(tmp_path / "text.db"):
        pass


def test_names_and_widths():
    assert quoted('a "b"') == '"a ""b"""'
    assert folded("ÄbC") == "Äbc"
    assert [width_of({"precision": p, "dim": 12}) for p in ("uint8", "binary", "ubinary")] == [12, 2, 2]


@pytest.mark.parametrize("vectors", [[b"1234567"], [b"12345678", "a text"], [b"12345678", None]])
def test_a_vector_of_another_length_is_refused(vectors):
    with pytest.raises(ValueError, match=f"row {6 + len(vectors)}: its vector is not 2 numbers of float32"):
        matrix(range(7, 7 + len(vectors)), vectors, np.dtype("<f4"), 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
def test_a_number_that_is_none_is_named_by_its_row(bad, dtype):
    vectors = [np.array([1, 2], dtype).tobytes(), np.array([3, bad], dtype).tobytes()]
    with pytest.raises(ValueError, match="row 8: its vector holds NaN or infinity"):
        matrix([7, 8], vectors, np.dtype(dtype), 2)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


@pytest.mark.parametrize(
    "sql",
    [
        f"DROP TABLE run; CREATE VIEW run AS {ENDLESS} i AS name, i AS value FROM n",
        f"DROP TABLE texts; CREATE VIEW texts AS {ENDLESS} i AS row, 'a' AS text, x'00' AS vector FROM n",
        "DROP TABLE texts; CREATE VIRTUAL TABLE texts USING fts5(row, text, vector)",
    ],
)
def test_a_name_that_is_no_plain_table_is_refused(path, sql):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(sql)
    with pytest.raises(FastflowError, match=r"is no \.db of fastflow embed: (run|texts) is not a plain table"):
        list(blocks(path, scored=False))


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        ("row, text, vector, n", "NULL, 'a', x'00', 1", "row None comes after row -1"),
        ("row, text, vector, n", "1e300, 'a', x'00', 1", r"row 1e\+300 comes after row -1"),
        ("row, text, vector, n", "-3, 'a', x'00', 1", "row -3 comes after row -1"),
        ("row, text, vector, n", "'x', 'a', x'00', 1", "row 'x' comes after row -1"),
        ("row, text, vector, n", "0, x'61', x'00', 1", "row 0: its text is bytes, not text"),
        ("row, text, vector, n", "0, 'a', 'b', 1", "row 0: its vector is not 5 numbers of float32"),
    ],
)
def test_a_row_that_cannot_be_is_named(path, declared, value, message):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(f"DROP TABLE texts; CREATE TABLE texts ({declared}); INSERT INTO texts VALUES ({value})")
    with pytest.raises(ValueError, match=message):
        list(blocks(path, scored=False))


def test_a_row_that_comes_twice_is_named(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript("CREATE TABLE t AS SELECT * FROM texts; DROP TABLE texts; ALTER TABLE t RENAME TO texts")
        db.execute("INSERT INTO texts SELECT * FROM texts WHERE row = 4")
    with pytest.raises(ValueError, match="row 4 comes after row 4"):
        list(blocks(path, scored=False))


@pytest.mark.parametrize("name", ["fingerprint", "prompt", "truncate_dim"])
def test_a_run_of_other_types_is_refused(path, name):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT OR REPLACE INTO run VALUES (?, x'00')", (name,))
    with pytest.raises(FastflowError, match=f"{name} in its table run is b'.x00'"), reading(path) as db:
        run_of(db, path)
