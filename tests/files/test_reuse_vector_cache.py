"""The file of --cache: rows come back whole or not at all, and several processes may use it at once."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import threading

import pytest

from fastflow.errors import FastflowError
from fastflow.files.reuse import vector_cache
from fastflow.files.reuse.store import KEY
from fastflow.files.reuse.vector_cache import VectorCache, report

ONE = {"fastflow": "1", "fingerprint": "f" * 64, "backend": "cpu", "dtype": "float32", "prompt": ""}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "c.db"


def rows_of(count: int, size: int = 9) -> dict[bytes, bytes]:
    return {os.urandom(KEY): os.urandom(size) for _ in range(count)}


def test_rows_come_back_in_a_later_run(path):
    rows, cache = rows_of(1200), VectorCache(path, ONE, 9)
    assert cache.find(list(rows)) == {}
    cache.add(rows)
    cache.add({})
    assert cache.find([*rows, bytes(KEY)]) == rows
    assert cache.describe().startswith(f"{path} holds 1,200 vectors, ")
    cache.close()
    later = VectorCache(path, ONE | {"prompt": "so "}, 9)
    assert later.find(list(rows)[::-1]) == rows
    later.add(rows_of(3))
    later.close()
    assert report(path)[0].startswith(f"{path}: 1,203 vectors, ")
    assert report(path)[1:] == [
        "       1,200 of model ffffffffffff, cpu float32, fastflow 1",
        "           3 of model ffffffffffff, cpu float32, fastflow 1, prompt 'so '",
    ]
    assert os.listdir(path.parent) == [path.name]


def test_two_at_once_add_the_same_rows_once(path):
    """Each looked before the other had stored."""
    rows = rows_of(700)
    one, other = VectorCache(path, ONE, 9), VectorCache(path, ONE, 9)
    assert one.find(list(rows)) == other.find(list(rows)) == {}
    one.add(rows)
    other.add(rows | (more := rows_of(5)))
    assert one.find([*rows, *more]) == rows | more
    assert report(path)[0].startswith(f"{path}: 705 vectors, ")
    one.close()
    other.close()


def test_many_threads_share_a_file(path):
    """Connections of their own, as processes have them; the first to come makes the tables."""
    rows, wrong = [rows_of(50) for _ in range(6)], []

    def work(number):
        try:
            cache = VectorCache(path, ONE, 9)
            for at in range(0, 50, 10):
                part = dict(list(rows[number].items())[at : at + 10])
                cache.add(part)
                if cache.find(list(part)) != part:
                    wrong.append(number)
            cache.close()
        except FastflowError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert report(path)[0].startswith(f"{path}: 300 vectors, ")


@pytest.mark.slow
def test_a_run_waits_for_another_that_stores(path):
    cache = VectorCache(path, ONE, 9)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    timer.start()
    rows = rows_of(3)
    cache.add(rows)
    timer.join()
    assert cache.find(list(rows)) == rows
    cache.close()
    other.close()


def test_a_file_that_stays_locked_is_one_sentence(path, monkeypatch):
    monkeypatch.setattr(vector_cache, "WAIT", 0.05)
    cache = VectorCache(path, ONE, 9)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for use in (lambda: cache.find([bytes(KEY)]), lambda: cache.add(rows_of(1)), lambda: VectorCache(path, ONE, 9)):
        with pytest.raises(FastflowError, match=r"c\.db, the cache: another process has held it for 0 seconds; wait"):
            use()
    other.execute("ROLLBACK")
    cache.add(rows_of(1))
    cache.close()
    other.close()


def test_an_interrupted_add_leaves_nothing(path, monkeypatch):
    cache, rows = VectorCache(path, ONE, 9), rows_of(5)

    def interrupted(key, row):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(vector_cache, "check_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.add(rows)
    assert cache.find(list(rows)) == {}
    cache.add(rows)
    assert cache.find(list(rows)) == rows
    cache.close()


@pytest.mark.slow
def test_a_killed_process_leaves_a_whole_cache(path, run_python):
    """It dies in a transaction that no longer fits into memory, so that parts of it are in the file."""
    cache, rows = VectorCache(path, ONE, 9), rows_of(5)
    cache.add(rows)
    cache.close()
    code = """
import os, signal, sys
from pathlib import Path
from fastflow.files.reuse.vector_cache import VectorCache
cache = VectorCache(Path(sys.argv[1]), {}, 5000)
cache._db.execute("PRAGMA cache_size = 10")
real = cache._db
class Dying:
    def __getattr__(self, name): return getattr(real, name)
    def __enter__(self): return real.__enter__()
    def __exit__(self, *a): os.kill(os.getpid(), signal.SIGKILL)
cache._db = Dying()
cache.add({os.urandom(16): os.urandom(5000) for _ in range(500)})
"""
    done = run_python(code, path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (path.parent / "c.db-journal").exists()
    cache = VectorCache(path, ONE, 9)
    assert cache.find(list(rows)) == rows
    assert report(path)[0].startswith(f"{path}: 5 vectors, ")
    cache.close()
    assert os.listdir(path.parent) == [path.name]


SPOILT = r"c\.db, a cache of fastflow embed, is damaged; remove it, or name another file$"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE vectors SET data = CAST(substr(data, 1, 10) || x'00' || substr(data, 12) AS BLOB) WHERE number = 2",
        "UPDATE vectors SET data = CAST(x'fffe' AS TEXT) WHERE number = 2",
        "DROP TABLE vectors",
        "UPDATE vectors SET data = substr(data, 1, 16) WHERE number = 2",
        "UPDATE vectors SET data = data || x'00' WHERE number = 2",
        "UPDATE vectors SET data = (SELECT data FROM vectors WHERE number = 3) WHERE number = 2",
        "UPDATE vectors SET data = 'text' WHERE number = 2",
        "UPDATE keys SET number = 3 WHERE number = 2",
        "UPDATE keys SET number = 99 WHERE number = 2",
        "DELETE FROM vectors WHERE number = 2",
    ],
)
def test_a_row_that_is_not_what_was_stored_is_no_vector(path, change):
    cache = VectorCache(path, ONE, 9)
    cache.add(rows := {bytes([i]) * KEY: b"%09d" % (i + 10**8) for i in range(5)})
    with sqlite3.connect(path) as db:
        db.execute(change)
    db.close()
    with pytest.raises(FastflowError, match=SPOILT):
        cache.find(list(rows))
    cache.close()


@pytest.mark.slow
def test_a_damaged_row_is_one_sentence_and_no_traceback_follows(path, run_python):
    """What Python says of a cursor that outlives its file goes past every ``except``."""
    cache = VectorCache(path, ONE, 9)
    cache.add({bytes([i]) * KEY: b"%09d" % (i + 10**8) for i in range(5)})
    cache.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE vectors SET data = 'text'")
    db.close()
    code = """
import sys
from pathlib import Path
from fastflow.errors import FastflowError
from fastflow.files.reuse.store import KEY
from fastflow.files.reuse.vector_cache import VectorCache
def find():
    cache = VectorCache(Path(sys.argv[1]), {"dtype": "float32"}, 9)
    try:
        cache.find([bytes([i]) * KEY for i in range(5)])
    finally:
        cache.close()
try:
    find()
except FastflowError as error:
    print(error)
"""
    done = run_python(code, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path}, a cache of fastflow embed, is damaged; remove it, or name another file\n"


@pytest.mark.parametrize(
    "settings", ["{", "[]", "1", '{"fingerprint": 1}', '{"fingerprint": null, "backend": 0}', b"\xd4\xff"]
)
def test_settings_that_no_run_has_written_are_one_sentence(path, settings):
    cache = VectorCache(path, ONE, 9)
    cache.add({b"a" * KEY: b"123456789"})
    cache.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE runs SET settings = ?", [settings])
    db.close()
    with pytest.raises(FastflowError, match=SPOILT):
        report(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"texts that somebody wrote\n" * 50, "is no cache of fastflow embed, nor any SQLite file; name another file"),
        (b"SQLite format 3\0" + b"\xff" * 5000, "is an SQLite file, but no cache of fastflow embed; name another file"),
    ],
)
def test_a_file_that_is_no_cache_is_left_to_its_owner(path, content, message):
    path.write_bytes(content)
    for use in (lambda: VectorCache(path, ONE, 9), lambda: report(path)):
        with pytest.raises(FastflowError, match=message) as raised:
            use()
        assert "remove" not in str(raised.value)
    assert path.read_bytes() == content


def test_pages_that_were_lost_are_one_sentence(path):
    cache = VectorCache(path, ONE, 900)
    cache.add(rows := rows_of(300, 900))
    cache.close()
    with path.open("r+b") as handle:
        handle.seek(3 * 4096)
        handle.write(os.urandom(60 * 4096))
    with pytest.raises(FastflowError, match=SPOILT):
        VectorCache(path, ONE, 900).find(list(rows))


@pytest.mark.parametrize(
    ("old", "new"), [(b"vectors (number", b"vec\xd4ors (numb(r"), (b"TABLE keys", b"TABLX \xd4\xffys")]
)
def test_a_schema_that_was_lost_is_one_sentence(path, old, new):
    cache = VectorCache(path, ONE, 9)
    cache.add(rows := {b"a" * KEY: b"123456789"})
    cache.close()
    whole = path.read_bytes()
    assert (whole.count(old), len(old)) == (1, len(new))
    path.write_bytes(whole.replace(old, new))
    for use in (lambda: VectorCache(path, ONE, 9).find(list(rows)), lambda: report(path)):
        with pytest.raises(FastflowError, match=SPOILT):
            use()


def test_another_program_s_database_is_left_alone(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (a)")
    db.close()
    before = path.read_bytes()
    for use in (lambda: VectorCache(path, ONE, 9), lambda: report(path)):
        with pytest.raises(FastflowError, match="is an SQLite file, but no cache of fastflow embed; name another"):
            use()
    assert path.read_bytes() == before


def test_another_version_of_the_cache_is_named(path):
    VectorCache(path, ONE, 9).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    with pytest.raises(FastflowError, match="is of version 7 of the cache, and this fastflow reads 1"):
        VectorCache(path, ONE, 9)


def test_a_folder_that_is_not_there_and_an_empty_file(tmp_path, path):
    with pytest.raises(FastflowError, match="the cache: it cannot be opened; look at the folder"):
        VectorCache(tmp_path / "absent" / "c.db", ONE, 9)
    with pytest.raises(FastflowError, match="it cannot be opened"):
        report(path)
    path.touch()
    assert report(path) == [f"{path}: empty"]
    VectorCache(path, ONE, 9).close()
    assert report(path)[0].startswith(f"{path}: 0 vectors, ")


def test_a_cache_is_its_owners_alone(tmp_path):
    """Texts can be guessed from their vectors; a file that is there keeps its mode."""
    before = os.umask(0o022)
    try:
        for name, made in (("new.db", None), ("old.db", 0o640)):
            if made is not None:
                (tmp_path / name).touch()
                (tmp_path / name).chmod(made)
            cache = VectorCache(tmp_path / name, {}, 9)
            cache.close()
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == (made or 0o600)
    finally:
        os.umask(before)
