"""Find each sentence in other languages by cosine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.evaluation.analyses import Measure, mean_of
from fastflow.evaluation.retrieval import compute_cosines
from fastflow.evaluation.rows import read_lines, without_suffix
from fastflow.stages.vectors import shorten


@dataclass(frozen=True)
class Bitext:
    """L languages of n lines, line i the same sentence in each; ``rows`` (L, n): the row of each line in ``texts``."""

    languages: list[str]
    texts: list[str]
    rows: NDArray[np.int64]

    name: ClassVar = "bitext"
    kind: ClassVar = "bitext"

    @property
    def size(self) -> dict[str, int]:
        return {"languages": len(self.languages), "lines": self.rows.shape[1]}

    def measures(self, vectors: NDArray[Any]) -> dict[str, Measure]:
        """Measure the first language with each other; ``accuracy`` averages all ways."""
        x, (first, *others) = shorten(vectors, True, None), self.rows
        ways = np.array([[find_right(x, *pair) for pair in ((first, it), (it, first))] for it in others])
        pivot, *names = self.languages
        if len(names) == 1:
            found = {f"{pivot} to {names[0]}": mean_of(ways[0, 0]), f"{names[0]} to {pivot}": mean_of(ways[0, 1])}
        else:
            found = {f"{pivot} and {it}": mean_of(both.mean(axis=0)) for it, both in zip(names, ways, strict=True)}
        return {"accuracy": mean_of(ways.mean(axis=(0, 1))), **found}

    def compare_all(self, vectors: NDArray[Any]) -> dict[str, dict[str, float]]:
        """Return {from: {to: accuracy x100}} of every ordered pair of languages."""
        x, pairs = shorten(vectors, True, None), list(zip(self.languages, self.rows, strict=True))
        return {
            name: {to: round(100 * float(find_right(x, rows, own).mean()), 2) for to, own in pairs if to != name}
            for name, rows in pairs
        }


def find_right(x: NDArray[Any], queries: NDArray[np.int64], documents: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark each line (n,) if its nearest line, the first of equal cosines, has the same line's text.

    ``x`` (T, D): vectors of length 1; ``queries``, ``documents`` (n,): the row of each line.
    """
    distinct: dict[bytes, int] = {}  # products of equal vectors may differ by a rounding
    for row in documents:
        distinct.setdefault(x[row].tobytes(), row)
    kept = np.array(list(distinct.values()))
    nearest = np.concatenate([block.argmax(axis=1) for block in compute_cosines(x[queries], x[kept])])
    return np.asarray(kept[nearest] == documents)


def read_bitext(paths: Sequence[Path]) -> Bitext:
    """Read text files; a language is the name of its file without suffix."""
    if len(paths) < 2:
        raise FastflowError(
            f"{paths[0]}: is one .txt file of sentences; name another with the same sentences in another language, or "
            "end the name of a task with .tsv"
        )
    places: dict[str, int] = {}
    languages: dict[str, list[int]] = {}
    for path in paths:
        name = without_suffix(path).stem
        if name in languages:
            raise FastflowError(f"{path}: another file is called {name} as well; rename one of them")
        lines = read_lines(path)
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise FastflowError(f"{path}, line {number}: is empty; fill it, or remove this line from every file")
        languages[name] = [places.setdefault(line, len(places)) for line in lines]
        if len(lines) != len(first := next(iter(languages.values()))):
            longer, shorter = (path, paths[0]) if len(lines) > len(first) else (paths[0], path)
            raise FastflowError(
                f"{longer}, line {min(len(lines), len(first)) + 1}: {shorter} has no such line; give files with the "
                "same sentence on the same line"
            )
    if len(first) < 2:
        raise FastflowError(f"{paths[0]}: holds one line; accuracy needs at least two")
    return Bitext(list(languages), list(places), np.array(list(languages.values())))


def format_ways(found: dict[str, dict[str, float]]) -> str:
    """Format the result of ``compare_all`` as a table."""
    first, width = max(map(len, ["from\\to", *found])), max(5, *map(len, found)) + 1
    lines = ["from\\to".ljust(first) + "".join(f"{to:>{width}}" for to in found)]
    for name, row in found.items():
        cells = (f"{row[to]:.1f}" if to in row else "-" for to in found)
        lines.append(name.ljust(first) + "".join(f"{cell:>{width}}" for cell in cells))
    return "\n".join(lines)
