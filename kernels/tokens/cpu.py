"""WordPiece with BERT's normalizer, compiled."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu
from fastflow.kernels._cpu import Vocabulary as Vocabulary
from fastflow.kernels.processor import resolve_threads
from fastflow.kernels.tokens.rules import Rules


class WordPiece:
    """A tokenizer of ``vocabulary`` by ``rules``; raises ValueError as ``Rules.check``."""

    def __init__(self, vocabulary: Vocabulary, rules: Rules) -> None:
        unknown = rules.check(vocabulary.get)
        added = sorted(
            ((content.encode(), number) for content, number in rules.added), key=lambda token: -len(token[0])
        )
        ends = (np.array(ids, np.int32) for ids in (rules.before, rules.after))
        whole = Vocabulary(json.dumps(dict(rules.whole)).encode()) if rules.whole else None
        self.compiled = _cpu.WordPiece(vocabulary, rules.steps, unknown, rules.longest, added, *ends, whole)

    def tokenize(
        self, texts: Sequence[str], limit: int, special: bool = True, threads: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return (ids (N,), offsets (B+1,), numbers of cut texts): text i has ids[offsets[i]:offsets[i+1]].

        ``limit``: the most ids of a text, with start and end ids if ``special``. Raises ValueError for half a surrogate
        pair or too low a limit, TypeError for other types than str.
        """
        ids, offsets, states = self.compiled.tokenize(list(texts), limit, special, resolve_threads(threads))
        if (half := np.flatnonzero(states == _cpu.HALF)).size:
            raise ValueError(f"text {half[0]} holds half a surrogate pair")
        return ids, offsets, np.flatnonzero(states == _cpu.CUT)
