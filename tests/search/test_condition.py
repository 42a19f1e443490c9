"""Conditions: one is passed on as it is, and what SQLite may not do."""

from __future__ import annotations

import sqlite3

import pytest

from fastflow.files.write.database_schema import TABLE, read_only
from fastflow.search.condition import check_condition, refuse


@pytest.mark.parametrize(
    "where",
    ["row < 3", "(row) or (row)", "text = ')'", "text = 'it''s (' -- )", '"od""d" = 1', '"lang" = 1', "/* ( */ 1"],
)
def test_one_condition(where):
    """What is none is in test_database.py."""
    assert check_condition(where, ["row", "text", 'od"d', "Lang"]) == f"(\n{where}\n)"


def test_many_columns_are_cut():
    for count, end in ((20, "18, 19"), (21, "18, 19, …"), (30, "18, 19, …")):
        assert str(refuse("x", "why", [str(n) for n in range(count)])).endswith(end)


@pytest.mark.parametrize(("where", "why"), [("'de", "a quote is not closed"), ("#", "unrecognized token: ")])
def test_the_end_that_is_put_after_a_condition_is_not_quoted(where, why):
    with pytest.raises(sqlite3.DatabaseError) as error:
        sqlite3.connect(":memory:").execute(f"SELECT 1 WHERE {check_condition(where, [])}")
    assert f"cannot be used: {why}" in str(refuse(where, error.value, []))


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
