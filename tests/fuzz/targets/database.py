"""A .db that `search` reads, spoilt by SQL or in its bytes. Bytes: choices of tests/attacks/outputs.py, or a file."""

import shutil
import sqlite3

import outputs
from harness import Choices, judged, scratch

FOLDER = scratch()
SOUND = FOLDER / "sound.db"
SQLITE = b"SQLite format 3\0"
outputs.written(SOUND, range(outputs.ROWS), {"fingerprint": "f", "normalized": False})


def one(data: bytes) -> None:
    path = FOLDER / "case" / "one.db"
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir()
    if data.startswith(SQLITE):
        path.write_bytes(data)
        judged(outputs.judge(path.parent, "", False, None))
        return
    choices = Choices(data)
    shutil.copyfile(SOUND, path)
    condition = choices.choice(outputs.CONDITIONS)
    judged(outputs.judge(path.parent, "", outputs.spoil_database(path, choices), condition))


def seeds() -> list[bytes]:
    small = FOLDER / "small.db"
    small.unlink(missing_ok=True)
    shutil.copyfile(SOUND, small)
    with sqlite3.connect(small, isolation_level=None) as db:
        db.execute("DELETE FROM texts WHERE row > 3")
        db.execute("VACUUM")
    db.close()
    return [small.read_bytes(), b"\1\0\2\3", b"\0\1\3\4\5\6"]
