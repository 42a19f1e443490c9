"""Two runs of ``fastflow embed`` that write one output, are interrupted and continued: rows must never mix.

In a round two processes embed two inputs into one file, or two shards of one input, plainly, with --dedupe or with one
--cache; one may get a signal. A run that exits with 0 must leave, bit for bit, the file that it gives undisturbed. A
run that does not succeed must say why in one sentence, and, continued, give the bytes of a whole run, unless the
signal came after the file had its name. The cache must be sound, and the folder must hold nothing else.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from harness import Finding

from fastflow.files.shards.manifest import manifest_path
from fastflow.files.write.outputs import WRITERS, writer_for
from fastflow.files.write.partial import partial_path, run_path

CODE = "import sys; import fastflow.files.embed as e; e.WINDOW = 64; from fastflow.cli import main; main(sys.argv[1:])"
WORDS = ["the", "a", "dog", "cat", "bird", "tree", "river", "stone", "house", "market", "sings", "runs", "falls"]
LINES, DISTINCT = 2000, 1500
HOWS = ("plain", "dedupe", "cache")
SIGNALS = (None, None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
REFUSED = "is being written by another run"


class Round:
    """Two writers of one output."""

    def __init__(self, folder: Path, rng: random.Random, number: int, counts: Counter[str]) -> None:
        self.folder, self.rng, self.counts = folder, rng, counts
        self.suffix, self.how = list(WRITERS)[number % len(WRITERS)], HOWS[number // len(WRITERS) % len(HOWS)]
        self.out, self.cache = folder / "out", folder / "c.db"
        self.out.mkdir()
        self.target = self.out / f"x{self.suffix}"
        kind = writer_for(self.target)
        self.options = ["--keep", "n"] * kind.keeps_fields
        self.again = {"plain": [], "dedupe": ["--dedupe"], "cache": ["--cache", str(self.cache)]}[self.how]

    def input(self, name: str) -> Path:
        rng = self.rng
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) + f" {at}" for at in range(DISTINCT)]
        lines = [json.dumps({"text": rng.choice(texts), "n": at}) + "\n" for at in range(LINES)]
        (self.folder / name).write_text("".join(lines))
        return self.folder / name

    def alone(self, command: list[str], name: str) -> bytes:
        target = self.folder / f"{name}{self.suffix}"
        wait_for(start([*command, "-o", str(target)]))
        return target.read_bytes()

    def run(self) -> None:
        shards, sent = self.rng.random() < 0.3, self.rng.choice(SIGNALS)
        first = self.input("a.jsonl")
        inputs = [first, first if shards else self.input("b.jsonl")]
        commands = [
            ["embed", str(path), "--quiet", "--threads", "1", *self.options, *["--shard", f"{i}/2"] * shards]
            for i, path in enumerate(inputs, 1)
        ]
        alone = [self.alone(command, f"alone{i}") for i, command in enumerate(commands)]
        commands = [[*command, *self.again, "-o", str(self.target)] for command in commands]
        runs = []
        for command in commands:
            runs.append(start(command))
            time.sleep(self.rng.random() * 0.4)
        if sent is not None:
            time.sleep(self.rng.random() * 1.5)
            runs[0].send_signal(sent)
        said = [run.communicate()[1] for run in runs]
        codes = [run.returncode for run in runs]
        claimed = [i for i, code in enumerate(codes) if code == 0]
        self.counts["alone"] += len(claimed)
        if claimed and self.target.read_bytes() not in [alone[i] for i in claimed]:
            raise Finding(f"exit 0 of {claimed}, but {self.target.name} holds what none of them gives alone")
        if not claimed and self.target.exists() and (sent is None or self.target.read_bytes() != alone[0]):
            raise Finding(f"no run succeeded, but {self.target.name} is there")
        for i, code in enumerate(codes):
            if code == 1 and REFUSED in said[i]:
                self.counts["refused"] += 1
            elif i == 0 and sent is not None and code in (128 + sent, -sent):
                self.counts["stopped"] += 1
                if not claimed and self.target.exists() and not partial_path(self.target).exists():
                    self.counts["stopped after the last byte"] += 1
                elif not claimed:
                    self.resume(commands[0], alone[0])
            elif code != 0:
                raise Finding(f"run {i} ended with {code}: {said[i]!r}")
        if len(claimed) == len(codes):
            self.check_left()
        if self.how == "cache":
            self.check_cache(commands[0], alone[0])

    def resume(self, command: list[str], whole: bytes) -> None:
        wait_for(start([*command, "--resume"]))
        self.counts["resumed"] += 1
        if self.target.read_bytes() != whole:
            raise Finding("--resume after the signal gives other bytes than a whole run")
        self.check_left()

    def check_left(self) -> None:
        beside = (self.target, manifest_path(self.target), run_path(self.target))
        if left := [path.name for path in self.out.iterdir() if path not in beside]:
            raise Finding(f"{self.suffix}: left behind: {sorted(left)}")

    def check_cache(self, command: list[str], whole: bytes) -> None:
        for path in self.out.iterdir():
            path.unlink()
        wait_for(start(command))
        if self.target.read_bytes() != whole:
            raise Finding(f"{self.suffix}: the cache does not give the rows of a whole run")
        wait_for(start(["cache", str(self.cache)]))
        with closing(sqlite3.connect(self.cache)) as db:
            if (found := db.execute("PRAGMA integrity_check").fetchone()) != ("ok",):
                raise Finding(f"integrity_check of the cache: {found}")
            odd = db.execute("SELECT count(*) FROM vectors WHERE number NOT IN (SELECT number FROM keys)").fetchone()
            if odd != (0,):
                raise Finding(f"{odd[0]} vectors of the cache have no key")


def start(arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CODE, *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str]) -> None:
    said = process.communicate()[1]
    if process.returncode:
        raise Finding(f"a run ended with {process.returncode}: {said}")


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[..., None]]:
    """The formats and ways take turns, so that eighteen rounds see every pair."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of a program that & started ignore it

    def one(folder: Path, rng: random.Random, number: int, counts: Counter[str]) -> None:
        Round(folder, rng, number, counts).run()

    yield one
