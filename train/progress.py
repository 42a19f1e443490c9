"""Where the lines of a fit go: to standard error as from the command, to a function of the caller, or nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fastflow.console import say
from fastflow.progress import Progress

WARNING = "WARNING: "  # the beginning of a line that --quiet leaves


@dataclass(frozen=True)
class Voice:
    """``say`` takes every line for the person; ``bars``: progress is shown on standard error."""

    say: Callable[[str], None] = say
    bars: bool = True

    def progress(self, label: str, total: int | None, unit: str, done: int = 0, about: bool = False) -> Progress:
        """A Progress that is shown only with ``bars``; the arguments are those of Progress."""
        return Progress(label, total, unit, shown=self.bars, done=done, about=about)

    def counting(self, label: str, texts: Iterable[str]) -> Iterator[str]:
        """``texts``, counted on the way."""
        with self.progress(label, None, "texts") as progress:
            for text in texts:
                yield text
                progress.advance(1)


def loading() -> None:
    """Tell a terminal why nothing is counted yet."""
    if sys.stderr is not None and sys.stderr.isatty():
        say("fastflow: PyTorch is loaded first, which takes a few seconds")


COMMAND = Voice()
WARNINGS = Voice(lambda line: say(line) if line.startswith(WARNING) else None, bars=False)
SILENT = Voice(lambda line: None, bars=False)
