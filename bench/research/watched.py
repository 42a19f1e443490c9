"""A long ``fastflow embed`` in a process of its own, watched from outside: rows, memory and pauses over time, in a log.

The log is JSON Lines and outlives the watcher, so that a run may be stopped and continued: ``start`` and ``stop`` of
each process, and a ``window`` every few seconds. A window is a stretch of time between two records of finished rows.
Its seconds are those in which the process could run: a pause, of the process or of the watcher, is counted apart.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.bench.measure.machine import content
from fastflow.errors import FastflowError
from fastflow.files.partial import state_path

LOOK = 0.05  # seconds between looks at the process
GAP = 2.0  # seconds without a look that are a pause of the watcher itself
AGAIN = 1.0  # seconds until a process that goes on is terminated again
TICKS = os.sysconf("SC_CLK_TCK")
PDEATHSIG = 1  # of prctl


class Look(NamedTuple):
    """A process at one moment: resident MB without mapped files, processor seconds of its own and of everybody, whether
    it is stopped.
    """

    memory: float
    own: float
    everybody: float
    stopped: bool


def look(pid: int) -> Look:
    """The process ``pid`` now; zeros where it has ended."""
    fields = content(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 13:
        return Look(0.0, 0.0, 0.0, False)
    busy = content("/proc/stat").split("\n", 1)[0].split()[1:9]
    idle = int(busy[3]) + int(busy[4])
    everybody = (sum(map(int, busy)) - idle) / TICKS
    return Look(resident_mb(pid), (int(fields[11]) + int(fields[12])) / TICKS, everybody, fields[0] in "Tt")


def resident_mb(pid: int) -> float:
    """The resident memory of a process, without pages of mapped files; 0 when it has ended."""
    lines = content(f"/proc/{pid}/status").splitlines()
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon:")), 0.0)


def finished_rows(target: Path) -> int | None:
    """The rows of ``target`` that are safely written, None before the first."""
    try:
        return int(json.loads(state_path(target).read_text(encoding="utf-8"))["rows"])
    except (OSError, ValueError, KeyError):
        return None


class Windows:
    """Cuts what is seen of one process into windows of at least ``every`` seconds, which ``log`` gets."""

    def __init__(self, every: float, log: Callable[[dict[str, Any]], None]) -> None:
        self._every, self._log = every, log
        self._begun: tuple[int, float, Look] | None = None
        self._rows: int | None = None
        self._before: tuple[float, bool] | None = None
        self._peak = self._paused = 0.0
        self.paused = 0.0  # in and between windows

    def see(self, now: float, rows: int | None, seen: Look) -> None:
        """The process at ``now`` seconds; looks are LOOK seconds apart unless something is paused."""
        if self._before is not None:
            gap = now - self._before[0]
            lost = gap if gap > GAP or (seen.stopped and self._before[1]) else 0.0
            self._paused, self.paused = self._paused + lost, self.paused + lost
        self._before, self._peak = (now, seen.stopped), max(self._peak, seen.memory)
        if rows is None or rows == self._rows:
            return
        if self._rows is not None and self._begun is None:  # the first record may be that of an earlier process
            self._begin(now, rows, seen)
        elif self._begun is not None and now - self._begun[1] >= self._every:
            self._end(*self._begun, now, rows, seen)
            self._begin(now, rows, seen)
        self._rows = rows

    def _begin(self, now: float, rows: int, seen: Look) -> None:
        self._begun, self._peak, self._paused = (rows, now, seen), seen.memory, 0.0

    def _end(self, first: int, since: float, before: Look, now: float, rows: int, seen: Look) -> None:
        seconds = max(now - since - self._paused, 1e-9)
        own = seen.own - before.own
        self._log({
            "event": "window", "rows": rows - first, "until": rows, "seconds": round(seconds, 3),
            "paused": round(self._paused, 3), "peak_mb": round(self._peak, 1),
            "processors": round(own / seconds, 3),
            "others": round(max(0.0, seen.everybody - before.everybody - own) / (now - since), 3),
        })  # fmt: skip


def watch(arguments: list[str], target: Path, log: Path, every: float) -> None:
    """Run ``fastflow`` with ``arguments``, which write ``target``, to its end, and log it.

    Raises a FastflowError where it fails. When this process is interrupted or terminated, so is the other.
    """

    def write(event: dict[str, Any]) -> None:
        with log.open("a", encoding="utf-8") as out:
            out.write(json.dumps(event) + "\n")

    start = time.monotonic()
    write({"event": "start", "at": round(time.time()), "rows": finished_rows(target) or 0})
    windows, peak = Windows(every, write), 0.0
    with _terminable(), subprocess.Popen([sys.executable, "-m", __name__, *arguments]) as process:
        try:
            while process.poll() is None:
                seen = look(process.pid)
                windows.see(time.monotonic(), finished_rows(target), seen)
                peak = max(peak, seen.memory)
                time.sleep(LOOK)
        finally:
            while process.poll() is None:
                process.terminate()  # again, where Python lost the exception in a destructor
                with suppress(subprocess.TimeoutExpired):
                    process.wait(AGAIN)
            seconds = time.monotonic() - start
            write({
                "event": "stop", "seconds": round(seconds - windows.paused, 3), "paused": round(windows.paused, 3),
                "peak_mb": round(peak, 1), "code": process.returncode,
            })  # fmt: skip
    if process.returncode:
        raise FastflowError(f"fastflow embed ended with {process.returncode}; the same command continues it")


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is an interruption too, so that the other process does not stay alone."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> None:
    """``fastflow``, in the interpreter that runs this, which ends with the process that started it."""
    ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGTERM)
    from fastflow.cli import main as fastflow

    fastflow(sys.argv[1:])


if __name__ == "__main__":
    main()
