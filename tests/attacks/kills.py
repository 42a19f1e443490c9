"""Every writer killed at any moment: its output is whole or absent, and the same command again gives the same bytes.

A run that writes (embed in each format, with a cache, from vectors; merge; train with checkpoints; distill; export) is
killed by SIGKILL before one of its operations on files, or at a random time. Then its target must be absent or hold
the bytes of a whole run. The command again, with --resume if it has that, must end with 0 and leave the files of a
whole run, bit for bit, and no other file. ``embed --append`` writes in place: each row must be the old or the new one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import Finding

from fastflow.files.write.outputs import WRITERS, writer_for

from support.builders import make_encoder, make_model, make_sentences
from support.matrices import make_vector_model, make_vectors

EVENTS = ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "shutil.rmtree")
LOG = Path(tempfile.gettempdir(), f"fastflow-kills-{os.getpid()}.log")  # what the last run wrote to its terminal
AGAIN = 3  # times that one run is killed at most before it is left alone
FIT = ("--method", "flow", "--levels", "1", "--depth", "1", "--epochs", "2", "--save-steps", "2", "--background", "0")


@dataclass(frozen=True)
class Subject:
    """A command; ``out``: its output; ``kept``: other files, which are not compared."""

    name: str
    command: tuple[str, ...]
    out: str
    resume: bool
    kept: tuple[str, ...] = ()


class Shop:
    """The inputs of all subjects, and their outputs when they are not disturbed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sentences = make_sentences(200)
        lines = [json.dumps({"text": sentences[i % 150], "n": i}) + "\n" for i in range(200)]
        (folder / "in.jsonl").write_text("".join(lines))
        (folder / "in.txt").write_text("".join(f"{text}\n" for text in sentences))
        np.save(folder / "in.npy", make_vectors(200))
        self.vectors = make_vector_model(folder / "vectors", "flow")
        self.encoder = make_encoder(folder / "bert")
        self.model = make_model(folder / "model", self.encoder, sentences)
        self.wholes: dict[str, dict[str, bytes]] = {}
        self.events: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def list_subjects(self) -> list[Subject]:
        at = str(self.folder)
        model = ("-m", str(self.model), "--threads", "1", "--quiet")
        found = []
        for suffix in WRITERS:
            keeps = ("--keep", "n") if writer_for(Path(f"x{suffix}")).keeps_fields else ()
            for how in ((), ("--cache", "c.db")):
                words = ("embed", f"{at}/in.jsonl", *model, *keeps, *how, "-o", f"x{suffix}")
                name = f"embed {' '.join((*how[:1], suffix))}"
                found.append(Subject(name, words, f"x{suffix}", True, ("c.db",) if how else ()))
        found.append(
            Subject("shard", ("embed", f"{at}/in.jsonl", *model, "--shard", "1/2", "-o", "x.npy"), "x.npy", True)
        )
        found.append(Subject("merge", ("merge", f"{at}/parts", "-o", "x.npy", "--quiet"), "x.npy", False))
        words = ("transform", f"{at}/in.npy", "-m", str(self.vectors), "--threads", "1", "--quiet", "-o", "x.npy")
        found.append(Subject("transform", words, "x.npy", True))
        train = ("train", f"{at}/in.txt", "--encoder", str(self.encoder), "-o", "m", "--cache-folder", "cache", *FIT)
        found.append(Subject("train", train, "m", True, ("cache",)))
        found.append(Subject("distill", ("distill", str(self.model), f"{at}/in.txt", "-o", "m"), "m", True))
        found.append(Subject("export", ("export", str(self.model), "--to", "st", "-o", "m"), "m", False))
        return found

    def prepare(self, subjects: list[Subject]) -> None:
        """Run each subject twice: a subject whose files differ cannot be compared."""
        (self.folder / "parts").mkdir()
        for number in ("1", "2"):
            words = ("embed", f"{self.folder}/in.jsonl", "-m", str(self.model), "--threads", "1", "--quiet")
            part = f"{self.folder}/parts/{number}.npy"
            assert self.run(self.folder, (*words, "--shard", f"{number}/2", "-o", part))[0] == 0
        for subject in subjects:
            found = []
            for _ in range(2):
                with tempfile.TemporaryDirectory() as name:
                    began = time.monotonic()
                    code, self.events[subject.name] = self.run(Path(name), subject.command)
                    self.seconds[subject.name] = time.monotonic() - began
                    if code:
                        raise SystemExit(f"{subject.name}: exit code {code} without any kill: {LOG.read_text()}")
                    found.append(read_files(Path(name), subject.kept))
            if found[0] != found[1]:
                raise SystemExit(f"{subject.name}: two whole runs differ: {compare(*found)}")
            self.wholes[subject.name] = found[0]

    def prepare_append(self) -> None:
        """Make an index of rows and a table of others, and the index that the command makes of it."""
        keeps = ("--id-field", "id", "--keep", "n", "-m", str(self.model), "--threads", "1", "--quiet", "-o", "x.db")
        self.append = ("embed", f"{self.folder}/new.jsonl", *keeps, "--append", "--delete-missing")
        for name, first in (("old", 0), ("new", 60)):  # ids 60 to 139 come in both, half of them with other texts
            rows = [
                {"id": i, "text": f"{i % 2 * name} dog {i % 90}", "n": i * first} for i in range(first, first + 140)
            ]
            (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with tempfile.TemporaryDirectory() as place:
            assert self.run(Path(place), ("embed", f"{self.folder}/old.jsonl", *keeps))[0] == 0
            with closing(sqlite3.connect(Path(place) / "x.db")) as db, db:
                db.execute("CREATE TABLE customers AS SELECT 7 AS id")
            shutil.copy(Path(place) / "x.db", self.folder / "old.db")
            began = time.monotonic()
            code, _ = self.run(Path(place), self.append)
            self.seconds["append"] = time.monotonic() - began
            assert code == 0, LOG.read_text()
            shutil.copy(Path(place) / "x.db", self.folder / "new.db")

    def run(self, folder: Path, command: tuple[str, ...], last: int = 0, after: float = 0.0) -> tuple[int, int]:
        """Return (exit code, operations on files) of a command, killed before operation ``last`` or a time."""
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(read)
            run_child(folder, command, last, write)
        os.close(write)
        timer = threading.Timer(after, os.kill, (pid, signal.SIGKILL)) if after else None
        if timer:
            timer.start()
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if timer:
            timer.cancel()
        return code, int(said or b"0")


def run_child(folder: Path, command: tuple[str, ...], last: int, write: int) -> None:
    os.chdir(folder)
    seen, watching, fsync = 0, True, os.fsync

    def hook(event: str, given: tuple[object, ...]) -> None:
        nonlocal seen
        if not watching or event not in EVENTS or not isinstance(given[0], (str, os.PathLike)):
            return
        path = os.fspath(given[0])
        if os.path.isabs(path) and not path.startswith(str(folder)):
            return
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(number: int) -> None:
        hook("open", ("fsync",))
        fsync(number)
        hook("open", ("fsync",))

    os.fsync = counted
    sys.addaudithook(hook)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        from fastflow.cli import main

        main(list(command))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        watching = False
        os.write(write, str(seen).encode())
        os._exit(code)


def read_files(folder: Path, kept: tuple[str, ...]) -> dict[str, bytes]:
    """Return every file with its bytes, but for ``kept`` and the record of a run with --resume, which holds times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not name.parts[0].startswith(kept or ("\0",)) and not name.name.endswith(".run.json"):
            found[name.as_posix()] = path.read_bytes()
    return found


def compare(found: dict[str, bytes], whole: dict[str, bytes]) -> list[str]:
    return sorted(name for name in found.keys() | whole.keys() if found.get(name) != whole.get(name))


def check_last(folder: Path, subject: Subject, whole: dict[str, bytes], code: int) -> None:
    """The last run, which nothing disturbed, leaves the files of a whole run, and a sound cache."""
    if code:
        raise Finding(f"{subject.name}: the command again ends with {code}: {LOG.read_text()[-300:]}")
    if wrong := compare(read_files(folder, subject.kept), whole):
        raise Finding(f"{subject.name}: the command again leaves other files than a whole run: {wrong}")
    if (folder / "c.db").exists():
        with closing(sqlite3.connect(folder / "c.db")) as db:
            if (found := db.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
                raise Finding(f"{subject.name}: the cache is damaged: {found}")


def kill(shop: Shop, subject: Subject, folder: Path, rng: random.Random, counts: Counter[str]) -> None:
    """Kill ``subject`` up to three times, and run it again."""
    whole, command = shop.wholes[subject.name], subject.command
    for _ in range(rng.randint(1, AGAIN)):
        if rng.random() < 0.6:
            code, _ = shop.run(folder, command, last=rng.randint(1, shop.events[subject.name]))
        else:
            code, _ = shop.run(folder, command, after=rng.random() * shop.seconds[subject.name] + 1e-3)
        there, wanted = (
            {name: data for name, data in found.items() if name.split("/")[0] == subject.out}
            for found in (read_files(folder, subject.kept), whole)
        )
        if code not in (0, -signal.SIGKILL):
            raise Finding(f"{subject.name}: exit code {code} while it was to be killed: {LOG.read_text()[-300:]}")
        if there and there != wanted:
            raise Finding(f"{subject.name}: after exit code {code} it is there, not whole: {compare(there, wanted)}")
        if code == 0 and not there:
            raise Finding(f"{subject.name}: exit code 0, and no output")
        counts["killed" if code else "ended before"] += 1
        if there:
            counts["killed after its end"] += code != 0
            return
        command = (*subject.command, "--resume") if subject.resume else subject.command
    check_last(folder, subject, whole, shop.run(folder, command)[0])
    counts["continued"] += 1


def kill_append(shop: Shop, folder: Path, rng: random.Random, counts: Counter[str]) -> None:
    """Kill ``embed --append`` up to three times, and run it again: old and new rows, and other tables, stay whole."""
    old, whole = read_rows(shop.folder / "old.db"), read_rows(shop.folder / "new.db")
    shutil.copy(shop.folder / "old.db", folder / "x.db")
    times = [rng.random() * shop.seconds["append"] + 1e-3 for _ in range(rng.randint(1, AGAIN))]
    codes = [shop.run(folder, shop.append, after=each)[0] for each in times]  # SQLite's operations are not counted
    for code in codes:
        counts["killed" if code else "ended before"] += 1
    found = read_rows(folder / "x.db")
    if wrong := [key for key in found if found[key] not in (old.get(key), whole.get(key))]:
        raise Finding(f"append: rows that are neither old nor new: {wrong[:3]}")
    if lost := [key for key in old if key not in found and key in whole]:
        raise Finding(f"append: rows are lost: {lost[:3]}")
    if code := shop.run(folder, shop.append)[0]:
        raise Finding(f"append: the command again ends with {code}: {LOG.read_text()[-300:]}")
    if read_rows(folder / "x.db") != whole or [path.name for path in folder.iterdir()] != ["x.db"]:
        raise Finding(f"append: the command again leaves other rows or files: {sorted(folder.iterdir())}")
    counts["continued"] += 1


def read_rows(path: Path) -> dict[object, tuple[object, ...]]:
    """Return the rows of an index by id, without their numbers; raises a Finding if a table of others has changed."""
    with closing(sqlite3.connect(path)) as db:
        if db.execute("SELECT * FROM customers").fetchall() != [(7,)]:
            raise Finding("append: the table of others has changed")
        return {row[0]: row for row in db.execute("SELECT id, text, n, vector FROM texts")}


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[..., None]]:
    shop = Shop(folder)
    subjects = shop.list_subjects()
    shop.prepare(subjects)
    shop.prepare_append()
    print(f"{len(subjects)} subjects", flush=True)

    def one(place: Path, rng: random.Random, number: int, counts: Counter[str]) -> None:
        if number % (len(subjects) + 1) == len(subjects):
            kill_append(shop, place, rng, counts)
        else:
            kill(shop, subjects[number % (len(subjects) + 1)], place, rng, counts)

    yield one
