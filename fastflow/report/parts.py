"""The parts of a report's section: tables whose best values are marked, drawings, and lists to set side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HIGHEST, LOWEST = float("inf"), float("-inf")

Neighbour = tuple[str, str]  # cosine as printed, text


class Figure(str):
    """The text of a cell; ``interval`` stands below it."""

    interval = ""


class Best(Figure):
    """The text of a cell that the page sets in bold."""


@dataclass
class Columns:
    """Columns and rows of text; the first column is the row's name."""

    caption: str
    columns: list[str]
    rows: list[list[str]]


@dataclass
class Plot:
    """A drawing as SVG, and its description in words."""

    svg: str
    caption: str


@dataclass
class Section:
    """A titled part of the page; ``data`` is the entry of --json under ``id``.

    ``lists`` holds queries, each with the neighbours that every subject finds. ``folded``: for authors.
    """

    id: str
    title: str
    text: str
    data: Any
    tables: list[Columns] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    lists: list[tuple[str, list[tuple[str, list[Neighbour]]]]] = field(default_factory=list)
    folded: bool = False


@dataclass(frozen=True)
class Line:
    """One measure of every subject; ``toward`` is the best value there can be, ``note`` the row's one further cell.

    ``intervals``: (low, high) of the 95 % interval of subjects that have one.
    """

    name: str
    values: Mapping[str, float]
    toward: float = HIGHEST
    digits: int = 2
    note: str = ""
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def shown(self) -> dict[str, float]:
        """The values as the table prints them, so that no sentence counts a difference that no cell shows."""
        return {name: float(f"{value:.{self.digits}f}") for name, value in self.values.items()}

    def best(self) -> set[str]:
        """The subjects whose printed value is nearest to ``toward``: all of a tie, none if one stands alone."""
        off = {name: distance(value, self.toward) for name, value in self.shown().items() if value == value}
        least = min(off.values(), default=0.0)
        return {name for name, away in off.items() if away == least} if len(self.values) > 1 else set()

    def wins(self, own: str, other: str) -> bool:
        """Whether ``own`` is strictly nearer to ``toward`` than ``other``, as printed; False if one is undefined."""
        shown = self.shown()
        return distance(shown[own], self.toward) < distance(shown[other], self.toward)


def distance(value: float, toward: float) -> float:
    """How far ``value`` is from the best one; HIGHEST and LOWEST order all values."""
    if toward in (HIGHEST, LOWEST):
        return -value if toward == HIGHEST else value
    return round(abs(value - toward), 9)  # 0.3 - 0.2 and 0.4 - 0.3 are a tie


def comparison(caption: str, corner: str, lines: Sequence[Line], note: str = "", beside: bool = False) -> Columns:
    """A row for each line, a column for each subject in their order, the best of each row marked.

    ``note`` heads the lines' further cell: the last column, or with ``next to`` the one after the first subject's.
    """
    names = list(lines[0].values)
    columns, rows = [corner, *names], []
    for line in lines:
        best = line.best()
        rows.append([line.name])
        for name, value in line.values.items():
            cell = (Best if name in best else Figure)(figure(value, line.digits))
            if name in line.intervals:
                cell.interval = " to ".join(figure(end, 1) for end in line.intervals[name])
            rows[-1].append(cell)
    if note:
        at = 2 if beside else len(columns)
        columns.insert(at, note)
        for row, line in zip(rows, lines, strict=True):
            row.insert(at, line.note)
    return Columns(caption, columns, rows)


def figure(value: float, digits: int) -> str:
    """A number as a table prints it."""
    text = f"{value:.{digits}f}"
    return "undefined" if value != value else text if float(text) else text.lstrip("-")
