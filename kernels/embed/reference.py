"""The definition of a model without layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.flow.plan import Plan, execute
from fastflow.kernels.tokens.reference import WordPiece

Pool = Callable[[NDArray[np.int32], NDArray[np.int64]], NDArray[np.float64]]  # ids, offsets -> (B, D)


class Texts:
    """Texts -> embeddings (B, N), as ``cpu.Texts`` takes its arguments, except:

    Args:
        pooling: ids (N,) and offsets (B+1,) -> pooled vectors (B, D).
        plans: the folded calibration.
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
        """Return (embeddings (B, N), how many texts were cut), as ``cpu.Texts``."""
        ids, offsets, cut = self._words.tokenize(texts, self._limit, self._special)
        kept = np.ones(len(ids), bool) if self._left_out is None else ids != self._left_out
        before = np.concatenate([[0], np.cumsum(kept)])
        z = self._pooling(ids[kept], before[offsets].astype(np.int64))
        if pooled is not None:
            pooled[:] = z
        for plan in self._plans:
            z = execute(plan, z)
        return z / np.linalg.norm(z, axis=1, keepdims=True) if normalize else z, len(cut)
