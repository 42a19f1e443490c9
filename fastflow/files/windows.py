"""Windows of rows, and warnings about unsuited texts; bench/results/verdicts.md has their study."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.console import say
from fastflow.errors import UsageError
from fastflow.files.read import RowFault
from fastflow.files.read.sources import Row, Sources
from fastflow.files.read.texts import unit_of
from fastflow.files.run import Settings
from fastflow.options import cut_windows

if TYPE_CHECKING:
    from fastflow.model.manifest import Likelihood
    from fastflow.runtime import Runtime

FEWEST, SECONDS = 16, 1.0  # rows and time of a window that varies
FEWEST_JUDGED = 200  # texts: with fewer, chance can exceed the share
TIMES = 5  # times the share of the corpus is too many


class Window(NamedTuple):
    """Rows that are embedded together."""

    rows: list[Row]
    texts: list[str]


class Pace:
    """The rows of the next window: ``most``, or if it ``varies``, the rows of about SECONDS.

    Small windows show progress early and lose little at an interruption; on the CPU their bits are equal.
    """

    def __init__(self, most: int, varies: bool = False) -> None:
        self.steady, self._most = not varies, most
        self.size = min(FEWEST, most) if varies else most
        self._since = time.monotonic()

    def done(self, rows: int) -> None:
        seconds, self._since = time.monotonic() - self._since, time.monotonic()
        if not self.steady and rows >= self.size and seconds < SECONDS / 2:
            self.size = min(self._most, 2 * self.size)
        elif not self.steady and seconds > 2 * SECONDS:
            self.size = max(min(FEWEST, self._most), self.size // 2)


def windows(rows: Iterator[Row], runtime: Runtime, source: Sources, s: Settings, pace: Pace) -> Iterator[Window]:
    """Yield windows of ``pace.size`` rows, fewer if texts are long or a pipe waits.

    Raises a RowFault for a text that is too long.
    """
    for window in _cut_windows(rows, source, pace):
        texts = [one_text(row) for row in window]
        if s.truncate == "error" and len(cut := runtime.tokenizer([(s.prompt or "") + t for t in texts]).cut):
            _, path, record = window[cut[0]]
            raise RowFault(
                f"{path}, {unit_of(path, s.layout)} {record.line}: longer than the model's "
                f"{runtime.info()['max_length']} tokens",
                "--truncate right",
            )
        yield Window(window, texts)


def warn_if_unsuited(
    windows: Iterator[Window], runtime: Runtime, prompt: str | None, unlike: Unlike | None
) -> Iterator[Window]:
    """Yield ``windows``; warn if the first does not suit the vocabulary, and judge it by ``unlike``."""
    for number, window in enumerate(windows):
        if number == 0 and (warning := runtime.session.warn_of(window.texts)):
            say(f"fastflow: WARNING: {warning}")
        if number == 0 and unlike is not None:
            unlike.look(window.texts, runtime.log_prob(window.texts, prompt=prompt))
        yield window


class Unlike:
    """The share of texts that are unlike the corpus of the model."""

    def __init__(self, usual: Likelihood) -> None:
        self._usual, self.seen, self.below = usual, 0, 0

    def look(self, texts: Sequence[str], log_probs: NDArray[np.float64]) -> None:
        """Count the non-empty ``texts``, and those below the usual log-density."""
        judged = log_probs[np.array([bool(text.strip()) for text in texts], bool)]
        self.seen += len(judged)
        self.below += int((judged < self._usual.log_prob).sum())

    def warning(self) -> str | None:
        """Return the warning; None if the share is usual."""
        if self.seen < FEWEST_JUDGED or self.below < TIMES * self._usual.share * self.seen:
            return None
        return (
            f"{self.below / self.seen:.0%} of these texts are unlike the corpus the model was fitted on; consider --fit"
        )


def one_text(row: Row) -> str:
    """Return the text of a row; raises a UsageError for a pair."""
    if len(row.record.texts) != 1:
        raise UsageError(f"{row.path} holds pairs of texts; choose one with --text-field sentence1 or sentence2")
    return row.record.texts[0]


def characters(row: Row) -> int:
    """Count the characters of texts and kept strings."""
    return sum(len(value) for value in (*row.record.texts, *row.record.kept) if isinstance(value, str))


def _cut_windows(rows: Iterator[Row], source: Sources, pace: Pace) -> Iterator[list[Row]]:
    def there() -> Iterator[Row]:
        for row in rows:
            yield row
            if source.waits():
                return

    while window := next(cut_windows(there(), pace.size, characters), None):
        yield window
