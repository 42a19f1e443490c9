"""Spoil .db files and folders of shards in thousands of ways: each must give right rows or one sentence.

    python tests/attacks/outputs.py --count 2000 --seconds 300 --seed 0
    python tests/attacks/outputs.py --seed 0 --only 1234        one case again, with its traceback

A .db is searched, with a condition and without, and merged; a folder of parts goes through status and merge. A case
runs in a process of its own, with a limit on memory and on time. Exit code 1: something else came out, which is printed
with the number that repeats it.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np  # after the environment, on which the number of its threads depends
import pyarrow.parquet  # noqa: F401 (once, before the forks)
from boxed import Judge, attack, cut, flipped, sentence
from files.test_parts import DAMAGED
from files.test_write_columns import LOOSE, SPOILT

from fastflow.errors import FastflowError
from fastflow.files.parts.counting import Counted
from fastflow.files.parts.manifest import file_sha256, manifest_of, manifest_path
from fastflow.files.parts.merging import merge
from fastflow.files.parts.status import Status
from fastflow.files.write.printing import Block
from fastflow.files.write.writers import writer_for
from fastflow.search import Index

from support.refusals import spoil

MEMORY = 1 << 30  # bytes that a case may take beyond what its process holds at its start
ROWS, DIM = 40, 8
SUFFIXES = (".npy", ".jsonl", ".parquet", ".db")
SCHEMAS = (
    *(sql for sql, _ in SPOILT), LOOSE, f"{LOOSE} INSERT INTO texts SELECT * FROM texts", "DELETE FROM texts",
    "ALTER TABLE texts DROP COLUMN n", "ALTER TABLE texts ADD COLUMN big AS (zeroblob(1000000000))",
    "DELETE FROM run", "CREATE TABLE more (a)", "CREATE INDEX i ON texts (length(text))",
)  # fmt: skip
VALUES = (
    "NULL", "1e300", "-1", "0", "9223372036854775807", "'a'", "x'00'", "zeroblob(64)", "randomblob(32)", "''", "1.5",
    "'x' || char(0)", "x'ff'", "replace(hex(zeroblob(500000)), '0', 'ab')",
)  # fmt: skip
CONDITIONS = (None, "n < 5", "text LIKE 'text 1%'", "row IN (SELECT row FROM texts)")
ODD: list[Any] = [None, True, -1, 0, 1.5, 2**70, float("nan"), "", "x", [], {}, [[]], [1, 2, 3], {"a": None}, "../x"]


def vectors(seed: int) -> np.ndarray:
    """The vectors of a sound file."""
    return np.random.default_rng(seed).normal(size=(ROWS, DIM)).astype(np.float32)


def written(path: Path, rows: range, run: dict[str, Any]) -> None:
    """A sound output of ``rows``."""
    with writer_for(path)(path, run) as writer:
        writer.begin()
        writer.about = {"dim": DIM, "truncate_dim": None, "prompt": None}
        texts, found = [f"text {i}" for i in rows], vectors(0)[rows.start : rows.stop]
        kept = {} if path.suffix == ".npy" else {"n": list(rows)}
        writer.write(Block(rows, texts, None, found, None, kept))
        writer.finish()


def flip(path: Path, rng: random.Random) -> None:
    """Change a few bytes, or cut the file."""
    path.write_bytes(rng.choice([flipped] * 4 + [cut])(path.read_bytes(), rng))


def replaced(path: Path, rng: random.Random) -> None:
    """Put something that is no file, or another, in the place of ``path``."""
    path.unlink()
    kind = rng.choice(["pipe", "folder", "link", "empty", "nothing"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(rng.choice(["/dev/zero", path.name, "/nowhere", "/dev/tty"]))
    elif kind == "empty":
        path.touch()


def spoil_database(path: Path, rng: random.Random) -> bool:
    """Spoil a .db in one way; returns whether it is sound still."""
    kind = rng.choice(["sound", "schema", "value", "run", "flip", "flip", "replaced"])
    if kind == "sound":
        return True
    if kind == "flip":
        flip(path, rng)
    elif kind == "replaced":
        replaced(path, rng)
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            try:
                if kind == "schema":
                    db.executescript(rng.choice(SCHEMAS))
                elif kind == "run":
                    name = rng.choice(
                        ["format", "precision", "dim", "fingerprint", "truncate_dim", "prompt", "version"]
                    )
                    db.execute(f"INSERT OR REPLACE INTO run VALUES ('{name}', {rng.choice(VALUES)})")
                else:
                    column, row = rng.choice(["row", "text", "vector", "n"]), rng.randrange(ROWS)
                    if rng.random() < 0.5:  # without types and keys, so that any value can be stored
                        db.executescript(LOOSE)
                    nan = np.full(DIM, rng.choice([np.nan, np.inf]), "<f4").tobytes().hex()
                    value = rng.choice([*VALUES, f"x'{nan}'"])
                    db.execute(f"UPDATE texts SET {column} = {value} WHERE row = {row}")
            except sqlite3.Error:  # a strict column refuses the value: the file is as it was
                pass
    return False


def spoil_folder(folder: Path, suffix: str, rng: random.Random) -> bool:
    """Spoil a folder of two parts in one way; returns whether it is sound still."""
    part = folder / f"{rng.choice([1, 2])}{suffix}"
    manifest = manifest_path(part)
    kind = rng.choice(["sound", "row", "deep", "deep", "body", "body", "bytes", "replaced"])
    if kind == "row":
        spoil(folder, manifest.name, rng.choice(DAMAGED)[0])
    elif kind == "deep":
        found = json.loads(manifest.read_text())
        inside = rng.choice([found, found["run"], found["inputs"][0], found["run"]["options"]])
        inside[rng.choice(sorted(inside))] = rng.choice(ODD)
        manifest.write_text(json.dumps(found))
    elif kind == "body":  # with a hash that fits, so that what reads the body sees it
        flip(part, rng)
        found = json.loads(manifest.read_text())
        manifest.write_text(json.dumps(found | {"sha256": file_sha256(part), "bytes": part.stat().st_size}))
    elif kind == "bytes":
        flip(rng.choice([part, manifest]), rng)
    elif kind == "replaced":
        replaced(rng.choice([part, manifest]), rng)
    return kind == "sound"


def make(number: int, seed: int, folder: Path) -> tuple[str, bool]:
    """Fill the folder of a case; the suffix of its parts, "" for a .db alone, ``one.db``, and whether it is sound."""
    rng = random.Random(f"{seed}/{number}")
    if rng.random() < 0.5:
        written(folder / "one.db", range(ROWS), {"fingerprint": "f", "normalized": False})
        return "", spoil_database(folder / "one.db", rng)
    suffix = rng.choice(SUFFIXES)
    run = {"fingerprint": "f", "options": {"log_prob": False, "layout": {"field": None}}}
    for shard in (1, 2):
        part = folder / f"{shard}{suffix}"
        manifest = manifest_of(part, (shard, 2), ["in.txt"], [Counted(ROWS, 9, "0" * 64)], run, ["in.txt"])
        written(part, range(*manifest.rows), {"fingerprint": "f"})
        manifest.add_hash(part).write(part)
    return suffix, spoil_folder(folder, suffix, rng)


def judge(folder: Path, suffix: str, sound: bool, condition: str | None) -> tuple[str, str]:
    """(outcome, details) of a case; see ``boxed``."""
    try:
        if suffix:
            Status.of(folder).lines()
            merge(folder, folder / f"out{suffix}")
            if suffix == ".npy" and sound and not np.array_equal(np.load(folder / "out.npy"), vectors(0)):
                return "Wrong rows", suffix
            return "rows", ""
        with Index(folder / "one.db") as index:
            hits = index.search(vectors(0)[3], 5, condition)
        if sound and condition is None and hits[0].row != 3:
            return "Wrong rows", repr(hits)
        return "rows", ""
    except FastflowError as error:
        return sentence(str(error), sound)


def case(number: int, seed: int, folder: Path) -> Judge:
    """The judge of a case."""
    suffix, sound = make(number, seed, folder)
    return partial(judge, folder, suffix, sound, CONDITIONS[number % len(CONDITIONS)])


if __name__ == "__main__":
    sys.exit(attack(__doc__, case, MEMORY))
