"""Texts to embeddings of a model without layers, as one compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu

if TYPE_CHECKING:
    from fastflow.kernels.encoder.cpu import CpuEncoder
    from fastflow.kernels.table.cpu import CpuTable
    from fastflow.kernels.tokens.cpu import WordPiece

MOST = 2**62  # ids of a text without a limit


class Texts:
    """Texts -> embeddings (B, N): at most ``limit`` tokens of ``words``, pooled, then calibrated.

    The bits are the three compiled kernels', float32; a text's bits do not depend on other texts, order or threads.
    Safe from several threads, and after fork.

    Args:
        words: the tokenizer.
        pooling: a table, or an encoder whose pooled layers need no product.
        flow: the folded calibration.
        limit: the most ids of a text, end ids included; MOST for no limit.
        special: whether a text gets ids at its ends.
        left_out: an id that is removed after the cut; None: no id.

    Raises:
        ValueError: for steps that do not fit each other.
    """

    def __init__(
        self, words: WordPiece, pooling: CpuTable | CpuEncoder, limit: int, special: bool = True,
        left_out: int | None = None,
    ) -> None:  # fmt: skip
        self.threads, self._outputs = flow.threads, flow.outputs
        self._check = getattr(pooling, "check", None)  # of a table, whose rows are in a file
        self.compiled = _cpu.Embedder(
            words.compiled, pooling.compiled, min(limit, MOST), special, -1 if left_out is None else left_out
        )

    def __call__(
        self, texts: Sequence[str], normalize: bool = False, pooled: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], int]:
        """Return (embeddings (B, N), how many texts were cut); ``normalize`` divides a row by its L2 norm.

        ``flow`` is the folded calibration; ``normalize`` divides a row by its L2 norm, after truncation; ``pooled``
        (B, D), C-contiguous, receives the pooled vectors.

        Raises ValueError for a text with half a surrogate pair, or an id without a row in the pooling; TypeError for a
        text that is not str.
        """
        out = np.empty((len(texts), flow.outputs if truncate is None else truncate), np.float32)
        cut = self.compiled.run(flow.compiled, list(texts), out, normalize, flow.threads, pooled)
        if cut < 0:
            raise ValueError("a text holds half a surrogate pair, or a token that the pooling has no row for")
        if self._check is not None:
            self._check()
        return out, cut
