"""No command replaces a file that fastflow did not make, or that holds something of others, without --overwrite."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fastflow.files.write.outputs import WRITERS

from support.commands import assert_one_sentence, run
from support.matrices import make_vectors


@pytest.fixture
def desk(tmp_path, monkeypatch, vector_model):
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("the dog\na cat\n")
    Path("none.txt").write_text("")
    np.save("in.npy", make_vectors(5))
    for part in ("1/2", "2/2"):
        assert run("embed", "in.txt", "--shard", part, "-o", "parts", "-q").exit_code == 0
    assert run("merge", "parts", "-o", "made.npy", "-q").exit_code == 0
    return tmp_path


def add_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE customers AS SELECT 7 AS id")


def run_sql(sql: str):
    def change(path: Path) -> None:
        path.unlink(missing_ok=True)
        assert run("embed", "in.txt", "-o", path, "-q").exit_code == 0
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(sql)

    return change


def link(path: Path) -> None:
    Path("theirs").write_text("theirs")
    path.symlink_to("theirs")


FOREIGN = [  # suffix, what makes the file, and why it is refused
    *((suffix, lambda path: path.write_text("theirs"), "made") for suffix in WRITERS),
    *((suffix, link, "is a link") for suffix in WRITERS),
    (".db", add_table, "x.db exists, and it is no .db that fastflow embed made: choose another output"),
    (".db", run_sql("CREATE TABLE customers (id)"), "it has the table 'customers', which fastflow did not make"),
    (".db", run_sql("CREATE VIEW short AS SELECT text FROM texts"), "it has the view 'short', which"),
    (".db", run_sql("DROP TABLE run"), "it is no .db that fastflow embed made"),
    (".db", lambda p: (run_sql("SELECT 1")(p), Path("x.db-wal").touch()), "x.db-wal shows that another program writes"),
]
WAYS = {"embed": ("embed", "in.txt"), "merge": ("merge", "m")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("suffix", "make", "said"), FOREIGN)
def test_an_output_of_others_is_kept_unless_overwrite_is_given(desk, suffix, make, said, way):
    out, words = desk / f"x{suffix}", WAYS[way]
    if words[0] == "merge":
        for part in ("1/2", "2/2"):
            assert run("embed", "in.txt", "--shard", part, "-o", f"m/p{part[0]}{suffix}", "-q").exit_code == 0
    make(out)
    before = (out.is_symlink(), out.read_bytes())
    for again in ([], ["-q"]):
        assert_one_sentence(run(*words, "-o", out, *again), 2, said)
        assert (out.is_symlink(), out.read_bytes()) == before
    assert run(*words, "-o", out, "--overwrite", "-q").exit_code == 0
    assert not out.is_symlink()
    assert run(*words, "-o", out, "-q").exit_code == 0, "now a record says that fastflow made it"
    assert not Path("theirs").exists() or Path("theirs").read_text() == "theirs"


def test_a_part_and_a_matrix_are_replaced_by_the_same_rule(desk, vector_model):
    part = desk / "parts" / "part-00001-of-00002.npy"
    assert run("embed", "in.txt", "--shard", "1/2", "-o", "parts", "-q").exit_code == 0
    part.write_bytes(part.read_bytes() + b"x")
    assert_one_sentence(run("embed", "in.txt", "--shard", "1/2", "-o", "parts"), 2, f"{part.name} exists, and no ")
    words = ("transform", "in.npy", "-m", vector_model, "-q", "-o")
    Path("x.npy").write_text("theirs")
    assert_one_sentence(run(*words, "x.npy"), 2, "no x.npy.run.json says that one run made it")
    assert run(*words, "x.npy", "--overwrite").exit_code == 0
    assert run(*words, "x.npy").exit_code == 0
    os.utime("x.npy", (1, 1))
    assert_one_sentence(run(*words, "x.npy"), 2, "x.npy exists, and no x.npy.run.json says that one run made it as it")


def test_a_file_that_append_extended_or_that_was_changed_is_not_replaced(desk):
    assert run("embed", "in.txt", "-o", "x.db", "-q").exit_code == 0
    assert run("embed", "in.txt", "-o", "x.db", "-q").exit_code == 0
    for change in (lambda: run("embed", "in.txt", "-o", "x.db", "-q", "--append"), lambda: os.utime("x.db", (1, 1))):
        assert run("embed", "in.txt", "-o", "x.db", "-q", "--overwrite").exit_code == 0
        change()
        said = "x.db exists, and no x.db.run.json says that one run made it as it is: choose another output with -o, ad"
        assert_one_sentence(run("embed", "in.txt", "-o", "x.db"), 2, said)


def test_the_file_of_json_is_no_other_file_of_the_command(desk):
    assert run("embed", "in.txt", "-o", "x.db", "-q").exit_code == 0
    said = "--json names another file of this command; name a file of its own"
    for words in (("embed", "in.txt", "-o", "x.db"), ("search", "x.db", "dog"), ("embed", "x.db", "-o", "new.db")):
        assert_one_sentence(run(*words, "--json", "./x.db", "--overwrite"), 2, said)
    assert_one_sentence(run("embed", "in.txt", "-o", "new.db", "--json", "new.db"), 2, said)
    assert Path("x.db").read_bytes().startswith(b"SQLite")


JSON = ("similarity a b", "info static", "status parts", "embed in.txt -o x.npy", "search x.db dog", "cache cache")


@pytest.mark.parametrize("words", JSON)
def test_a_file_of_json_is_replaced_only_by_overwrite(desk, words):
    Path("cache").mkdir()
    assert run("embed", "in.txt", "-o", "x.db", "-q").exit_code == 0
    Path("kept.json").write_text("theirs")
    assert_one_sentence(run(*words.split(), "--json", "kept.json"), 2, "--json kept.json exists; name another file, or")
    assert Path("kept.json").read_text() == "theirs"
    assert not Path("x.npy").exists(), "before the work"
    assert run(*words.split(), "--json", "kept.json", "--overwrite").exit_code == 0
    assert Path("kept.json").read_text().startswith("{")
    os.mkfifo("pipe")
    for more in ([], ["--overwrite"]):
        assert_one_sentence(run(*words.split(), "--json", "pipe", *more), 2, "--json pipe is not a regular file; name")


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_result_without_rows_replaces_no_file(desk, suffix):
    out, words = desk / f"x{suffix}", ("embed", "in.txt", "--cache", "c.db", "-o", f"x{suffix}")
    assert run(*words).exit_code == 0
    before = out.read_bytes()
    for empty in (
        (*words, "--only-new"),
        ("embed", "none.txt", "-o", out),
        ("embed", "none.txt", "-o", out, "--overwrite"),
    ):
        done = run(*empty)
        assert done.exit_code == 0
        assert f"x{suffix} stays as it was, for a result without rows replaces no file" in done.stderr
        assert out.read_bytes() == before
        assert sorted(path.name for path in desk.glob("x*")) == [f"x{suffix}", f"x{suffix}.run.json"]
    assert run(*words[:-1], f"new{suffix}", "--only-new").exit_code == 0
    assert Path(f"new{suffix}").exists()


def test_a_page_is_replaced_only_by_overwrite(desk):
    Path("page.html").write_text("theirs")
    words = ("report", "static", "--sts", "in.txt", "-o", "page.html")
    assert_one_sentence(run(*words), 2, "--output page.html exists; name another file, or replace it with --overwrite")


def test_a_run_killed_between_record_and_renaming_leaves_a_file_that_is_ours(desk, monkeypatch):
    assert run("embed", "in.txt", "-o", "x.npy", "-q").exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(
            Path,
            "replace",
            lambda path, to: (_ for _ in ()).throw(KeyboardInterrupt) if to.name == "x.npy" else os.replace(path, to),
        )
        assert run("embed", "in.txt", "-o", "x.npy", "-q", "--normalize").exit_code == 130
    assert run("embed", "in.txt", "-o", "x.npy", "-q", "--normalize").exit_code == 0
