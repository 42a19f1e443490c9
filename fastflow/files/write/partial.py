"""NAME.partial, the unfinished output of a run, and the record of its progress."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Sequence
from io import BufferedRandom
from pathlib import Path
from typing import Any, BinaryIO

from fastflow.atomic import open_locked, replace_text
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import RowFault

# of file systems that cannot lock; the last two differ on macOS
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FAULTS = (OSError, ValueError, KeyError, TypeError, RecursionError)  # raised for a damaged record
WAIT = 0.5  # seconds between attempts to lock a file
STRICT = {"errors": "strict", "truncate": "error"}  # option -> the value that makes bad rows errors


def partial_path(target: Path) -> Path:
    """Return the path of the unfinished output."""
    return target.with_name(target.name + ".partial")


def state_path(target: Path) -> Path:
    """Return the path of the record of progress."""
    return target.with_name(target.name + ".partial.json")


def run_path(target: Path) -> Path:
    """Return the path of the record of a finished file."""
    return target.with_name(target.name + ".run.json")


def read_run(target: Path) -> dict[str, Any]:
    """Return model and options of the run that wrote ``target``; empty if no record is of this file."""
    try:
        saved = json.loads(run_path(target).read_text(encoding="utf-8"))
        return dict(saved["run"]) if saved["file"] == identify(target) else {}
    except FAULTS:
        return {}


def renew_run(target: Path, before: os.stat_result | None) -> None:
    """Note that fastflow changed ``target``, if its record is of the file that it was ``before``."""
    try:
        record = json.loads(run_path(target).read_text(encoding="utf-8"))
        if before is not None and record["file"] == [before.st_size, before.st_mtime_ns]:
            replace_text(run_path(target), json.dumps({**record, "file": identify(target)}))
    except FAULTS:
        return  # no record is of this file


def is_unfinished(target: Path) -> bool:
    """Whether an interrupted run left rows for --resume."""
    return state_path(target).is_file() and partial_path(target).is_file()


def check_known(target: Path) -> None:
    """Raise a UsageError if ``target`` is finished and has no record of its run."""
    if target.exists() and not is_unfinished(target) and not run_path(target).is_file():
        if not partial_path(target).exists():  # left by a run killed after the renaming
            state_path(target).unlink(missing_ok=True)
        raise UsageError(
            f"{target} is finished, and there is no {run_path(target).name}, which names its run: leave out --resume "
            "to make it again, or choose another output with -o"
        )


def open_partial(path: Path, mode: int = 0o666, waiting: Callable[[], None] | None = None) -> BinaryIO:
    """Open and lock ``path``, made with ``mode`` if absent; call ``waiting`` before a wait for another process.

    Raises a FastflowError if it cannot, or without ``waiting`` if another process has it locked.
    """
    try:
        handle = open_locked(path, mode)
        if handle is None and waiting is not None:
            waiting()
        while handle is None and waiting is not None:
            time.sleep(WAIT)
            handle = open_locked(path, mode)
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise FastflowError(
                f"{path} cannot be locked on this file system; write to a local disk and copy the result"
            ) from error
        raise cannot_write(path, error) from error
    if handle is None:
        raise FastflowError(f"{path} is being written by another run; wait for it, or choose another output with -o")
    return BufferedRandom(handle)


def check_output(target: Path, source: str) -> None:
    """Raise a UsageError if the input ``source`` is ``target`` or its temporary file."""
    written = (target, partial_path(target), state_path(target), build_path(target))
    try:
        if source == "-" or not os.path.exists(source):
            return
        for path in written:
            if path.exists() and path.samefile(source):
                which = "the input" if path == target else f"written to, and {path.name} is the input"
                raise UsageError(f"{target} is {which}; choose another output with -o")
    except OSError as error:
        raise cannot_write(target, error) from error


def build_path(target: Path) -> Path:
    """Return the path at which a .parquet or .db is built."""
    return target.with_name(target.name + ".partial.tmp")


def check_readable(path: Path, error: Exception) -> None:
    """Raise a FastflowError if the system refused ``path``."""
    if isinstance(error, OSError):
        raise FastflowError(f"{path} cannot be read: {error.strerror}") from error


def cannot_write(path: Path, error: OSError) -> FastflowError:
    """Return the error for a failed write, with a remedy."""
    help = "choose another place with -o"
    if error.errno in NO_ROOM:
        help = f"free some space or {help}"
    elif error.errno == errno.ENOENT:
        help = f"make the folder {path.parent} or {help}"
    return FastflowError(f"{path} cannot be written: {error.strerror}; {help}")


def _loosen(saved: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    out = dict(saved)
    for name in saved.keys() & now.keys():
        if isinstance(saved[name], dict) and isinstance(now[name], dict):
            out[name] = _loosen(saved[name], now[name])
        elif saved[name] == STRICT.get(name, ...):
            out[name] = now[name]
    return out


def read_options(run: dict[str, Any]) -> dict[str, Any]:
    """Return the options in the record of a ``run``; none if the record is damaged."""
    options = run.get("options")
    return options if isinstance(options, dict) else {}


def identify(path: Path) -> list[int]:
    """Return size and modification time of a file."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


class State:
    """NAME.partial.json, the record of a run: progress, input, model and options.

    ``source``: size and time of the input, or of each of ``paths``; None for a pipe. ``run``: model and options.
    """

    def __init__(self, target: Path, source: Any, run: dict[str, Any], paths: Sequence[str] = ()) -> None:
        self.target, self.path, self._partial = target, state_path(target), partial_path(target)
        self.rows = 0
        self.since: int | None = None  # the last vector of a cache that --only-new takes as known
        self._again, self._paths = source is not None, paths
        self._run = json.loads(json.dumps({"input": source, **run}))

    def load(self) -> tuple[int, int | None]:
        """Return (rows, bytes) to continue from, (0, None) at first; raises a FastflowError for another run."""
        size = self._partial.stat().st_size
        if not self.path.is_file() or not size:
            return self.forget()
        try:
            saved, rows, same = self._read(self.path)
            position = int(saved["bytes"])
        except FAULTS as error:
            check_readable(self.path, error)
            raise FastflowError(f"{self.path} is damaged; remove it and {self._partial} to start again") from error
        if not same or size < position:
            raise FastflowError(
                f"{self._partial} is from a run with another {self._difference(saved['run'])}; give the same again, or "
                f"remove {self._partial} to start again"
            )
        self.rows, self.since = rows, saved.get("since", self.since)
        return rows, position

    def is_done(self) -> int | None:
        """Return the rows of a finished target, else None; raises a UsageError if another run made it."""
        target = self.target
        if not target.exists() or is_unfinished(target):
            return None
        try:
            saved, rows, same = self._read(run_path(target))
            whole = saved["file"] == identify(target)
            other = None if same else f"from a run with another {self._difference(saved['run'])}"
        except FAULTS as error:
            check_readable(run_path(target), error)
            raise FastflowError(f"{run_path(target)} is damaged; remove it and {target} to start again") from error
        if other or not whole:
            found = other or f"not as {run_path(target).name} describes it"
            raise UsageError(
                f"{target} is finished, and {found}: leave out --resume to make it again (with --cache known texts are "
                "not computed again), or choose another output with -o"
            )
        return rows

    def done(self, whole: Path, rows: int) -> None:
        """Write the record of the finished run, just before ``whole`` is renamed to the target.

        ``before`` is the file that the renaming replaces: a run killed in between leaves it.
        """
        path = run_path(self.target)
        try:
            before = identify(self.target) if self.target.is_file() else None
            record = {"rows": rows, "file": identify(whole), "before": before, "run": self._run}
            replace_text(path, json.dumps(record))
        except OSError as error:
            raise cannot_write(path, error) from error

    def left(self) -> str:
        """Describe the rows of an interrupted run; take ``since`` from an equal one."""
        try:
            saved, rows, same = self._read(self.path)
        except FAULTS:
            return ""
        whose = "; --resume would have kept them"
        if same:
            self.since = saved.get("since", self.since)
        else:
            whose = f", of a run with another {self._difference(saved['run'])}"
        return f"{rows:,} finished rows in {self._partial}{whose}" if rows else ""

    def _read(self, path: Path) -> tuple[dict[str, Any], int, bool]:
        saved = json.loads(path.read_text(encoding="utf-8"))
        run = saved["run"]
        return saved, int(saved["rows"]), isinstance(run, dict) and _loosen(run, self._run) == self._run

    def _difference(self, other: Any) -> str:
        names = {"input": "input", "options": "set of options", "fingerprint": "model"}
        if not isinstance(other, dict):
            return "version of fastflow"
        found = [names.get(name, name) for name, value in self._run.items() if other.get(name) != value]
        if "set of options" in found:
            mine, theirs = (read_options(run) for run in (self._run, other))
            if changed := [name for name, value in mine.items() if theirs.get(name) != value]:
                found[found.index("set of options")] = f"set of options ({', '.join(changed)})"
        before, now = other.get("input"), self._run["input"]
        if "input" in found and len(self._paths) > 1 and isinstance(before, list) and len(before) == len(now):
            changed = [path for path, a, b in zip(self._paths, before, now, strict=True) if a != b]
            found[found.index("input")] = f"input {', '.join(changed[:3])}{', …' * (len(changed) > 3)}"
        return " and another ".join(found) or "file, of which a part is missing"

    def save(self, rows: int, position: int) -> None:
        if not self._again:
            return
        try:
            replace_text(
                self.path, json.dumps({"rows": rows, "bytes": position, "since": self.since, "run": self._run})
            )
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.rows = rows

    def kept(self, written: int, error: BaseException) -> str:
        """Describe the finished rows and how to continue."""
        if not self._again:
            return f"{written:,} finished rows are in {self._partial}, but a pipe cannot be read again to continue them"
        where = f"{self.rows:,} finished rows are in {self._partial}"
        if isinstance(error, RowFault):
            skip = ", or with --errors skip to leave such rows out" * (error.option == "--errors replace")
            return f"{where}; the same command with {error.option} --resume continues after them{skip}"
        cause = error.__cause__
        may_pass = (isinstance(cause, OSError) and cause.errno is not None) or "sqlite3" in type(cause).__module__
        if isinstance(error, FastflowError) and not may_pass:
            return f"{where}, but a mended input is another one, whose run begins again"
        again = "the same command with --resume continues after them"
        return f"{where}; {again}, if input, model and options stay as they are"

    def forget(self) -> tuple[int, None]:
        self.path.unlink(missing_ok=True)
        self.rows = 0
        return 0, None
