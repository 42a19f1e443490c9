"""Texts that are embedded together: windows of the input's rows, checked, and looked at for a warning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from fastflow.console import say
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.sources import Row, Sources
from fastflow.files.read.texts import unit_of
from fastflow.files.settings import Settings
from fastflow.streaming import windowed

if TYPE_CHECKING:
    from fastflow.files.unlike import Unlike
    from fastflow.runtime import Runtime


class Window(NamedTuple):
    """Rows that are embedded together; ``share`` of the inputs' bytes had been read with the last."""

    rows: list[Row]
    texts: list[str]
    share: float | None


def windows(rows: Iterator[Row], runtime: Runtime, source: Sources, s: Settings, size: int) -> Iterator[Window]:
    """``size`` rows after another, fewer if they are long or a pipe has no more for now; raises for a text that is too
    long, if that is an error.
    """
    for window in _windowed(rows, source, size):
        texts = [one_text(row) for row in window]
        if s.truncate == "error" and len(cut := runtime.tokenizer([(s.prompt or "") + t for t in texts]).cut):
            _, path, record = window[cut[0]]
            raise FastflowError(
                f"{path}, {unit_of(path, s.layout)} {record.line}: longer than the model's "
                f"{runtime.info()['max_length']} tokens"
            )
        yield Window(window, texts, source.share())


def looked_at(
    windows: Iterator[Window], runtime: Runtime, prompt: str | None, unlike: Unlike | None
) -> Iterator[Window]:
    """``windows``, with a warning if the texts of the first do not suit the encoder's vocabulary; ``unlike`` takes a
    look at the first too, where log-densities cost another pass of the encoder.
    """
    for number, window in enumerate(windows):
        if number == 0 and (warning := runtime._opened.unsuited(window.texts)):
            say(f"fastflow: WARNING: {warning}")
        if number == 0 and unlike is not None:
            unlike.look(window.texts, runtime.log_prob(window.texts, prompt=prompt))
        yield window


def one_text(row: Row) -> str:
    """The text of a row; raises a UsageError for a pair."""
    if len(row.record.texts) != 1:
        raise UsageError(f"{row.path} holds pairs of texts; choose one with --text-field sentence1 or sentence2")
    return row.record.texts[0]


def characters(row: Row) -> int:
    """The characters of a row that are held: of its texts, and of strings to keep."""
    return sum(len(value) for value in (*row.record.texts, *row.record.kept) if isinstance(value, str))


def _windowed(rows: Iterator[Row], source: Sources, size: int) -> Iterator[list[Row]]:
    """``windowed``, of the rows that are there: a window ends before its reader waits."""
    ready = True
    while ready:
        ready = False

        def there() -> Iterator[Row]:
            nonlocal ready
            for row in rows:
                yield row
                if source.waits():
                    ready = True
                    return

        yield from windowed(there(), size, characters)
