"""Checks of values in files; an error names file, field and value."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fastflow.errors import FastflowError

MOST = 2**31 - 1  # sizes and ids are 32-bit in every kernel


def open_regular(path: Path) -> BinaryIO:
    """Open ``path`` for unbuffered reading; raise OSError for a pipe or folder."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb", buffering=0)
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a file", str(path))


def read_json(path: Path, most: int | None = None) -> Any:
    """Read the JSON value in a file of at most ``most`` bytes."""
    try:
        with open_regular(path) as handle:
            content = handle.read() if most is None else handle.read(most + 1)
        if most is not None and len(content) > most:
            raise FastflowError(f"{path} cannot be read: it has more than {most >> 20} MB")
        return json.loads(content.decode("utf-8"))
    except OSError as error:
        raise FastflowError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError:
        raise FastflowError(f"{path} cannot be read: its JSON is nested too deep") from None
    except ValueError as error:
        raise FastflowError(f"{path} is not JSON: {error}") from error


def read_object(path: Path, most: int | None = None) -> dict[str, Any]:
    """Read the JSON object in a file."""
    found = read_json(path, most)
    if not isinstance(found, dict):
        raise FastflowError(f"{path} cannot be read: it does not hold a JSON object")
    return found


def is_whole(value: Any, least: int, most: int = MOST) -> bool:
    """Return whether a JSON value is an int within bounds."""
    return type(value) is int and least <= value <= most


def short(value: Any) -> str:
    """Format a value on one line of at most 80 characters."""
    return f"{value!r:.80}"


@contextmanager
def panics() -> Iterator[None]:
    """Turn a Rust library's panic, a BaseException, into a RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise RuntimeError(str(error)) from error
        raise


@contextmanager
def system_errors() -> Iterator[None]:
    """Turn a Rust library's error with an errno into an OSError."""
    try:
        yield
    except Exception as error:
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
        raise


def system_failed(error: BaseException) -> bool:
    """Return whether the system refused a file, which may be whole."""
    return isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)


def reason(error: BaseException) -> str:
    """Format the error of another library on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def read_config(directory: Path) -> dict[str, Any]:
    """Read config.json of an encoder directory."""
    path = directory / "config.json"
    if not path.exists():
        raise FastflowError(f"{directory} is not an encoder: it has no config.json")
    return read_object(path)


def whole_number(config: dict[str, Any], name: str, where: Path, least: int = 1, most: int = MOST) -> int:
    """Read a whole number of an encoder's config; refuse 4.0, "4" and true."""
    value = config.get(name)
    if type(value) is not int:
        said = "missing" if name not in config else f"missing or not a whole number: {short(value)}"
        raise FastflowError(f"{where / 'config.json'}, field {name}: {said}")
    if not is_whole(value, least, most):
        bound = f"at least {least}" if value < least else f"at most {most}"
        raise FastflowError(f"{where / 'config.json'}, field {name}: must be {bound}, not {short(value)}")
    return value


def number(value: Any, name: str, where: Path, least: float, most: float) -> float:
    """Check that a JSON number is within bounds."""
    if type(value) not in (int, float) or not least <= value <= most:  # NaN fails both
        raise FastflowError(
            f"{where / 'config.json'}, field {name}: must be a number from {least:g} to {most:g}, not {short(value)}"
        )
    return float(value)


def flag(config: dict[str, Any], name: str, where: Path) -> bool:
    """Read the field ``name``, true or false; false if missing."""
    value = config.get(name, False)
    if type(value) is not bool:
        raise FastflowError(f"{where / 'config.json'}, field {name}: must be true or false, not {short(value)}")
    return value
