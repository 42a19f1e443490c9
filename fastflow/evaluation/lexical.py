"""How much similarity follows the surface: rank correlation with edit distance (Li et al. 2020, table 6)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.evaluation.evaluate import Pairs, spearman

WORD = re.compile(r"\w+|[^\w\s]")
SMALL = 4  # the paper looks closer at pairs that differ by at most four words


def levenshtein(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Least number of insertions, deletions and substitutions that make ``b`` of ``a``."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


def distances(pairs: Pairs) -> NDArray[np.int64]:
    """(n,) edit distance of each pair in lower-cased words and punctuation marks, not normalised by length.

    Of the distances in use it comes nearest to the paper's correlation with gold on STSb-dev: -24.04 against -24.61.
    """
    sides = ([WORD.findall(text.lower()) for text in side] for side in (pairs.first, pairs.second))
    return np.array([levenshtein(a, b) for a, b in zip(*sides, strict=True)], np.int64)


def bias(pairs: Pairs, edits: NDArray[np.int64], similarity: NDArray[Any]) -> dict[str, float]:
    """``edit``: Spearman x100 of edit distance and similarity, ``small_gold``: that of similarity and gold where the
    distance is at most SMALL; ``small_pairs`` is their number. NaN if one side is constant or nothing is left."""
    small = edits <= SMALL
    enough = small.sum() > 1
    return {
        "edit": 100 * spearman(edits, similarity),
        "small_gold": 100 * spearman(similarity[small], pairs.scores[small]) if enough else float("nan"),
        "small_pairs": int(small.sum()),
    }
