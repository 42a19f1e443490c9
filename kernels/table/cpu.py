"""The compiled mean of a table's rows for a text's ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import processor
from fastflow.kernels._cpu import Table as Compiled
from fastflow.kernels._cpu import isas
from fastflow.kernels.processor import resolve_threads
from fastflow.kernels.stored import CHANGED, raw, was_changed
from fastflow.kernels.table.reference import STORED, Table


class CpuTable:
    """Map concatenated texts to means of table rows (B, D) float32, summed in the order of the ids.

    A text's bits do not depend on other texts or threads. Safe in threads and after fork. Rows are not
    copied. ``weights``: (V,) float32; None: all 1. Raises ValueError for arguments that cannot run.
    """

    def __init__(
        self, table: Table, weights: NDArray[np.float32] | None = None, threads: int | None = None,
        isa: str | None = None,
    ) -> None:  # fmt: skip
        self.threads = resolve_threads(threads)
        self.isa = processor.isa(isa)
        self._rows, self._width = table.rows, table.rows.shape[1]
        self.compiled = Compiled(
            raw(table.rows), STORED.index(table.rows.dtype), self._width, table.scales, weights, table.mapping,
            table.run, isas()[self.isa][0],
        )  # fmt: skip

    def __call__(self, ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return (B, D): means of texts ids[offsets[i]:offsets[i + 1]]; 0 for a text without ids.

        Raises ValueError, naming the text, for an unknown id, and as ``check``.
        """
        out = np.empty((len(offsets) - 1, self._width), np.float32)
        self.compiled.run(ids, offsets, out, self.threads)
        self.check()
        return out

    def check(self) -> None:
        """Raise ValueError if the rows' file was changed."""
        if was_changed(self._rows):
            raise ValueError(f"the token table cannot be read: {CHANGED}")
