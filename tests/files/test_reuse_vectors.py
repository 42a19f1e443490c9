"""--dedupe and --cache: outputs keep their bytes, and rows of a cache that runs share come back whole or not at all."""

from __future__ import annotations

import gc
import json
import os
import signal
import sqlite3
import stat
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.files import Run, Settings, Summary, vector_cache
from fastflow.files import embed as module
from fastflow.files.embed import embed_file
from fastflow.files.vector_cache import KEY, VectorCache, report
from fastflow.session import Session

from support.commands import assert_one_sentence, run
from support.refusals import refuses
from support.runs import stopped_at

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


HOWS = ["dedupe", "cache"]
WINDOW = 16


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(module, "WINDOW", WINDOW)


@pytest.fixture(scope="module")
def runtime(model):
    pytest.importorskip("fastflow.kernels._cpu", reason="only compiled kernels promise bits")
    return Runtime(model)


@pytest.fixture
def lines(sentences):
    long = "dog " * 200
    return [*sentences[:20], *sentences[:20], "", *sentences[40:60], long, *sentences[5:9] * 3, "", long]


@pytest.fixture
def source(tmp_path, lines) -> str:
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines))
    return str(tmp_path / "in.txt")


@pytest.fixture
def out(tmp_path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def computed_by(monkeypatch) -> list[str]:
    found: list[str] = []
    pool = Session.pool
    monkeypatch.setattr(Session, "pool", lambda self, texts, *a, **o: pool(self, found.extend(texts) or texts, *a, **o))
    return found


def embed(runtime, source, target: Path, how: str, **settings) -> Summary:
    cache = target.parent.parent / "c.db" if how == "cache" else None
    given = Settings(dedupe=how == "dedupe", **settings)
    return embed_file(runtime, source, target, given, Run(quiet=True, cache=cache))


@pytest.mark.parametrize("how", HOWS)
def test_a_text_is_computed_once(runtime, source, lines, out, how, monkeypatch):
    plain = embed(runtime, source, out / "a.npy", "plain")
    computed = computed_by(monkeypatch)
    done = embed(runtime, source, out / "b.npy", how)
    assert (out / "b.npy").read_bytes() == (out / "a.npy").read_bytes()
    assert sorted(computed) == sorted(set(lines))
    assert (done.reused, done.cut, plain.cut) == (len(lines) - len(set(lines)), 2, 2)


@pytest.mark.slow
def test_a_cache_serves_every_run_of_its_model(runtime, source, lines, sentences, out, monkeypatch):
    embed(runtime, source, out / "a.npy", "cache")
    computed = computed_by(monkeypatch)
    for options in ({}, {"precision": "int8", "dim": 7, "normalize": True}, {"dim": 3}):
        done = embed(runtime, source, out / "b.jsonl", "cache", **options)
        assert (done.reused, done.cut) == (len(lines), 2)
    assert computed == []
    with pytest.raises(FastflowError, match="longer than the model's 64 tokens"):
        embed(runtime, source, out / "b.npy", "cache", truncate="error")
    (out / "more.txt").write_text("".join(line + "\n" for line in [*lines, *sentences[100:103]]))
    embed(runtime, str(out / "more.txt"), out / "b.npy", "cache")
    assert computed == sentences[100:103]


@pytest.mark.slow
def test_another_model_or_setting_finds_nothing(runtime, model, bert, source, lines, out, monkeypatch):
    embed(runtime, source, out / "a.npy", "cache")
    others = [(Runtime(bert), {}), (runtime, {"prompt": "so "}), (Runtime(model, backend="reference"), {})]
    if "bfloat16" in Runtime(model, dtype="bfloat16").info()["dtype"]:
        others.append((Runtime(model, dtype="bfloat16"), {}))
    for other, options in others:
        computed = computed_by(monkeypatch)
        done = embed(other, source, out / "b.npy", "cache", **options)
        assert set(computed) == set(lines)
        assert done.reused == len(lines) - len(set(lines))
        embed(other, source, out / "plain.npy", "plain", **options)
        assert np.allclose(np.load(out / "b.npy"), np.load(out / "plain.npy"), atol=1e-5)
        monkeypatch.undo()
        monkeypatch.setattr(module, "WINDOW", WINDOW)
    assert f"holds {(1 + len(others)) * len(set(lines)):,} vectors" in done.cache


@pytest.mark.slow
def test_a_cut_that_a_model_orders_has_its_own_bits(sentences, source, out):
    """The model in the package folds the cut into its calibration: only pooled vectors give the same bits."""
    runtime = Runtime()
    for how in ("plain", *HOWS):
        embed(runtime, source, out / f"{how}.npy", how, dim=9, normalize=True)
    assert (out / "dedupe.npy").read_bytes() == (out / "cache.npy").read_bytes() == (out / "plain.npy").read_bytes()


def test_the_summary_counts_and_the_size_is_reported(model, source, lines, out):
    arguments = ("embed", source, "-m", model, "-o", out / "a.npy")
    known = len(lines) - len(set(lines))
    first = run(*arguments, "--cache", out / "c.db").stderr
    assert f"c.db holds {len(set(lines))} vectors, " in first
    assert f"{len(lines)} texts (2 empty, 2 cut at 64 tokens; {known} not computed again), " in first
    assert f"; {len(lines)} not computed again), " in run(*arguments, "--cache", out / "c.db").stderr
    assert f"; {known} not computed again), " in (done := run(*arguments, "--dedupe")).stderr
    assert "holds" not in done.stderr
    shown = run("cache", out / "c.db").stdout.splitlines()
    assert shown[0].startswith(f"{out / 'c.db'}: {len(set(lines))} vectors, ")
    assert f"{len(set(lines)):>12} of model {Runtime(model).fingerprint[:12]}, cpu " in shown[1]
    result = run("cache", out / "c.db", "--clear")
    assert_one_sentence(result, 2, "c.db is one file: remove it as such; --clear is for the cache of fastflow-train")
    assert (out / "c.db").exists()


class Daily:
    """Runs of ``fastflow embed`` with one cache, which give the texts that they wrote."""

    def __init__(self, model, folder):
        self.model, self.folder = model, folder

    def run(self, lines, out, *options):
        source, content = self.folder / f"{out}.txt", "".join(f"{line}\n" for line in lines)
        if not source.exists():
            source.write_text(content)
        words = [source, "-m", self.model, "-q", "--cache", self.folder / "c.cache"]
        done = run("embed", *words, "-o", self.folder / f"{out}.jsonl", *options)
        return done, [json.loads(line)["text"] for line in self.written(out)]

    def written(self, out):
        path = self.folder / f"{out}.jsonl"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def daily(model, tmp_path):
    return Daily(model, tmp_path)


def test_only_rows_that_no_finished_run_had_are_written(daily, sentences):
    old, new = sentences[:40], [*sentences[40:45], sentences[40]]
    assert daily.run(old, "a")[1] == old
    mixed = [*old[:20], *new, *old[20:]]
    assert daily.run(mixed, "b", "--only-new")[1] == new
    assert [json.loads(line)["index"] for line in daily.written("b")] == list(range(20, 26))
    assert daily.run(mixed, "c", "--only-new")[1] == []
    assert daily.run(mixed, "c", "--only-new", "--resume")[0].exit_code == 0
    assert daily.run(mixed, "d", "--only-new", "--prompt", "so ")[1] == mixed, "with another prompt none is known"


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_rows_that_an_interrupted_run_has_computed_are_not_lost(daily, sentences, between, options):
    daily.run(sentences[:20], "a")
    with stopped_at(2):
        assert daily.run(sentences[:100], "b", "--only-new")[1] == []
    if between:
        daily.run(sentences[:5], "c")
    assert daily.run(sentences[:100], "b", "--only-new", *options)[1] == sentences[20:100]


def test_the_texts_of_a_cache_of_an_earlier_version_are_known(daily, sentences):
    daily.run(sentences[:20], "a")
    with closing(sqlite3.connect(daily.folder / "c.cache")) as db, db:
        db.execute("DROP TABLE known")
    assert daily.run(sentences[:25], "b", "--only-new")[1] == sentences[20:25]
