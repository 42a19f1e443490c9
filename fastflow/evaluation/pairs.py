"""Labelled pairs, paraphrase or not: the average precision of their cosines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.evaluation.analyses import Measure
from fastflow.evaluation.rows import read_rows
from fastflow.stages.vectors import compute_paired_cosine

LABELLED_PAIRS = "split\tlabel\t[votes]\tsentence1\tsentence2"


@dataclass(frozen=True)
class LabelledPairs:
    """n pairs; ``positive`` (n,) marks paraphrases; ``texts``: the distinct texts of both sides."""

    name: str
    positive: NDArray[np.bool_]
    texts: list[str]
    first: NDArray[np.int64]
    second: NDArray[np.int64]

    kind: ClassVar = "pairs"
    needs: ClassVar[dict[str, str]] = {}

    @property
    def size(self) -> dict[str, int]:
        return {"pairs": len(self.positive)}

    def measures(self, vectors: NDArray[Any]) -> dict[str, Measure]:
        """Make ``ap`` of ``vectors`` (len(texts), D)."""
        return {
            "ap": average_precision(self.positive, compute_paired_cosine(vectors[self.first], vectors[self.second]))
        }


def read_labelled_pairs(path: Path) -> LabelledPairs:
    """Read a TSV ``split label [votes] sentence1 sentence2``; label 1 for a paraphrase, else 0."""
    header, rows = read_rows(path, LABELLED_PAIRS)
    for number, row in enumerate(rows, 2):
        if len(row) != header.count("\t") + 1 or row[1] not in ("0", "1"):
            raise FastflowError(f"{path}, line {number}: must be {', '.join(header.split())}, with label 0 or 1")
    positive = np.array([row[1] == "1" for row in rows], bool)
    if positive.all() or not positive.any():
        raise FastflowError(
            f"{path}: holds {positive.sum()} pairs of label 1 and {(~positive).sum()} of label 0; average precision "
            "needs both"
        )
    where: dict[str, int] = {}
    sides = [np.array([where.setdefault(row[at], len(where)) for row in rows]) for at in (-2, -1)]
    return LabelledPairs(path.stem, positive, list(where), *sides)


def average_precision(positive: NDArray[np.bool_], similarity: NDArray[Any]) -> Measure:
    """Compute the average precision x100; equal similarities are one step."""
    order = np.argsort(-similarity, kind="stable")
    hits = positive[order].astype(float)
    ends = np.flatnonzero(np.append(np.diff(similarity[order]) != 0, True))

    def at(counts: NDArray[Any]) -> float:
        found, seen = np.cumsum(counts[order] * hits)[ends], np.cumsum(counts[order])[ends]
        if not found[-1]:
            return float("nan")
        return float(100 * np.sum(np.diff(found, prepend=0) * found / np.maximum(seen, 1)) / found[-1])

    return Measure(len(positive), at)
