"""Runs of ``fastflow`` that write one output at once, are interrupted, killed and continued: rows must never mix.

    python tests/attacks/writers.py --rounds 60 --seconds 1200 --seed 0

A round is of one format and of one of two kinds.

Together: two processes embed two inputs into one file, or two shards of one input; one may get a signal. Each that
exits with 0 claims that the file was its own when it finished, so the file must be, bit for bit, what one gives alone.
A run that did not succeed must say why in one sentence, and continue.

Killed: one input is embedded, plainly or with --dedupe or --cache, whole or in two shards that are merged. Every
process gets SIGKILL at a random moment, a few times, and is started again with --resume. Meanwhile another run fills
the cache, is killed too, and ``fastflow cache`` reads it. In the end there are the bytes of a run that nobody
disturbed, and nothing else lies in the folder.

Exit code 1 and the seed of the round for anything else.
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
from contextlib import closing
from pathlib import Path

from boxed import rounds

from fastflow.files.parts.manifest import manifest_path
from fastflow.files.write.partial import partial_path
from fastflow.files.write.writers import WRITERS, writer_for

CODE = "import sys; import fastflow.files.embed as e; e.WINDOW = 64; from fastflow.cli import main; main(sys.argv[1:])"
WORDS = ["the", "a", "dog", "cat", "bird", "tree", "river", "stone", "house", "market", "sings", "runs", "falls"]
LINES, DISTINCT = 2000, 1500
ATTEMPTS = 3  # that are killed, before one that is not
HOWS = ("plain", "dedupe", "cache")
SIGNALS = (None, None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
REFUSED = "is being written by another run"
DONE = "is finished, and nothing is left to resume"


class Fault(Exception):
    """A sentence about what is wrong."""


class Round:
    """What both kinds need: inputs, a command for one format, and runs of it."""

    def __init__(self, folder: Path, rng: random.Random, suffix: str, counts: Counter[str]) -> None:
        self.folder, self.rng, self.suffix, self.counts = folder, rng, suffix, counts
        self.out = folder / "out"
        self.out.mkdir()
        self.target = self.out / f"x{suffix}"
        kind = writer_for(self.target)
        self.options = ["--keep", "n"] if kind.keeps_ids else ["--log-prob"] * kind.keeps_log_prob

    def command(self, source: Path, *options: str) -> list[str]:
        return ["embed", str(source), "--quiet", "--threads", "1", *self.options, *options]

    def input(self, name: str) -> Path:
        """Lines of which some repeat, half of them those of another file."""
        rng = self.rng
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) + f" {at}" for at in range(DISTINCT)]
        lines = [json.dumps({"text": rng.choice(texts), "n": at}) + "\n" for at in range(LINES)]
        (self.folder / name).write_text("".join(lines))
        return self.folder / name

    def alone(self, command: list[str], name: str) -> bytes:
        """The bytes that a command gives if nobody disturbs it."""
        target = self.folder / f"{name}{self.suffix}"
        ended(started([*command, "-o", str(target)]), 0)
        return target.read_bytes()

    def check_left(self) -> None:
        if left := [path.name for path in self.out.iterdir() if path not in (self.target, manifest_path(self.target))]:
            raise Fault(f"{self.suffix}: left behind: {sorted(left)}")


class Together(Round):
    """Two writers of one output."""

    def run(self) -> None:
        """Raises a Fault."""
        shards, sent = self.rng.random() < 0.3, self.rng.choice(SIGNALS)
        first = self.input("a.jsonl")
        inputs = [first, first if shards else self.input("b.jsonl")]
        commands = [self.command(path, *["--shard", f"{i}/2"] * shards) for i, path in enumerate(inputs, 1)]
        alone = [self.alone(command, f"alone{i}") for i, command in enumerate(commands)]
        runs = []
        for command in commands:
            runs.append(started([*command, "-o", str(self.target)]))
            time.sleep(self.rng.random() * 0.4)
        if sent is not None:
            time.sleep(self.rng.random() * 1.5)
            runs[0].send_signal(sent)
        said = [run.communicate()[1] for run in runs]
        codes = [run.returncode for run in runs]
        claimed = [i for i, code in enumerate(codes) if code == 0]
        self.counts["alone"] += len(claimed)
        if claimed and self.target.read_bytes() not in [alone[i] for i in claimed]:
            raise Fault(f"exit 0 of {claimed}, but {self.target.name} holds what none of them gives alone")
        if not claimed and self.target.exists():
            raise Fault(f"no run succeeded, but {self.target.name} is there")
        for i, code in enumerate(codes):
            if code == 1 and REFUSED in said[i]:
                self.counts["refused"] += 1
            elif i == 0 and sent is not None and code in (128 + sent, -sent):
                self.counts["stopped"] += 1
                if not claimed:
                    self.resume(commands[0], alone[0])
            elif code != 0:
                raise Fault(f"run {i} ended with {code}: {said[i]!r}")
        if len(claimed) == len(codes):
            self.check_left()

    def resume(self, command: list[str], whole: bytes) -> None:
        ended(started([*command, "-o", str(self.target), "--resume"]), 0)
        self.counts["resumed"] += 1
        if self.target.read_bytes() != whole:
            raise Fault("--resume after the signal gives other bytes than a whole run")
        self.check_left()


class Killed(Round):
    """One output, whose every run is killed until the last."""

    how = "plain"
    other: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """Raises a Fault."""
        self.options += ["--precision", self.rng.choice(["float32", "int8"])]
        base, cache = self.command(self.input("in.jsonl")), str(self.folder / "c.db")
        start = time.monotonic()
        whole = self.alone(base, "whole")
        took = time.monotonic() - start
        again = {"plain": [], "dedupe": ["--dedupe"], "cache": ["--cache", cache]}[self.how]
        busy = [*self.command(self.input("other.jsonl")), "--cache", cache, "-o", str(self.folder / f"o{self.suffix}")]
        parts = [self.out / f"{number}{self.suffix}" for number in (1, 2)] if self.rng.random() < 0.4 else []
        try:
            for number, target in enumerate(parts or [self.target], 1):
                self.disturb(busy if self.how == "cache" else None)
                part = ["--shard", f"{number}/2"] if parts else []
                command = [*base, *again, *part, "-o", str(target), "--resume"]
                self.until_done(command, target, took / max(1, len(parts)))
        finally:
            self.disturb(None)
        if parts:
            self.until_done(["merge", str(self.out), "--quiet", "-o", str(self.target)], self.target, took / 4)
            for part in parts:
                part.unlink()
                manifest_path(part).unlink()
        if self.target.read_bytes() != whole:
            raise Fault(f"{self.suffix}, {self.how}: other bytes than a whole run")
        self.check_left()
        if self.how == "cache":
            self.check_cache(cache, base, whole)

    def until_done(self, command: list[str], target: Path, took: float) -> None:
        """Run ``command`` until it ends by itself, ATTEMPTS times under a gun."""
        for attempt in range(ATTEMPTS + 1):
            process = started(command)
            if attempt < ATTEMPTS:
                self.kill(process, target, took)
            said = process.communicate()[1]
            if process.returncode == 0 or DONE in said:
                self.counts[f"{command[0]} done"] += 1
                return
            if process.returncode != -signal.SIGKILL:
                raise Fault(f"{self.suffix}, {self.how}: {command[0]} ended with {process.returncode}: {said}")
            self.counts[f"{command[0]} killed"] += 1

    def kill(self, process: subprocess.Popen[str], target: Path, took: float) -> None:
        """At any time; most often while the output is written, which begins late in a short run."""
        if self.rng.random() < 0.2:
            time.sleep(self.rng.random() * took)
        else:
            while process.poll() is None and not partial_path(target).exists():
                time.sleep(0.002)
            time.sleep(self.rng.random() * took * self.rng.choice([0.02, 0.3, 0.6]))
        process.kill()

    def disturb(self, command: list[str] | None) -> None:
        """Kill the other process, and begin another one."""
        if self.other is not None:
            self.other.kill()
            self.counts["others killed"] += self.other.wait() == -signal.SIGKILL
            self.other = None
            shown = started(["cache", str(self.folder / "c.db")])
            if shown.wait() and "it cannot be opened" not in (said := shown.stderr.read()):  # killed before it was made
                raise Fault(f"fastflow cache: {said}")
        if command is not None:
            self.other = started(command)

    def check_cache(self, cache: str, base: list[str], whole: bytes) -> None:
        """Every row is found, and gives the bytes of a whole run; SQLite finds nothing wrong."""
        last = self.folder / f"last{self.suffix}"
        said = ended(started([*(word for word in base if word != "--quiet"), "--cache", cache, "-o", str(last)]), 0)
        if last.read_bytes() != whole or f"; {LINES:,} not computed again)" not in said:
            raise Fault(f"{self.suffix}: the cache does not give the rows of a whole run: {said}")
        with closing(sqlite3.connect(cache)) as db:
            if (found := db.execute("PRAGMA integrity_check").fetchone()) != ("ok",):
                raise Fault(f"integrity_check of the cache: {found}")
            odd = db.execute("SELECT count(*) FROM vectors WHERE number NOT IN (SELECT number FROM keys)").fetchone()
            if odd != (0,):
                raise Fault(f"{odd[0]} vectors of the cache have no key")


def started(arguments: list[str]) -> subprocess.Popen[str]:
    """``fastflow`` with ``arguments``, in small windows."""
    command = [sys.executable, "-c", CODE, *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], code: int) -> str:
    """What a process said that ended with ``code``; raises a Fault for another."""
    said = process.communicate()[1]
    if process.returncode != code:
        raise Fault(f"a run ended with {process.returncode}: {said}")
    return said


def one(folder: Path, rng: random.Random, number: int, counts: Counter[str]) -> list[str]:
    """The formats and kinds take turns, so that twenty-four rounds see every pair; returns the fault, if any."""
    suffix, kind = list(WRITERS)[number % len(WRITERS)], number // len(WRITERS) % (1 + len(HOWS))
    try:
        if kind == 0:
            Together(folder, rng, suffix, counts).run()
        else:
            killed = Killed(folder, rng, suffix, counts)
            killed.how = HOWS[kind - 1]
            killed.run()
    except Fault as fault:
        return [str(fault)]
    return []


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of what was started with & ignore it
    sys.exit(rounds(__doc__, 60, one))
