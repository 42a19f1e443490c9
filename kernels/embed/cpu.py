"""Texts to embeddings of a model without layers, as one compiled call."""

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
    """Texts -> embeddings (B, N): tokens of ``words``, at most ``limit``, pooled, then the plans of the calibration.

    The steps are those of the three compiled kernels, and so are the bits, float32; a text has the same ones whatever
    the other texts, their order and the number of threads. Safe from several Python threads at once, and after fork.

    Args:
        words: the tokenizer.
        pooling: a table, or an encoder whose pooled layers need no product.
        flow: the folded calibration.
        limit: the ids of a text, those at its ends counted; MOST for no limit.
        special: whether a text gets ids at its ends.
        left_out: an id that is left out of a text after the cut; None: no id is.

    Raises:
        ValueError: for steps that do not fit each other.
    """

    def __init__(
        self, words: WordPiece, pooling: CpuTable | CpuEncoder, flow: CpuFlow, limit: int, special: bool = True,
        left_out: int | None = None,
    ) -> None:  # fmt: skip
        self.threads, self._outputs = flow.threads, flow.outputs
        self._check = getattr(pooling, "check", None)  # of a table, whose rows lie in a file
        self.compiled = _cpu.Embedder(
            words.compiled, pooling.compiled, flow.compiled, min(limit, MOST), special,
            -1 if left_out is None else left_out,
        )  # fmt: skip

    def __call__(
        self, texts: Sequence[str], normalize: bool = False, pooled: NDArray[np.float32] | None = None
    ) -> tuple[NDArray[np.float32], int]:
        """(embeddings (B, N), the number of texts that were cut); ``normalize`` divides a row by its L2 norm.

        ``pooled`` (B, D), C-contiguous, receives the pooled vectors.

        Raises ValueError if a text has half a surrogate pair, or an id that the pooling has no row for; TypeError for
        what is no text.
        """
        out = np.empty((len(texts), self._outputs), np.float32)
        cut = self.compiled.run(list(texts), out, normalize, self.threads, pooled)
        if cut < 0:
            raise ValueError("a text holds half a surrogate pair, or a token that the pooling has no row for")
        if self._check is not None:
            self._check()
        return out, cut
