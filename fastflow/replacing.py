"""Small files that are replaced whole: a reader finds the old content or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """``replace_bytes`` of ``text`` in UTF-8."""
    replace_bytes(path, text.encode("utf-8"), mode)


def replace_bytes(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Give ``path`` the content ``data``, by way of PATH.tmp, which is made with ``mode`` less the umask.

    A link in the place of PATH.tmp is removed, not followed. Raises OSError, and leaves no PATH.tmp then.
    """
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
