"""A .db that is read: opened to read only, and refused where it is not what fastflow embed makes."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from databases import make
from outputs import vectors_of

from fastflow.errors import FastflowError
from fastflow.files.database_table import blocks, columns_of, connect, folded, matrix, quoted, run_of, width_of


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "a ü?#%.db", vectors_of("float32"), {}, n=list(range(7)))


def test_nothing_can_be_written(path):
    before = path.read_bytes()
    with closing(connect(path)) as db:
        assert columns_of(db) == ["row", "text", "n"]
        for sql in ("DELETE FROM texts", "CREATE TABLE x (a)", "PRAGMA user_version = 3"):
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
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
    with closing(connect(path)) as db, pytest.raises(FastflowError) as caught:
        run_of(db, path)
    assert message in str(caught.value)


def test_no_database_at_all(tmp_path):
    with pytest.raises(FastflowError, match=r"absent\.db cannot be read: No such file"):
        connect(tmp_path / "absent.db")
    (tmp_path / "text.db").write_text("one text\n" * 1000)
    with (
        closing(connect(tmp_path / "text.db")) as db,
        pytest.raises(FastflowError, match=r"is no \.db of fastflow embed"),
    ):
        run_of(db, tmp_path / "text.db")


def test_names_and_widths():
    assert quoted('a "b"') == '"a ""b"""'
    assert folded("ÄbC") == "Äbc"
    assert [width_of({"precision": p, "dim": 12}) for p in ("uint8", "binary", "ubinary")] == [12, 2, 2]


@pytest.mark.parametrize("vectors", [[b"1234567"], [b"12345678", "a text"], [b"12345678", None]])
def test_a_vector_of_another_length_is_refused(vectors):
    with pytest.raises(ValueError, match="a vector is not 2 numbers of float32"):
        matrix(vectors, np.dtype("<f4"), 2)
