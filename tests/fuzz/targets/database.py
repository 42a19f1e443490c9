"""A .db that `search` reads, spoilt by SQL or in its bytes. Bytes: choices of spoil_database, or a file."""

import shutil
import sqlite3
from pathlib import Path

import outputs
from harness import Choices, Finding, check_contract, scratch
from mutators import spoil_database

from fastflow.search import Index

MEMORY = 1 << 30
FOLDER = scratch()
SOUND = FOLDER / "sound.db"
CONDITIONS = (None, "n < 5", "text LIKE 'text 1%'", "row IN (SELECT row FROM texts)")
outputs.write(SOUND, range(outputs.ROWS), {"fingerprint": "f", "normalized": False})


def one(data: bytes) -> None:
    path = FOLDER / "case" / "one.db"
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir()
    sound, condition = False, None
    if data.startswith(b"SQLite format 3\0"):
        path.write_bytes(data)
    else:
        choices = Choices(data)
        shutil.copyfile(SOUND, path)
        condition = choices.choice(CONDITIONS)
        sound = spoil_database(path, choices)
    check_contract(lambda: search(path, sound, condition), sound, MEMORY)


def search(path: Path, sound: bool, condition: str | None) -> None:
    with Index(path) as index:
        hits = index.search(outputs.VECTORS[3], 5, condition)
    if sound and condition is None and hits[0].row != 3:
        raise Finding(f"wrong rows: {hits}")


def seeds() -> list[bytes]:
    small = FOLDER / "small.db"
    shutil.copyfile(SOUND, small)
    with sqlite3.connect(small, isolation_level=None) as db:
        db.execute("DELETE FROM texts WHERE row > 3")
        db.execute("VACUUM")
    db.close()
    return [small.read_bytes(), b"\1\0\2\3", b"\0\1\3\4\5\6"]
