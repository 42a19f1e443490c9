"""Report a fit: lines and progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fastflow.console import say
from fastflow.progress import Progress

WARNING = "WARNING: "  # begins a line that --quiet shows


@dataclass(frozen=True)
class Voice:
    """``say`` takes a fit's lines; ``bars``: standard error shows progress bars."""

    say: Callable[[str], None] = say
    bars: bool = True

    def progress(self, label: str, total: int | None, unit: str, done: int = 0, about: bool = False) -> Progress:
        return Progress(label, total, unit, shown=self.bars, done=done, about=about)

    def count(self, label: str, texts: Iterable[str]) -> Iterator[str]:
        with self.progress(label, None, "texts") as progress:
            for text in texts:
                yield text
                progress.advance(1)


COMMAND = Voice()
WARNINGS = Voice(lambda line: say(line) if line.startswith(WARNING) else None, bars=False)
SILENT = Voice(lambda line: None, bars=False)
