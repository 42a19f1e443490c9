"""Keys and rows of reused vectors, and the file that holds them: rows come back whole or not at all."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import stat
import sys
import threading
from contextlib import closing, contextmanager

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.files import vector_cache
from fastflow.files.vector_cache import KEY, VectorCache, decides, keys_of, pack_rows, report, unpack_rows

from support.refusals import refuses


@pytest.fixture(scope="module")
def runtime(model):
    return Runtime(model)


def test_a_key_is_of_the_whole_text(runtime):
    decided = decides(runtime, None)
    texts = ["", " ", "a", "A", "a ", "a" * 100_000, "a" * 99_999 + "b", "b" + "a" * 99_999, "é", "e\u0301", "\ud800"]
    keys = keys_of(texts, decided)
    assert len(set(keys)) == len(texts)
    assert {len(key) for key in keys} == {KEY}
    assert KEY >= 16
    assert keys_of(texts[::-1], decided) == keys[::-1]


def test_everything_that_decides_a_pooled_vector_is_in_the_key(runtime, model, bert, monkeypatch):
    one = decides(runtime, None)
    assert {"fingerprint", "backend", "dtype", "arithmetic", "prompt", "max_length", "fastflow"} == set(one)
    for name, value in one.items():
        assert keys_of(["a"], one) != keys_of(["a"], one | {name: f"{value}."}), name
    others = [decides(Runtime(bert), None), decides(runtime, "so "), decides(Runtime(model, backend="reference"), None)]
    others.append(decides(Runtime(model, dtype="float64", backend="reference"), None))
    monkeypatch.setattr("fastflow.files.vector_cache.__version__", "9")
    others.append(decides(runtime, None))
    assert len({keys_of(["a"], each)[0] for each in [one, *others]}) == 6
    assert keys_of(["so a"], others[-1]) != keys_of(["a"], others[1])


def test_the_instruction_set_is_in_the_key(model, forced_isa, monkeypatch):
    forced = decides(Runtime(model, backend="cpu"), None)
    assert forced["arithmetic"]
    other = "portable" if forced_isa != "portable" else "avx2"
    from conftest import require_isa

    require_isa(other)
    monkeypatch.setenv("FASTFLOW_ISA", other)
    assert keys_of(["a"], forced) != keys_of(["a"], decides(Runtime(model, backend="cpu"), None))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_hold_the_bits_of_a_vector_and_whether_the_text_was_cut(dtype):
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(dtype)
    vectors[0, 0], vectors[1, 0] = -0.0, 5e-324
    rows = pack_rows(vectors, [1, 3])
    assert {len(row) for row in rows} == {1 + vectors[0].nbytes}
    found, cut = unpack_rows(rows[1:], 3, vectors.dtype)
    assert found.tobytes() == vectors[1:].tobytes()
    assert cut == 2
    assert unpack_rows([], 3, vectors.dtype)[0].shape == (0, 3)


PRIVATE = "(temporary file of --dedupe)"


def test_rows_of_a_run_come_back_and_nothing_lies_in_the_folder(tmp_path):
    store = VectorCache(tmp_path / PRIVATE, {}, 5, private=True)
    rows = {os.urandom(KEY): os.urandom(5) for _ in range(1000)}
    listed = list(rows)
    assert store.find(listed) == {}
    store.add({key: rows[key] for key in listed[:600]})
    store.add({})
    store.add({key: rows[key] for key in listed[600:900]})
    assert store.find(listed[::-1]) == {key: rows[key] for key in listed[:900]}
    assert list(tmp_path.iterdir()) == []  # nothing to be left by a process that is killed
    store.close()


def test_a_folder_that_cannot_hold_a_runs_rows_is_one_sentence(tmp_path):
    with pytest.raises(FastflowError, match=r"temporary file of --dedupe\) cannot be written: No such .*; make"):
        VectorCache(tmp_path / "absent" / PRIVATE, {}, 5, private=True)
    store = VectorCache(tmp_path / PRIVATE, {}, 5, private=True)
    store._db.execute("PRAGMA max_page_count = 1")  # as a disk without room
    with pytest.raises(FastflowError, match=r"temporary file of --dedupe\).*: the disk is full; free some space"):
        store.add({os.urandom(KEY): bytes(5) for _ in range(5000)})
    store.close()


ONE = {"fastflow": "1", "fingerprint": "f" * 64, "backend": "cpu", "dtype": "float32", "prompt": ""}
FIVE = {bytes([i]) * KEY: b"%09d" % (i + 10**8) for i in range(5)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "c.db"


@pytest.fixture
def full(path):
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
    rows, more = rows_of(700), rows_of(5)
    with opened(path) as one, opened(path) as other:
        assert one.find(list(rows)) == other.find(list(rows)) == {}
        one.add(rows)
        other.add(rows | more)
        assert one.find([*rows, *more]) == rows | more
    assert report(path)[0].startswith(f"{path}: 705 vectors, ")


def test_many_threads_share_a_file(path):
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


@pytest.mark.parametrize(
    ("place", "query", "said"),
    [
        ("c.db?mode=ro", "CREATE TABLE t (x)", "it may not be written; change its permissions"),
        ("c.db", "PRAGMA max_page_count = 1; CREATE TABLE t (x); CREATE TABLE u (x)", "the disk is full"),
        ("none/c.db", "SELECT 1", "it cannot be opened; look at the folder"),
    ],
)
def test_a_fault_of_sqlite_is_one_sentence(tmp_path, place, query, said):
    sqlite3.connect(tmp_path / "c.db").execute("VACUUM")
    with pytest.raises(FastflowError, match=said), vector_cache._plain(tmp_path / "c.db"):
        sqlite3.connect(f"file:{tmp_path}/{place}", uri=True).executescript(query)


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
from fastflow.files.vector_cache import VectorCache
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
