"""Models without transformer layers, in NumPy: the definition of ``kernels.embed``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.flow import Plan, execute
from fastflow.kernels.tokens.reference import WordPiece

Pool = Callable[[NDArray[np.int32], NDArray[np.int64]], NDArray[np.float64]]  # ids, offsets -> (B, D)


class Texts:
    """Map texts to embeddings (B, N), as ``embed.Texts``. ``pooling``: ids (N,), offsets (B+1,) -> (B, D)."""

    def __init__(
        self, words: WordPiece, pooling: Pool, limit: int, special: bool = True, left_out: int | None = None
    ) -> None:
        self._words, self._pooling, self._limit = words, pooling, limit
        self._special, self._left_out = special, left_out

    def __call__(
        self, plans: Sequence[Plan], texts: Sequence[str], normalize: bool = False, truncate: int | None = None,
        pooled: NDArray[np.float64] | None = None,
    ) -> tuple[NDArray[np.float64], int]:  # fmt: skip
        """Define ``embed.Texts.__call__``."""
        ids, offsets, cut = self._words.tokenize(texts, self._limit, self._special)
        kept = np.ones(len(ids), bool) if self._left_out is None else ids != self._left_out
        before = np.concatenate([[0], np.cumsum(kept)])
        z = self._pooling(ids[kept], before[offsets].astype(np.int64))
        if pooled is not None:
            pooled[:] = z
        for plan in plans:
            z = execute(plan, z)
        z = z[:, :truncate]
        return z / np.linalg.norm(z, axis=1, keepdims=True) if normalize else z, len(cut)
