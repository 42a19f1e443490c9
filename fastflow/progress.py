"""Progress on stderr: one repainted line in a terminal or notebook, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

if TYPE_CHECKING:
    from numpy.typing import NDArray

EVERY = 0.2  # seconds between repaints
PLAIN_EVERY = 10.0  # seconds between lines if nothing can be repainted
FIRST, MOST, PART_S = 64, 4096, 0.5  # ``in_parts``: fewest and most texts of a part, and its seconds


def format_count(count: int, unit: str) -> str:
    """Format a count, as "1 text" or "2 texts"; ``unit`` is the plural."""
    return f"{count:,} {unit.removesuffix('s') if count == 1 else unit}"


class Progress:
    """A progress line of ``total`` items; None: unknown.

    ``about``: the total is an estimate; ``done``: items finished by an earlier run; ``clock`` returns seconds.
    """

    painted: ClassVar[Progress | None] = None  # its line is in the terminal now

    def __init__(
        self,
        label: str,
        total: int | None,
        unit: str,
        shown: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        done: int = 0,
        about: bool = False,
    ) -> None:
        self._label, self._total, self._unit, self._clock, self._about = label, total, unit, clock, about
        self._stream = (sys.stderr if stream is None else stream) if shown else None
        self._repaints = self._stream is not None and repaints(self._stream)
        self._done, self._within, self._before, self._start, self._note = done, 0, done, clock(), ""
        self._every = EVERY if self._repaints else PLAIN_EVERY
        self._due = self._start + (0.0 if self._repaints else PLAIN_EVERY)
        self._width, self._written, self._written_at = 0, False, -1

    def begin(self) -> None:
        self._start = self._clock()

    def advance(self, count: int, note: str = "") -> None:
        self._done, self._within, self._note = self._done + count, 0, note
        self._show()

    def within(self, count: int) -> None:
        """Show ``count`` more items, which the next ``advance`` counts again."""
        self._within += count
        self._show()

    def _show(self) -> None:
        now = self._clock()
        if now >= self._due or (self._repaints and self._done == self._total):
            self._write(now)

    def line(self, seconds: float) -> str:
        done = self._done + self._within
        rate = (done - self._before) / seconds if seconds > 0 else 0.0
        if self._total is None or (self._about and done > self._total):
            return f"{self._label}: {format_count(done, self._unit)}, {rate:,.0f}/s"
        left = f", {_clock((self._total - done) / rate)} left" if rate else ""
        share = 100 * done / self._total if self._total else 100
        unit = "about " * self._about + format_count(self._total, self._unit)
        return f"{self._label}: {done:,} of {unit} ({share:.0f} %), {rate:,.0f}/s{left}"

    def _write(self, now: float) -> None:
        if self._stream is None:
            return
        line = self.line(now - self._start) + (f"  {self._note}" if self._note else "")
        if self._repaints:  # blanks clear the old line: a notebook has no code for it
            self._stream.write("\r" + line.ljust(self._width))
            Progress.painted = self
        else:
            self._stream.write(line + "\n")
        self._stream.flush()
        self._width, self._written, self._written_at, self._due = len(line), True, self._done, now + self._every

    def __enter__(self) -> Progress:
        if self._repaints:
            self._write(self._clock())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is None or not self._written:
            return
        if self._about and error is None:
            self._total, self._about, self._written_at = self._done, False, -1
        if self._written_at != self._done:
            self._write(self._clock())
        if self._repaints:
            self._stream.write("\n")
            self._stream.flush()
        Progress.painted = None

    def wipe(self) -> None:
        if self._stream is not None and self._repaints:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()


def in_parts(call: Callable[[Sequence[str]], NDArray[Any]], texts: Sequence[str], count: Callable[[int], None]) -> Any:
    """Return the rows of ``call(texts)``, computed in parts of half a second; call ``count(n)`` after n texts."""
    import numpy as np

    found, start, size = [], 0, FIRST
    while start < len(texts):
        part, began = texts[start : start + size], time.monotonic()
        found.append(call(part))
        count(len(part))
        start += size
        if time.monotonic() - began < PART_S:
            size = min(2 * size, MOST)
    return np.concatenate(found) if found else call(texts)


def repaints(stream: TextIO) -> bool:
    """Whether a carriage return moves to the start of the line."""
    notebook = "ipykernel" in sys.modules and type(stream).__module__.split(".")[0] == "ipykernel"
    return notebook or stream.isatty()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
