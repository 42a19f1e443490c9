"""Atomic writes of files and folders."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import IO

from fastflow.errors import FastflowError, UsageError
from fastflow.values import open_regular


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace ``path`` as ``replace_bytes`` does, in UTF-8."""
    replace_bytes(path, text.encode("utf-8"), mode)


def replace_bytes(path: Path, data: bytes | Iterable[bytes], mode: int = 0o666) -> None:
    """Write ``data`` to a new file PATH.tmp, then rename it to ``path``; the umask limits ``mode``. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_out(out: Path, option: str = "--output") -> None:
    """Raise if the folder ``out`` exists or cannot be made; the message names ``option``."""
    if out.exists():
        raise UsageError(f"{out} exists already; remove it or choose another {option}")
    parent = next(p for p in out.absolute().parents if p.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise FastflowError(f"{out} cannot be written: {parent} is not a writable directory; choose another {option}")


@contextmanager
def growing(out: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes ``out`` at the end; an error removes it."""
    partial = out.with_name(out.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        partial.rename(out)
    except OSError as error:
        raise FastflowError(
            f"{out} cannot be written: {error.strerror or error}; free some space or choose another directory"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def try_lock(handle: IO[bytes] | FileIO) -> bool:
    """Lock an open file; False if another process holds the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return whether another process has a file locked; raises OSError."""
    with open_regular(path) as handle:
        return not try_lock(handle)


def open_locked(path: Path, mode: int = 0o666) -> FileIO | None:
    """Open and lock ``path``, made with ``mode`` if absent; None if another process has it locked.

    Links are not followed. Raises OSError.
    """
    while True:
        handle = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode), "r+b")
        try:
            if not try_lock(handle):
                handle.close()
                return None
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                return handle
        except FileNotFoundError:  # renamed or removed between opening and locking: try again
            pass
        except BaseException:
            handle.close()
            raise
        handle.close()
