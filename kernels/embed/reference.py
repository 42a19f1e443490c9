"""The definition of a model without layers: the ids of a text, their pooled vector, its calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.flow.plan import Plan, execute
from fastflow.kernels.tokens.reference import WordPiece

Pool = Callable[[NDArray[np.int32], NDArray[np.int64]], NDArray[np.float64]]  # ids, offsets -> (B, D)


class Texts:
    """Texts -> embeddings (B, N): tokens of ``words``, at most ``limit``, pooled, then the plans of the calibration.

    Args:
        words: the tokenizer.
        pooling: ids (N,) and offsets (B+1,) -> pooled vectors (B, D).
        plans: the folded calibration.
        limit: the ids of a text, those at its ends counted.
        special: whether a text gets ids at its ends.
        left_out: an id that is left out of a text after the cut; None: no id is.
    """

    def __init__(
        self, words: WordPiece, pooling: Pool, plans: Sequence[Plan], limit: int, special: bool = True,
        left_out: int | None = None,
    ) -> None:  # fmt: skip
        self._words, self._pooling, self._plans = words, pooling, plans
        self._limit, self._special, self._left_out = limit, special, left_out

    def __call__(
        self, texts: Sequence[str], normalize: bool = False, pooled: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64], int]:
        """(embeddings (B, N), the number of texts that were cut); ``normalize`` divides a row by its L2 norm.

        ``pooled`` (B, D) receives the pooled vectors.
        """
        ids, offsets, cut = self._words.tokenize(texts, self._limit, self._special)
        kept = np.ones(len(ids), bool) if self._left_out is None else ids != self._left_out
        before = np.concatenate([[0], np.cumsum(kept)])
        z = self._pooling(ids[kept], before[offsets].astype(np.int64))
        if pooled is not None:
            pooled[:] = z
        for plan in self._plans:
            z = execute(plan, z)
        return z / np.linalg.norm(z, axis=1, keepdims=True) if normalize else z, len(cut)
