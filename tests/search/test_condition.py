"""Conditions: what is refused before SQLite sees it, and what SQLite may not do."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from fastflow.errors import UsageError
from fastflow.files.write.database_table import TABLE, read_only
from fastflow.search.condition import checked, refused

COLUMNS = ["row", "text", 'od"d', "Lang"]


@pytest.mark.parametrize(
    "where",
    ["row < 3", "(row) or (row)", "text = ')'", "text = 'it''s (' -- )", '"od""d" = 1', '"lang" = 1', "/* ( */ 1"],
)
def test_one_condition(where):
    assert checked(where, COLUMNS) == f"(\n{where}\n)"


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("1) UNION SELECT 1, 2 WHERE (1", "its parentheses do not match"),
        ("row in (1", "its parentheses do not match"),
        ("  ", "it is empty"),
        ('lang = "en"', "no column is called 'en', and texts stand in single quotes"),
    ],
)
def test_what_is_no_condition_is_refused(where, why):
    with pytest.raises(UsageError) as caught:
        checked(where, COLUMNS)
    assert f'{why}; the columns are row, text, od"d, Lang' in str(caught.value)


@pytest.mark.parametrize(
    ("where", "why"), [("row >", "it ends too soon"), ("row > abs()", "wrong number of arguments")]
)
def test_what_sqlite_says_of_our_parenthesis_is_not_repeated(where, why):
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t (row)")
        with pytest.raises(sqlite3.Error) as caught:
            db.execute(f"SELECT row FROM t WHERE {checked(where, COLUMNS)}")
    assert f"the condition '{where}' cannot be used: {why}" in str(refused(where, caught.value, COLUMNS))


def test_many_columns_are_cut():
    assert str(refused("x", "why", [str(n) for n in range(30)])).endswith("18, 19, …")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM texts", "UPDATE texts SET row = 1", "INSERT INTO texts VALUES (1)", "DROP TABLE texts",
        "ATTACH 'x.db' AS x", "CREATE TABLE x (a)", "PRAGMA query_only = off", "SELECT * FROM run",
        "SELECT * FROM sqlite_master", "SELECT load_extension('x')", "VACUUM INTO 'x.db'", "BEGIN",
        "SELECT * FROM pragma_table_info('texts')",
    ],
)  # fmt: skip
def test_only_the_table_can_be_read(tmp_path, monkeypatch, sql):
    monkeypatch.chdir(tmp_path)
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("CREATE TABLE texts (row)")
    db.execute("CREATE TABLE run (a)")
    read_only(db, TABLE)
    assert db.execute("SELECT count(*) FROM texts WHERE row IN (SELECT lower(row) FROM texts)").fetchone() == (0,)
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited|authorization denied"):
        db.execute(sql)
    assert list(tmp_path.iterdir()) == []
    db.close()
