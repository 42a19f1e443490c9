"""The file of --cache: rows come back whole or not at all, and several processes may use it at once."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import stat
import sys
import threading
from contextlib import closing, contextmanager

import pytest

from fastflow.errors import FastflowError
from fastflow.files.reuse import vector_cache
from fastflow.files.reuse.store import KEY
from fastflow.files.reuse.vector_cache import VectorCache, report

from support.refusals import refuses

ONE = {"fastflow": "1", "fingerprint": "f" * 64, "backend": "cpu", "dtype": "float32", "prompt": ""}
FIVE = {bytes([i]) * KEY: b"%09d" % (i + 10**8) for i in range(5)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "c.db"


@pytest.fixture
def full(path):
    """A cache that holds FIVE."""
    with opened(path) as cache:
        cache.add(FIVE)
    return path


def opened(path, settings=None, size=9):
    return closing(VectorCache(path, ONE if settings is None else settings, size))


def rows_of(count: int, size: int = 9) -> dict[bytes, bytes]:
    return {os.urandom(KEY): os.urandom(size) for _ in range(count)}


def find(path, rows=FIVE, size=9):
    with opened(path, size=size) as cache:
        return cache.find(list(rows))


@contextmanager
def held(path):
    """SQLite's own lock on the file, as another process takes it."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield other


def test_rows_come_back_in_a_later_run(path):
    rows = rows_of(1200)
    with opened(path) as cache:
        assert cache.find(list(rows)) == {}
        cache.add(rows)
        cache.add({})
        assert cache.find([*rows, bytes(KEY)]) == rows
        assert cache.describe().startswith(f"{path} holds 1,200 vectors, ")
    with opened(path, ONE | {"prompt": "so "}) as later:
        assert later.find(list(rows)[::-1]) == rows
        later.add(rows_of(3))
    assert report(path)[0].startswith(f"{path}: 1,203 vectors, ")
    assert report(path)[1:] == [
        "       1,200 of model ffffffffffff, cpu float32, fastflow 1",
        "           3 of model ffffffffffff, cpu float32, fastflow 1, prompt 'so '",
    ]
    assert os.listdir(path.parent) == [path.name]


def test_two_at_once_add_the_same_rows_once(path):
    """Each looked before the other had stored."""
    rows, more = rows_of(700), rows_of(5)
    with opened(path) as one, opened(path) as other:
        assert one.find(list(rows)) == other.find(list(rows)) == {}
        one.add(rows)
        other.add(rows | more)
        assert one.find([*rows, *more]) == rows | more
    assert report(path)[0].startswith(f"{path}: 705 vectors, ")


def test_many_threads_share_a_file(path):
    """Connections of their own, as processes have them; the first to come makes the tables."""
    rows, wrong = [rows_of(50) for _ in range(6)], []

    def work(number):
        try:
            with opened(path) as cache:
                for at in range(0, 50, 10):
                    part = dict(list(rows[number].items())[at : at + 10])
                    cache.add(part)
                    if cache.find(list(part)) != part:
                        wrong.append(number)
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
    with opened(path) as cache, held(path) as other:
        timer = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        timer.start()
        cache.add(FIVE)
        timer.join()
    assert find(path) == FIVE


def test_a_file_that_stays_locked_is_one_sentence(path, monkeypatch):
    monkeypatch.setattr(vector_cache, "WAIT", 0.05)
    message = "c.db, the cache: another process has held it for 0 seconds; wait"
    with opened(path) as cache:
        with held(path):
            refuses(cache.find, [bytes(KEY)], message)
            refuses(cache.add, rows_of(1), message)
            refuses(find, path, message)
        cache.add(FIVE)


def test_an_interrupted_add_leaves_nothing(path, monkeypatch):
    def interrupted(key, row):
        raise KeyboardInterrupt

    with opened(path) as cache:
        with monkeypatch.context() as patched:
            patched.setattr(vector_cache, "check_of", interrupted)
            with pytest.raises(KeyboardInterrupt):
                cache.add(FIVE)
        assert cache.find(list(FIVE)) == {}
        cache.add(FIVE)
        assert cache.find(list(FIVE)) == FIVE


KILLED = """
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


@pytest.mark.slow
def test_a_killed_process_leaves_a_whole_cache(full, run_python):
    """It dies in a transaction that no longer fits into memory, so that parts of it are in the file."""
    done = run_python(KILLED, full)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (full.parent / "c.db-journal").exists()
    assert find(full) == FIVE
    assert report(full)[0].startswith(f"{full}: 5 vectors, ")
    assert os.listdir(full.parent) == [full.name]


SPOILT = "c.db, a cache of fastflow embed, is damaged; remove it, or name another file"
FOREIGN = "is an SQLite file, but no cache of fastflow embed; name another file"
ROWS = [  # of statements that spoil a row
    "UPDATE vectors SET data = CAST(substr(data, 1, 10) || x'00' || substr(data, 12) AS BLOB) WHERE number = 2",
    "UPDATE vectors SET data = CAST(x'fffe' AS TEXT) WHERE number = 2",
    "UPDATE vectors SET data = 'text'",
    "UPDATE vectors SET data = substr(data, 1, 16) WHERE number = 2",
    "UPDATE vectors SET data = data || x'00' WHERE number = 2",
    "UPDATE vectors SET data = (SELECT data FROM vectors WHERE number = 3) WHERE number = 2",
    "UPDATE keys SET number = 3 WHERE number = 2",
    "UPDATE keys SET number = 99 WHERE number = 2",
    "DELETE FROM vectors WHERE number = 2",
    "DROP TABLE vectors",
]
RUNS = ["{", "[]", "1", '{"fingerprint": 1}', '{"fingerprint": null, "backend": 0}']
FAULTS = [  # what is done to a sound cache, sentence, and who says it
    *((statement, SPOILT, (find,)) for statement in ROWS),
    *((f"UPDATE runs SET settings = '{settings}'", SPOILT, (report,)) for settings in RUNS),
    ("UPDATE runs SET settings = CAST(x'd4ff' AS TEXT)", SPOILT, (report,)),
    ("PRAGMA user_version = 7", "is of version 7 of the cache, and this fastflow reads 1", (find, report)),
    ((b"vectors (number", b"vec\xd4ors (numb(r"), SPOILT, (find, report)),
    ((b"TABLE keys", b"TABLX \xd4\xffys"), SPOILT, (find, report)),
    (b"texts that somebody wrote\n" * 50, "is no cache of fastflow embed, nor any SQLite file", (find, report)),
    (b"SQLite format 3\0" + b"\xff" * 5000, FOREIGN, (find, report)),
    ("PRAGMA application_id = 0", FOREIGN, (find, report)),
]


@pytest.mark.parametrize(("fault", "sentence", "readers"), FAULTS)
def test_what_was_not_stored_is_one_sentence_and_the_file_stays(full, monkeypatch, fault, sentence, readers):
    late = []
    monkeypatch.setattr(sys, "unraisablehook", late.append)  # of a cursor that outlives its file
    if isinstance(fault, str):
        with closing(sqlite3.connect(full)) as db, db:
            db.execute(fault)
    else:
        full.write_bytes(fault if isinstance(fault, bytes) else full.read_bytes().replace(*fault))
    before = full.read_bytes()
    for reader in readers:
        refuses(reader, full, sentence)
    gc.collect()
    assert late == []
    assert full.read_bytes() == before


def test_pages_that_were_lost_are_one_sentence(path):
    rows = rows_of(300, 900)
    with opened(path, size=900) as cache:
        cache.add(rows)
    with path.open("r+b") as handle:
        handle.seek(3 * 4096)
        handle.write(os.urandom(60 * 4096))
    refuses(find, path, SPOILT, rows=rows, size=900)


def test_a_folder_that_is_not_there_and_an_empty_file(tmp_path, path):
    refuses(find, tmp_path / "absent" / "c.db", "the cache: it cannot be opened; look at the folder")
    refuses(report, path, "it cannot be opened")
    path.touch()
    assert report(path) == [f"{path}: empty"]
    assert find(path) == {}
    assert report(path)[0].startswith(f"{path}: 0 vectors, ")


@pytest.mark.parametrize(("made", "mode"), [(None, 0o600), (0o640, 0o640)])
def test_a_cache_is_its_owners_alone(path, made, mode):
    """Texts can be guessed from their vectors; a file that is there keeps its mode."""
    before = os.umask(0o022)
    try:
        if made is not None:
            path.touch(made)
            path.chmod(made)
        find(path)
        assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(before)
