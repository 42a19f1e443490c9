"""Locks of files (flock), which end with the process."""

from __future__ import annotations

import fcntl
import os
from io import FileIO
from pathlib import Path
from typing import IO

from fastflow.values import open_regular


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
