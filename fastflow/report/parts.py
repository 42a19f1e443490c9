"""Rows and sections of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HIGHEST, LOWEST = float("inf"), float("-inf")


@dataclass(frozen=True)
class Line:
    """A row: one measure of every subject (column), with 95 % ``intervals`` (low, high) and best value ``toward``."""

    name: str
    values: Mapping[str, float]
    toward: float = HIGHEST
    digits: int = 2
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def distances(self) -> dict[str, float]:
        """Compute how far each printed value is from the best; with HIGHEST and LOWEST the results only order them."""
        shown = {name: float(f"{x:.{self.digits}f}") for name, x in self.values.items()}
        if self.toward in (HIGHEST, LOWEST):
            return {name: -x if self.toward == HIGHEST else x for name, x in shown.items()}
        return {name: round(abs(x - self.toward), 9) for name, x in shown.items()}  # 0.3 - 0.2 and 0.4 - 0.3 are a tie

    def best(self) -> set[str]:
        """Find the subjects nearest to ``toward``; none if there is one."""
        off = {name: away for name, away in self.distances().items() if away == away}
        least = min(off.values(), default=0.0)
        return {name for name, away in off.items() if away == least} if len(self.values) > 1 else set()


@dataclass(frozen=True)
class Section:
    """Rows of the table, their explanation, an SVG with caption, and ``data`` of --json."""

    id: str
    title: str
    text: str
    data: Any
    lines: Sequence[Line] = ()
    plot: str = ""
    caption: str = ""


def format_figure(value: float, digits: int) -> str:
    """Format a number, never as minus zero."""
    text = f"{value:.{digits}f}"
    return "undefined" if value != value else text if float(text) else text.lstrip("-")
