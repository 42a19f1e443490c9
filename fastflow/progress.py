"""A progress line on stderr with rate and time left; silent when stderr is not a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

EVERY = 0.2  # seconds between repaints


class Progress:
    """``with Progress("embed", total, "texts") as p: p.advance(n)``; ``total`` None when it is not known."""

    def __init__(self, label: str, total: int | None, unit: str, shown: bool = True) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._shown = shown and sys.stderr.isatty()
        self._done, self._start, self._painted = 0, time.monotonic(), 0.0

    def advance(self, count: int, note: str = "") -> None:
        """Count ``count`` more done and repaint if it is time."""
        self._done += count
        now = time.monotonic()
        if self._shown and (now - self._painted >= EVERY or self._done == self._total):
            self._painted = now
            sys.stderr.write("\r\x1b[K" + self.line(now - self._start) + (f"  {note}" if note else ""))
            sys.stderr.flush()

    def line(self, seconds: float) -> str:
        """The text of the line after ``seconds``: done, rate, time left."""
        rate = self._done / seconds if seconds > 0 else 0.0
        if self._total is None:
            return f"{self._label}: {self._done:,} {self._unit}, {rate:,.0f}/s"
        left = f", {_clock((self._total - self._done) / rate)} left" if rate else ""
        share = 100 * self._done / self._total if self._total else 100
        return f"{self._label}: {self._done:,}/{self._total:,} {self._unit} ({share:.0f} %), {rate:,.0f}/s{left}"

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\n")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
