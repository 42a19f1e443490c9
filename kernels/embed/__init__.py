"""Embed texts in one compiled call, by models without transformer layers."""

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
    from fastflow.kernels.tokens import CompiledTokenizer

MOST = 2**62  # limit of ids that cuts no text


class Texts:
    """Map texts to embeddings (B, N) float32: tokenize, cut at ``limit`` ids, pool, calibrate.

    ``pooling``: a table, or an encoder without layers. ``limit`` includes start and end ids, which texts get if
    ``special``; MOST: no limit. ``left_out``: an id removed after the cut.
    """

    def __init__(
        self, words: CompiledTokenizer, pooling: CpuTable | CpuEncoder, limit: int, special: bool = True,
        left_out: int | None = None,
    ) -> None:  # fmt: skip
        self._check = getattr(pooling, "check", None)  # of a table: raises if its file changed
        self.compiled = _cpu.Embedder(
            words.compiled, pooling.compiled, min(limit, MOST), special, -1 if left_out is None else left_out
        )

    def __call__(
        self, flow: CpuFlow, texts: Sequence[str], normalize: bool = False, truncate: int | None = None,
        pooled: NDArray[np.float32] | None = None,
    ) -> tuple[NDArray[np.float32], int]:  # fmt: skip
        """Return the embeddings (B, N), or their first ``truncate`` columns, and the number of cut texts.

        ``normalize`` divides rows by their L2 norms; ``pooled`` (B, D) receives the pooled vectors. Raises ValueError
        for half a surrogate pair, a text that a library must normalize, or an id without a vector; TypeError for other
        types than str.
        """
        out = np.empty((len(texts), flow.outputs if truncate is None else truncate), np.float32)
        cut = self.compiled.run(flow.compiled, list(texts), out, normalize, flow.threads, pooled)
        if cut < 0:
            raise ValueError("a text cannot be tokenized here, or has a token that the pooling has no row for")
        if self._check is not None:
            self._check()
        return out, cut
