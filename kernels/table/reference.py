"""A table of token vectors and the mean of its rows for a text's ids, in NumPy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.stored import CHANGED, was_changed

Array = NDArray[Any]
STORED = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int8))  # in the order of _cpu.ROWS_FLOAT ...
RUN, WHOLE = 16, 1 << 62
BLOCK = 1 << 14  # tokens with vectors in memory at a time


class Table(NamedTuple):
    """A vector for each of V ids: row ``mapping[id]`` of ``rows``, times ``scales[id]``.

    rows: (R, D) of a dtype in STORED. scales: (V,) float32 or None. mapping: (V,) int32 or None. run: tokens in a
    partial sum; partial sums are added with Kahan's compensation. WHOLE: one sum.
    """

    rows: Array
    scales: NDArray[np.float32] | None = None
    mapping: NDArray[np.int32] | None = None
    run: int = WHOLE

    @property
    def vocabulary(self) -> int:
        """V, the number of ids."""
        return len(self.rows if self.mapping is None else self.mapping)

    def vectors(self, ids: NDArray[np.integer[Any]], dtype: Any, weights: NDArray[np.float32] | None = None) -> Array:
        """Return (N, D): vectors of ``ids`` (N,) in ``dtype``, times ``weights`` (V,).

        Raises ValueError if the rows' file changed.
        """
        found: Array = self.rows[ids if self.mapping is None else self.mapping[ids]].astype(dtype)
        if was_changed(self.rows):
            raise ValueError(f"the token table cannot be read: {CHANGED}")
        factors = [each[ids].astype(dtype) for each in (weights, self.scales) if each is not None]
        return found * np.prod(factors, axis=0)[:, None] if factors else found


def pool(
    table: Table, ids: NDArray[np.int32], offsets: NDArray[np.int64], weights: NDArray[np.float32] | None, dtype: Any
) -> Array:
    """Return (B, D) in ``dtype``: means of texts ids[offsets[i]:offsets[i + 1]], with ``weights`` (V,) sum(w x) /
    sum(w).

    Raises ValueError, naming the text, for an unknown id.
    """
    check(ids, offsets, table.vocabulary)
    out = np.zeros((len(offsets) - 1, table.rows.shape[1]), dtype)
    for start, stop in _blocks(offsets):
        some = ids[offsets[start] : offsets[stop]]
        vectors = table.vectors(some, dtype, weights)
        counts = np.ones(len(some), dtype) if weights is None else weights[some].astype(dtype)
        for text in range(start, stop):
            rows = slice(*(offsets[text : text + 2] - offsets[start]))
            if rows.start < rows.stop:
                out[text] = _sum(vectors[rows], table.run) / np.add.accumulate(counts[rows])[-1]
    return out


def _sum(vectors: Array, run: int) -> Array:
    whole = excess = np.zeros_like(vectors[0])
    for i in range(0, len(vectors), min(run, len(vectors))):
        more = np.add.reduce(vectors[i : i + run], axis=0) - excess
        whole, before = whole + more, whole
        excess = (whole - before) - more
    return whole


def _blocks(offsets: NDArray[np.int64]) -> list[tuple[int, int]]:
    cuts, texts = [0], len(offsets) - 1
    while cuts[-1] < texts:
        end = int(np.searchsorted(offsets, offsets[cuts[-1]] + BLOCK, side="right")) - 1
        cuts.append(max(end, cuts[-1] + 1))
    return list(pairwise(cuts))


def check(ids: NDArray[np.int32], offsets: NDArray[np.int64], vocabulary: int) -> None:
    """Raise ValueError, naming the text, for an id outside 0 to ``vocabulary`` - 1."""
    bad = np.flatnonzero((ids < 0) | (ids >= vocabulary))
    if len(bad):
        text = int(np.searchsorted(offsets, bad[0], side="right")) - 1
        raise ValueError(f"text {text} has the id {ids[bad[0]]}, and the table has vectors of 0 to {vocabulary - 1}")
