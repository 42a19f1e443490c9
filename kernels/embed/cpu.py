"""Compiled calls from texts to embeddings of a model without layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu

if TYPE_CHECKING:
    from fastflow.kernels.encoder.cpu import CpuEncoder
    from fastflow.kernels.flow.cpu import CpuFlow
    from fastflow.kernels.table.cpu import CpuTable
    from fastflow.kernels.tokens.cpu import WordPiece

MOST = 2**62  # ids of a text without a limit


class Texts:
    """Texts -> embeddings (B, N): at most ``limit`` tokens of ``words``, pooled, then calibrated, with the bits of the
    three separate kernels.

    Args:
        words: the tokenizer.
        pooling: a table, or an encoder without layers.
        flow: the folded calibration.
        limit: the most ids of a text, end ids included; MOST for no limit.
        special: whether a text gets end ids.
        left_out: an id that is removed after the cut, or None.
    """

    def __init__(
        self, words: WordPiece, pooling: CpuTable | CpuEncoder, flow: CpuFlow, limit: int, special: bool = True,
        left_out: int | None = None,
    ) -> None:  # fmt: skip
        self.threads, self._outputs = flow.threads, flow.outputs
        self._check = getattr(pooling, "check", None)  # of a table, whose rows are in a file
        self.compiled = _cpu.Embedder(
            words.compiled, pooling.compiled, flow.compiled, min(limit, MOST), special,
            -1 if left_out is None else left_out,
        )  # fmt: skip

    def __call__(
        self, texts: Sequence[str], normalize: bool = False, pooled: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], int]:
        """Return (embeddings (B, N), how many texts were cut); ``normalize`` divides by the L2 norm.

        ``pooled`` (B, D) receives the pooled vectors. Raises ValueError for half a surrogate pair or an id without a
        row, TypeError for other types than str.
        """
        out = np.empty((len(texts), self._outputs), np.float32)
        cut = self.compiled.run(list(texts), out, normalize, self.threads, pooled)
        if cut < 0:
            raise ValueError("a text holds half a surrogate pair, or a token that the pooling has no row for")
        if self._check is not None:
            self._check()
        return out, cut
