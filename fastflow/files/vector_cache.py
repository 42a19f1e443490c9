"""Pooled vectors by key in an SQLite file: of runs that share it (``--cache``), or of one run (``--dedupe``).

A key is a 128-bit hash of all that decides the pooled vector. A row: 1 if the text was cut, the vector.

runs      the settings that decide a vector, as JSON, and how many vectors they have
keys      key of text and settings -> number of the vector
vectors   number -> checksum and row
known     the number of the last vector when a run last finished
ids       number -> key of id, text and settings, of rows that finished runs have written
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastflow.cache_folder import OWN
from fastflow.errors import FastflowError
from fastflow.files.cached_files import bytes_for_people
from fastflow.files.write.partial import cannot_write
from fastflow.version import __version__

if TYPE_CHECKING:
    from fastflow.runtime import Runtime

APPLICATION = 0x66665643  # "ffVC", in the header of the SQLite file
VERSION = 1
SQLITE = b"SQLite format 3\0"  # the first bytes of an SQLite file
APPLICATION_AT = slice(68, 72)
KEY = 16  # bytes
CHECK = 8  # bytes of the checksum of a key and its row
WAIT = 60.0  # seconds to wait for another process
ASKED = 500
HEADER = (f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {VERSION}")
TABLES = """
CREATE TABLE runs (number INTEGER PRIMARY KEY, settings TEXT UNIQUE NOT NULL, vectors INTEGER NOT NULL);
CREATE TABLE vectors (number INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE keys (key BLOB PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
"""
LATER = """
CREATE TABLE IF NOT EXISTS known (last INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS ids (number INTEGER PRIMARY KEY, key BLOB UNIQUE NOT NULL);
CREATE TEMP TABLE noted (key BLOB PRIMARY KEY) WITHOUT ROWID;
"""
CHANGES = "PRAGMA data_version"  # rises if another connection writes
LAST = "SELECT coalesce(max(number), 0) FROM vectors"


class VectorCache:
    """Store at ``path``, made if absent, of rows of ``size`` bytes, by the settings ``decided``.

    ``since``: the number of the last row of a finished run; if ``by_id``, ``since`` and ``known`` are of the noted keys
    of (id, text). ``private``: in an unnamed file in the folder of ``path``, which ends with the run. Raises a
    FastflowError for a file that is not a cache, damaged or locked, or cannot be read and written.
    """

    def __init__(
        self, path: Path, decided: Mapping[str, Any], size: int, by_id: bool = False, private: bool = False
    ) -> None:
        self.path, self.decided, self._size = path, decided, size
        self._keys, self._searched = "ids" if by_id else "keys", None  # the state of the file at the last ``find``
        self._db = _open_private(path) if private else _open(path, "rwc")
        try:
            with self._changing():
                if not _version(self._db, path):
                    for statement in (*HEADER, *TABLES.strip().splitlines()):
                        self._db.execute(statement)
                for statement in LATER.strip().splitlines():
                    self._db.execute(statement)
                self._db.execute(f"INSERT INTO known SELECT ({LAST}) WHERE NOT EXISTS (SELECT * FROM known)")  # noqa: S608
                last = "coalesce(max(number), 0) FROM ids" if by_id else "last FROM known"
                (self.since,) = self._db.execute(f"SELECT {last}").fetchone()
        except BaseException:
            self._db.close()
            raise

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the rows of the ``keys`` that the store has."""
        with _plain(self.path):
            self._searched = self._db.execute(CHANGES).fetchone()
            query = "SELECT key, data FROM keys LEFT JOIN vectors USING (number) WHERE key IN "
            return {key: self._check(key, data) for key, data in self._among(keys, query)}

    def known(self, keys: Sequence[bytes], since: int) -> set[bytes]:
        """Return the ``keys`` of rows with numbers up to ``since``."""
        with _plain(self.path):
            found = self._among(keys, f"SELECT key, number FROM {self._keys} WHERE key IN ")  # noqa: S608 (a fixed name)
            return {key for key, number in found if number <= since}

    def note(self, keys: Sequence[bytes]) -> None:
        """Take ``keys`` of (id, text), known once the run has finished."""
        with _plain(self.path):
            self._db.executemany("INSERT OR IGNORE INTO noted VALUES (?)", ((key,) for key in keys))

    def finish(self) -> None:
        """Note that a run wrote all of its rows."""
        with self._changing():
            self._db.execute(f"UPDATE known SET last = ({LAST})")  # noqa: S608 (a fixed query)
            self._db.execute("INSERT OR IGNORE INTO ids (key) SELECT key FROM noted")

    def _among(self, keys: Sequence[bytes], query: str) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(keys), ASKED):
            some = keys[start : start + ASKED]
            # at once: at a damaged row an open cursor would report a closed file
            yield from self._db.execute(f"{query}({', '.join('?' * len(some))})", some).fetchall()

    def _check(self, key: bytes, data: Any) -> bytes:
        row = data[CHECK:] if isinstance(data, bytes) else b""
        if len(row) != self._size or check_of(key, row) != data[:CHECK]:
            raise describe_damage(self.path)
        return row

    def add(self, rows: Mapping[bytes, bytes]) -> None:
        """Store ``rows`` by keys that ``find`` did not find."""
        if not rows:
            return
        with self._changing():
            there = set()
            if self._searched != self._db.execute(CHANGES).fetchone():  # another run may have stored some meanwhile
                there = {key for (key,) in self._among(list(rows), "SELECT key FROM keys WHERE key IN ")}
            self._searched = None
            new = sorted(rows.keys() - there)
            (last,) = self._db.execute(LAST).fetchone()
            numbered = list(enumerate(new, last + 1))
            self._db.executemany(
                "INSERT INTO vectors VALUES (?, ?)", ((n, check_of(key, rows[key]) + rows[key]) for n, key in numbered)
            )
            self._db.executemany("INSERT INTO keys VALUES (?, ?)", ((key, n) for n, key in numbered))
            settings = json.dumps(self.decided, sort_keys=True)
            self._db.execute("INSERT OR IGNORE INTO runs (settings, vectors) VALUES (?, 0)", [settings])
            self._db.execute("UPDATE runs SET vectors = vectors + ? WHERE settings = ?", [len(new), settings])

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with _plain(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:
                yield

    def close(self) -> None:
        self._db.close()

    def describe(self) -> str:
        with _plain(self.path):
            (vectors,) = self._db.execute("SELECT coalesce(sum(vectors), 0) FROM runs").fetchone()
            return f"{self.path} holds {vectors:,} vectors, {bytes_for_people(self.path.stat().st_size)}"


def report(path: Path) -> list[str]:
    """Return lines: the size of the cache, and the vectors of each model."""
    found = contents(path)
    if not found["version"]:
        return [f"{path}: empty"]
    head = f"{path}: {found['vectors']:,} vectors, {bytes_for_people(found['bytes'])}"
    try:
        return [head, *(_line(run["settings"], run["vectors"]) for run in found["runs"])]
    except (LookupError, TypeError, AttributeError) as error:  # no run of fastflow wrote this
        raise describe_damage(path) from error


def contents(path: Path) -> dict[str, Any]:
    """Return the runs of a cache for JSON; ``version`` 0 is an empty file."""
    with contextlib.closing(_open(path, "ro")) as db, _plain(path):
        version = _version(db, path)
        held = db.execute("SELECT settings, vectors FROM runs").fetchall() if version else []
    try:
        runs = [{"settings": json.loads(text), "vectors": int(count)} for text, count in held]
    except (ValueError, TypeError) as error:
        raise describe_damage(path) from error
    vectors = sum(run["vectors"] for run in runs)
    about = {"place": str(path), "version": version, "bytes": path.stat().st_size}
    return {**about, "vectors": vectors, "runs": runs}


def _line(settings: dict[str, Any], vectors: int) -> str:
    prompt = f", prompt {settings['prompt']!r}" if settings.get("prompt") else ""
    return (
        f"{vectors:>12,} of model {settings['fingerprint'][:12]}, {settings['backend']} {settings['dtype']}, "
        f"fastflow {settings['fastflow']}{prompt}"
    )


def describe_damage(path: Path) -> FastflowError:
    """Return the error for a refused file; it advises to remove only a cache."""
    try:
        with path.open("rb") as file:
            head = file.read(APPLICATION_AT.stop)
    except OSError as error:
        return FastflowError(f"{path}, the cache, cannot be read: {error.strerror}; name another file")
    if not head.startswith(SQLITE):
        return FastflowError(f"{path} is no cache of fastflow embed, nor any SQLite file; name another file")
    if head[APPLICATION_AT] != APPLICATION.to_bytes(4, "big"):
        return _foreign(path)
    return FastflowError(f"{path}, a cache of fastflow embed, is damaged; remove it, or name another file")


def _foreign(path: Path) -> FastflowError:
    return FastflowError(f"{path} is an SQLite file, but no cache of fastflow embed; name another file")


def _open(path: Path, mode: str) -> Any:
    try:
        import sqlite3
    except ImportError as error:
        raise FastflowError("--cache needs sqlite3, which this Python was built without; leave it out") from error
    if mode == "rwc":  # sets the mode, also of SQLite's other files
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWN))
    with _plain(path):
        uri = f"{Path(os.path.abspath(path)).as_uri()}?mode={mode}"
        return sqlite3.connect(uri, timeout=WAIT, isolation_level=None, uri=True)


def _open_private(path: Path) -> Any:
    try:
        with tempfile.NamedTemporaryFile(prefix="fastflow-", dir=path.parent) as file:  # empty while it has a name
            db = _open(Path(file.name), "rw")
    except OSError as error:
        raise cannot_write(path, error) from error
    for pragma in ("journal_mode = off", "synchronous = off"):
        db.execute(f"PRAGMA {pragma}")
    return db


def _version(db: Any, path: Path) -> int:
    (application,), (version,), (tables,) = (
        db.execute(f"{query}").fetchone()
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if not tables and not application:
        return 0
    if application != APPLICATION:
        raise _foreign(path)
    if version != VERSION:
        raise FastflowError(
            f"{path} is of version {version} of the cache, and this fastflow reads {VERSION}; name another file"
        )
    return int(version)


@contextlib.contextmanager
def _plain(path: Path) -> Iterator[None]:
    import sqlite3

    try:
        yield
    except UnicodeDecodeError as error:  # SQLite's message quotes damaged text
        raise describe_damage(path) from error
    except sqlite3.Error as error:
        reasons = {  # by message: Python 3.10 has no error codes
            "database is locked": f"another process has held it for {WAIT:.0f} seconds; wait for that",
            "database or disk is full": "the disk is full; free some space",
            "attempt to write a readonly database": "it may not be written; change its permissions",
            "unable to open database file": f"it cannot be opened; look at the folder {path.parent}",
            "disk I/O error": "the disk gave an error; try again",
            "database table is locked": "another connection holds it; try again",
        }
        if (reason := reasons.get(str(error))) is None:
            raise describe_damage(path) from error
        raise FastflowError(f"{path}, the cache: {reason}, or name another file") from error


def decides(runtime: Runtime, prompt: str | None) -> dict[str, Any]:
    """Return the settings that decide a text's pooled vector."""
    info = runtime.info()
    return {
        "fastflow": __version__,
        "fingerprint": runtime.fingerprint,
        "backend": runtime.backend,
        "dtype": info["dtype"],
        "arithmetic": runtime.session.calibrator.arithmetic,
        "max_length": info["max_length"],
        "prompt": runtime.session.model.prompts.resolve(prompt),
    }


def keys_of(texts: Iterable[str], decided: Mapping[str, Any]) -> list[bytes]:
    """Return the key of each text."""
    run = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).digest()
    return [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY, key=run).digest() for text in texts]


def pack_rows(pooled: NDArray[Any], cut: Iterable[int]) -> list[bytes]:
    """Return a row of bytes for each vector of (B, D); ``cut``: numbers of cut texts."""
    numbers = set(cut)
    return [bytes([at in numbers]) + vector.tobytes() for at, vector in enumerate(np.ascontiguousarray(pooled))]


def unpack_rows(rows: Sequence[bytes], dim: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], int]:
    """Return the pooled vectors (B, D) in ``rows``, and the number of cut texts."""
    data = bytearray().join(memoryview(row)[1:] for row in rows)  # writable, for torch warns of read-only arrays
    pooled = np.frombuffer(data, dtype).reshape(len(rows), dim)
    return pooled, sum(row[0] for row in rows)


def check_of(key: bytes, row: bytes) -> bytes:
    """Return the checksum, of CHECK bytes, of a key and its row."""
    return hashlib.blake2b(row, digest_size=CHECK, key=key).digest()
