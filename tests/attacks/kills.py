"""``fastflow embed`` and ``fastflow merge`` killed at random moments: in the end there are the bytes of one whole run.

    python tests/attacks/kills.py --rounds 60 --seconds 1200 --seed 0

In a round one input is embedded into one format, plainly or with --dedupe or --cache, whole or in two shards that are
merged. Every process gets SIGKILL at a random moment and is started again with --resume, a few times. Meanwhile, with
a cache, another run fills it with texts of the same model, is killed too, and ``fastflow cache`` reads it. The bytes
must be those of a run that nobody disturbed (of a .db the rows), and nothing else may lie in the folder. Exit code 1
and the seed of the round for anything else.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from fastflow.files.parts.manifest import manifest_path
from fastflow.files.write.partial import partial_path
from fastflow.files.write.writers import WRITERS, writer_for

CODE = "import sys; import fastflow.files.embed as e; e.WINDOW = 64; from fastflow.cli import main; main(sys.argv[1:])"
WORDS = ["the", "a", "dog", "cat", "bird", "tree", "river", "stone", "house", "market", "sings", "runs", "falls"]
LINES, DISTINCT = 2000, 1500
ATTEMPTS = 3  # that are killed, before one that is not
HOWS = ("plain", "dedupe", "cache")
DONE = "is finished, and nothing is left to resume"


class Fault(Exception):
    """A sentence about what is wrong."""


def main() -> int:
    """Run the rounds and count what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=1200, help="begin no round after that many")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start, counts, faults, done = time.monotonic(), Counter[str](), 0, 0
    for number in range(options.rounds):
        if time.monotonic() - start > options.seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            try:
                Round(Path(folder), random.Random(f"{options.seed}.{number}"), number, counts).run()
            except Fault as fault:
                print(f"round {number} (--seed {options.seed}): {fault}", flush=True)
                faults += 1
        done += 1
    print(f"{done} rounds in {time.monotonic() - start:.0f} s: {dict(counts)}; {faults} faults")
    return 1 if faults or not done else 0


class Round:
    """One format, one way; the formats take turns, so that fifteen rounds see every pair."""

    def __init__(self, folder: Path, rng: random.Random, number: int, counts: Counter[str]) -> None:
        self._folder, self._rng, self._counts = folder, rng, counts
        self._suffix, self._how = list(WRITERS)[number % len(WRITERS)], HOWS[number // len(WRITERS) % len(HOWS)]
        self._out = folder / "out"
        self._out.mkdir()
        self._other: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """Raises a Fault."""
        kind = writer_for(self._out.with_suffix(self._suffix))
        options = ["--keep", "n"] if kind.keeps_ids else ["--log-prob"] * kind.keeps_log_prob
        options += ["--precision", self._rng.choice(["float32", "int8"])]
        source, other = self._write("in.jsonl"), self._write("other.jsonl")
        base = ["embed", str(source), "--quiet", "--threads", "1", *options]
        start = time.monotonic()
        whole = self._folder / f"whole{self._suffix}"
        if (done := started([*base, "-o", str(whole)])).wait():
            raise Fault(f"a run that nobody disturbed ended with {done.returncode}: {done.stderr.read()}")
        took, wanted = time.monotonic() - start, content(whole)
        cache = self._folder / "c.db"
        again = {"plain": [], "dedupe": ["--dedupe"], "cache": ["--cache", str(cache)]}[self._how]
        busy = [
            "embed",
            str(other),
            "--quiet",
            "--threads",
            "1",
            "--cache",
            str(cache),
            "-o",
            str(self._folder / "x.npy"),
        ]
        shards = self._rng.random() < 0.4
        try:
            for number in (1, 2) if shards else (0,):
                self._disturb(busy if self._how == "cache" else None)
                target = self._out / (f"{number}{self._suffix}" if number else f"x{self._suffix}")
                part = ["--shard", f"{number}/2"] if number else []
                self._until_done(
                    [*base, *again, *part, "-o", str(target), "--resume"], target, took / (2 if number else 1)
                )
        finally:
            self._disturb(None)
        if shards:
            target = self._out / f"x{self._suffix}"
            self._until_done(["merge", str(self._out), "--quiet", "-o", str(target)], target, took / 4)
            for number in (1, 2):
                part = self._out / f"{number}{self._suffix}"
                part.unlink()
                manifest_path(part).unlink()
        if content(target) != wanted:
            raise Fault(
                f"{self._suffix}, {self._how}: other {'rows' if self._suffix == '.db' else 'bytes'} than a whole run"
            )
        if left := sorted(path.name for path in self._out.iterdir() if path != target):
            raise Fault(f"{self._suffix}, {self._how}: left behind: {left}")
        if self._how == "cache":
            self._check_cache(cache, base, wanted)

    def _until_done(self, command: list[str], target: Path, took: float) -> None:
        """Run ``command`` until it ends by itself, ATTEMPTS times under a gun."""
        for attempt in range(ATTEMPTS + 1):
            process = started(command)
            if attempt < ATTEMPTS:
                self._kill(process, target, took)
            said = process.communicate()[1]
            if process.returncode == -signal.SIGKILL:
                self._counts[f"{command[0]} killed"] += 1
                continue
            if process.returncode == 0 or DONE in said:
                self._counts[f"{command[0]} done"] += 1
                return
            raise Fault(f"{self._suffix}, {self._how}: {command[0]} ended with {process.returncode}: {said}")

    def _kill(self, process: subprocess.Popen[str], target: Path, took: float) -> None:
        """At any time; most often while the output is written, which begins late in a short run."""
        if self._rng.random() < 0.2:
            time.sleep(self._rng.random() * took)
        else:
            while process.poll() is None and not partial_path(target).exists():
                time.sleep(0.002)
            time.sleep(self._rng.random() * took * self._rng.choice([0.02, 0.3, 0.6]))
        process.kill()

    def _disturb(self, command: list[str] | None) -> None:
        """Kill the other process, and begin another one."""
        if self._other is not None:
            self._other.kill()
            self._counts["others killed"] += self._other.wait() == -signal.SIGKILL
            self._other = None
            shown = started(["cache", str(self._folder / "c.db")])
            if shown.wait() and "it cannot be opened" not in (said := shown.stderr.read()):  # killed before it was made
                raise Fault(f"fastflow cache: {said}")
        if command is not None:
            self._other = started(command)

    def _check_cache(self, cache: Path, base: list[str], wanted: object) -> None:
        """Every row is found, and gives the bytes of a whole run; SQLite finds nothing wrong."""
        last = self._folder / f"last{self._suffix}"
        done = started([*(word for word in base if word != "--quiet"), "--cache", str(cache), "-o", str(last)])
        said = done.communicate()[1]
        if done.returncode or content(last) != wanted or f"; {LINES:,} not computed again)" not in said:
            raise Fault(f"{self._suffix}: the cache does not give the rows of a whole run: {said}")
        with closing(sqlite3.connect(cache)) as db:
            if (found := db.execute("PRAGMA integrity_check").fetchone()) != ("ok",):
                raise Fault(f"integrity_check of the cache: {found}")
            odd = db.execute("SELECT count(*) FROM vectors WHERE number NOT IN (SELECT number FROM keys)").fetchone()
            if odd != (0,):
                raise Fault(f"{odd[0]} vectors of the cache have no key")

    def _write(self, name: str) -> Path:
        """Lines of which some repeat, half of them those of another file."""
        texts = [" ".join(self._rng.choices(WORDS, k=self._rng.randint(2, 9))) + f" {at}" for at in range(DISTINCT)]
        lines = [json.dumps({"text": self._rng.choice(texts), "n": at}) + "\n" for at in range(LINES)]
        (self._folder / name).write_text("".join(lines))
        return self._folder / name


def started(arguments: list[str]) -> subprocess.Popen[str]:
    """``fastflow`` with ``arguments``, in small windows."""
    command = [sys.executable, "-c", CODE, *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def content(path: Path) -> object:
    """The bytes of a file; of a database its rows, for its pages may lie otherwise."""
    if path.suffix != ".db":
        return path.read_bytes()
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


if __name__ == "__main__":
    sys.exit(main())
