"""``embed --append``: rows of a .db that are added, replaced and deleted in place, and tables of others, which stay."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.files import embed as module
from fastflow.search import Index

from support.commands import assert_one_sentence, run

OLD = [("a", "the dog", 1), ("b", "a cat", 2), ("c", "a bird", 3)]
NEW = [("b", "a cat", 2), ("d", "a horse", 4), ("a", "the dog ran", 1), ("c", "a bird", 9)]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "WINDOW", 2)
    return tmp_path


def write(name, rows, *names):
    names = names or ("id", "text", "n")
    Path(name).write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return name


def embed(source, *options, model="static", ids=("--id-field", "id", "--keep", "n"), out="x.db"):
    return run("embed", source, "-o", out, *(("-m", model) if model else ()), *ids, *options)


def rows_of(path="x.db", names="id, text, n, vector"):
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return sorted(db.execute(f"SELECT {names} FROM texts").fetchall())


def make_old(foreign=True):
    assert embed(write("old.jsonl", OLD)).exit_code == 0
    if foreign:
        with closing(sqlite3.connect("x.db")) as db, db:
            db.execute("CREATE TABLE customers AS SELECT 7 AS id, 'Ann' AS name")


@pytest.mark.parametrize("cache", [[], ["--cache", "c.cache"], ["--dedupe"]])
@pytest.mark.parametrize("missing", [False, True])
def test_an_id_is_kept_replaced_or_added_and_only_changed_texts_are_computed(desk, cache, missing):
    make_old()
    whole = NEW if missing else [*NEW, *(row for row in OLD if row[0] not in {each[0] for each in NEW})]
    assert embed(write("new.jsonl", NEW), out="whole.db").exit_code == 0
    done = embed("new.jsonl", "--append", *["--delete-missing"] * missing, *cache, model=None)
    assert done.exit_code == 0
    assert "fastflow: 4 texts (1 added, 2 replaced, 1 same, 0 deleted, 2 computed" in done.stderr
    assert done.stderr.rstrip().endswith("written to x.db")
    assert len(whole) == 4
    assert rows_of() == rows_of("whole.db")
    again = embed("new.jsonl", "--append", "--json", model=None)
    assert json.loads(again.stdout)["appended"] == {"added": 0, "replaced": 0, "same": 4, "deleted": 0}
    assert json.loads(again.stdout)["texts"] == 0
    with closing(sqlite3.connect("x.db")) as db:
        assert db.execute("SELECT * FROM customers").fetchall() == [(7, "Ann")]
        assert [row for (row,) in db.execute("SELECT row FROM texts ORDER BY row")] == [0, 1, 2, 3]
    assert sorted(path.name for path in desk.glob("x.db*")) == ["x.db"]


def test_rows_that_the_input_lacks_are_deleted_on_demand_and_never_all(desk):
    make_old()
    assert "0 deleted" in embed(write("new.jsonl", NEW[:2]), "--append").stderr
    assert "2 same, 2 deleted" in embed("new.jsonl", "--append", "--delete-missing").stderr
    assert rows_of(names="id") == [("b",), ("d",)]
    Path("none.jsonl").write_text("")
    said = "the input has no rows, so --delete-missing would empty x.db: leave it out"
    assert_one_sentence(embed("none.jsonl", "--append", "--delete-missing", "-q"), 2, said)
    assert len(rows_of()) == 2


def test_without_ids_the_text_is_the_key(desk):
    Path("a.txt").write_text("the dog\na cat\nthe dog\n")
    Path("b.txt").write_text("a bird\nthe dog\na bird\n\n")
    assert "2 added, 0 replaced, 1 same" in embed("a.txt", "--append", ids=()).stderr
    assert "2 added, 0 replaced, 2 same" in embed("b.txt", "--append", ids=()).stderr
    assert rows_of(names="text") == [("",), ("a bird",), ("a cat",), ("the dog",)]
    assert "4 same, 1 deleted" in embed("b.txt", "--append", "--delete-missing", ids=()).stderr
    assert "the dog" in run("search", "x.db", "the dog", "-k", 1).stdout


def test_an_id_that_comes_twice_is_an_error_with_both_places(desk):
    write("in.jsonl", [*OLD, ("e", "a fish", 5), ("a", "the dog", 1)])
    said = "in.jsonl, line 5: the id 'a' is that of in.jsonl, line 1 too; keep one of them"
    assert_one_sentence(embed("in.jsonl", "--append", "-q"), 1, said)
    assert embed(write("twice.jsonl", [OLD[0], OLD[0]]), out="y.db").exit_code == 0
    assert_one_sentence(
        embed(write("one.jsonl", OLD[:1]), "--append", "-q", out="y.db"),
        1,
        "y.db: rows 0 and 1 have the id 'a'; delete one of them",
    )


REFUSED = [  # options, exit code, sentence
    (
        ("--dtype", "float64"),
        2,
        "x.db was made with --dtype 'float32', and this run is with --dtype 'float64'; give the sa",
    ),
    (("--precision", "int8"), 2, "with --precision 'float32', and this run is with --precision 'int8'"),
    (("--normalize",), 2, "without --normalize, and this run is with --normalize;"),
    (("--dim", 8), 2, "without --dim, and this run is with --dim 8;"),
    (("--text-field", "text"), 2, "x.db was made without --text-field, and this run is with --text-field 'text'; give"),
    (("--prompt", "so "), 2, "without --prompt, and this run is with --prompt 'so '"),
    (("-m", "default"), 2, "x.db was made with -m 'static', and this run is with -m 'default'; give the same"),
    (("--keep", "more"), 2, "x.db has no column more: leave it out, or choose another output"),
    (("--resume",), 2, "--append needs no --resume"),
    (("--shard", "1/2"), 2, "--append and --shard: a part is a file of its own"),
    (("--cache", "c.cache", "--only-new"), 2, "--append adds only rows that the file lacks"),
    (("--delete-missing", "--errors", "skip"), 2, "--delete-missing would delete rows that --errors skip leaves out"),
    (("--ray", "local"), 2, "--append does not work with --ray"),
]


@pytest.mark.parametrize(("options", "code", "said"), REFUSED)
def test_a_run_that_does_not_fit_the_file_is_refused(desk, options, code, said):
    make_old()
    before = rows_of()
    write("more.jsonl", [("a", "the dog", 1, 2), ("z", "a fox", 1, 2)], "id", "text", "n", "more")
    words = ["embed", "more.jsonl", "-o", "x.db", "--id-field", "id", "--keep", "n", "--append", "-q", *options]
    assert_one_sentence(run(*words, *([] if "-m" in options else ["-m", "static"])), code, said)
    assert rows_of() == before


def test_columns_and_values_that_do_not_fit_are_refused(desk):
    make_old()
    said = "x.db has the column n: fill it, by --keep or fields= of Index.add"
    assert_one_sentence(embed("old.jsonl", "--append", "-q", ids=("--id-field", "id")), 2, said)
    assert_one_sentence(
        embed("old.jsonl", "--append", "-q", ids=("--keep", "n")), 2, "with --id-field 'id', and this run is without"
    )
    for row, said in (
        ((7, "a fox", 1), "line 1: the id 7 is int, and others are not, so '7' and 7 would be two rows"),
        (("z", "a fox", "007"), "line 1: n is '007', and the column of x.db is INTEGER, so"),
        ((None, "a fox", 1), "line 1: its id is empty, by which --append would find it again"),
    ):
        assert_one_sentence(embed(write("odd.jsonl", [row]), "--append", "-q"), 1, said)
    assert_one_sentence(embed("old.jsonl", "--delete-missing"), 2, "--delete-missing deletes rows of the file that")
    assert_one_sentence(
        embed("old.jsonl", "--append", out="x.npy", ids=()), 2, "--append extends a .db: give -o FILE.db"
    )
    Path("y.db").write_text("theirs, and longer than a header of SQLite" * 9)
    assert_one_sentence(embed("old.jsonl", "--append", "-q", out="y.db"), 2, "y.db is no SQLite file; choose another")


def test_values_of_a_file_that_append_made_keep_their_types(desk):
    for row in ((7, "a fox", 1), (8, "a fox", "01"), (7.5, "a fox", None)):
        assert embed(write("odd.jsonl", [row]), "--append").exit_code == 0
    with closing(sqlite3.connect("x.db")) as db:
        assert db.execute("SELECT id, n FROM texts ORDER BY row").fetchall() == [(7, 1), (8, "01"), (7.5, None)]
    said = "line 1: the id '8' is str, and others are not, so '7' and 7 would be two rows; give all ids one type"
    assert_one_sentence(embed(write("odd.jsonl", [("8", "a fox", 1)]), "--append", "-q"), 1, said)


def test_a_database_of_others_gets_the_tables_and_keeps_its_own(desk):
    with closing(sqlite3.connect("llm.db")) as db, db:
        db.execute("CREATE TABLE responses AS SELECT 'hi' AS text")
    assert "3 added" in embed(write("old.jsonl", OLD), "--append", out="llm.db").stderr
    assert "3 same" in embed("old.jsonl", "--append", out="llm.db").stderr
    with closing(sqlite3.connect("llm.db")) as db:
        assert db.execute("SELECT * FROM responses").fetchall() == [("hi",)]
    assert "the dog" in run("search", "llm.db", "the dog", "-k", 1).stdout
    with closing(sqlite3.connect("own.db")) as db, db:
        db.execute("CREATE TABLE texts AS SELECT 'hi' AS text")
    assert_one_sentence(
        embed("old.jsonl", "--append", "-q", out="own.db"), 2, "own.db has a table texts or run of another program, and"
    )


def test_a_run_that_fails_leaves_whole_windows_and_its_repetition_the_rest(desk):
    Path("in.jsonl").write_text("".join(json.dumps({"id": i, "text": f"dog {i}"}) + "\n" for i in range(5)) + "[\n")
    done = embed("in.jsonl", "--append", "-q", ids=("--id-field", "id"))
    assert done.exit_code == 1
    assert "fastflow: 4 rows are in x.db; the same command adds the rest\n" in done.stderr
    assert rows_of(names="id") == [(0,), (1,), (2,), (3,)]
    Path("in.jsonl").write_text("".join(json.dumps({"id": i, "text": f"dog {i}"}) + "\n" for i in range(7)))
    assert "3 added, 0 replaced, 4 same" in embed("in.jsonl", "--append", ids=("--id-field", "id")).stderr
    Path("bad.jsonl").write_text("[\n")
    assert embed("bad.jsonl", "--append", "-q", out="new.db", ids=()).exit_code == 1
    assert list(desk.glob("new.db*")) == []


def test_a_second_writer_waits_and_a_reader_of_half_a_transaction_is_told(desk):
    make_old(foreign=False)
    Path("x.db.partial").touch()
    from fastflow.files.write.partial import open_partial

    with open_partial(Path("x.db.partial")):
        assert_one_sentence(embed("old.jsonl", "--append", "-q"), 1, "x.db.partial is being written by another run")
    with closing(sqlite3.connect("x.db", isolation_level=None)) as db:  # its copy is what a killed run leaves
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO texts VALUES (?, 'x', 'y', 1, ?)", [(9 + i, bytes(9000)) for i in range(99)])
        Path("y.db").write_bytes(Path("x.db").read_bytes())
        Path("y.db-journal").write_bytes(Path("x.db-journal").read_bytes())
    said = "y.db was left by a killed run, with y.db-journal: repeat its --append, which mends it"
    assert_one_sentence(run("search", "y.db", "dog", "-q"), 1, said)
    assert "3 same" in embed("old.jsonl", "--append", out="y.db").stderr
    assert rows_of("y.db") == rows_of()


@pytest.mark.parametrize("hold", [None, "vectors", "int8"])
def test_an_index_adds_and_deletes_rows_and_finds_them(desk, hold):
    make_old()
    with Index("x.db", Runtime("static"), hold=hold) as index:
        assert index.add(["a ship at sea"], ids=["s"], fields={"n": [5]})["added"] == 1
        (hit,) = index.search("a ship at sea", 1)
        assert (hit.id, hit.fields, len(index)) == ("s", {"n": 5}, 4)
        assert np.allclose(hit.score, 1)
        assert index.add(["a boat", "the dog"], ids=["s", "a"], fields={"n": [5, 1]}) == {
            "added": 0, "replaced": 1, "same": 1, "deleted": 0,
        }  # fmt: skip
        assert index.delete(["s", "unknown"]) == 1
        assert {hit.id for hit in index.search("a boat", 9)} == {"a", "b", "c"}
        for call, said in (
            (lambda: index.add(["a"]), "x.db has ids: give ids="),
            (lambda: index.add(["a"], ids=[]), "ids has 0 values for 1 texts"),
            (
                lambda: index.add(["a", "b"], ids=["z", "z"], fields={"n": [1, 2]}),
                "text 1: the id 'z' is that of Index.add, t",
            ),
            (lambda: index.add(["a"], ids=["z"]), "x.db has the column n: fill it, by"),
        ):
            with pytest.raises(FastflowError, match=said):
                call()
    np.save("x.npy", np.ones((2, 3), np.float32))
    with Index("x.npy") as index, pytest.raises(UsageError, match="this is a file of vectors only"):
        index.add(["a"])


def test_only_new_rows_with_ids_are_known_by_id_and_text(desk):
    words = ("--cache", "c.cache", "--only-new")
    old, new = [("a", "dog"), ("b", "cat")], [("a", "dog"), ("b", "bird"), ("c", "dog"), ("d", "cat")]
    for number, (rows, count) in enumerate(((old, 2), (new, 3), (new, 0))):
        done = embed(write("in.jsonl", rows, "id", "text"), *words, out=f"{number}.jsonl", ids=("--id-field", "id"))
        assert f"fastflow: {count} texts (" in done.stderr.replace("1 text ", "1 texts ")
        assert len(Path(f"{number}.jsonl").read_text().splitlines()) == count
    assert embed("in.jsonl", *words, out="t.jsonl", ids=()).exit_code == 0
    assert Path("t.jsonl").read_text() == "", "without ids the texts are known"
