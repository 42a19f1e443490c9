"""The backends of a static encoder: the mean of a text's rows of a token table, then its other modules."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.base import Backend, Floats, FusedCall
from fastflow.backends.cpu import CpuCalibration, CpuCalibrator
from fastflow.backends.reference import ReferenceCalibrator
from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.encoder.texts import apply_head
from fastflow.kernels.table import reference
from fastflow.model.kinds import Model
from fastflow.model.static.table import open_table
from fastflow.model.tokenizer.encode import Tokenizer, Tokens


class CpuTable(CpuCalibrator, Backend):
    """Compiled kernels on rows of the mapped file, float32.

    A text has the same bits in any batch, order and number of threads.
    """

    name = "cpu"
    dtypes = ("float32",)

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        from fastflow.kernels.table import cpu

        super().__init__(model, dtype, "cpu", threads)
        table = open_table(model.encoder)
        try:
            self._table = cpu.CpuTable(table, self._pooling.weights, threads)
        except ValueError as error:  # a named FASTFLOW_ISA that this machine lacks never falls back
            raise UsageError(str(error)) from error
        self._calibration = CpuCalibration(model, self.pooled_dim, threads)
        self.arithmetic = self._table.isa
        self.details.append(
            f"token table of {len(table.rows)} rows in {table.rows.dtype} and calibration, compiled for "
            f"{self._table.isa}, {self._table.threads} threads"
        )

    def fuse(self, tokenizer: Tokenizer) -> FusedCall | None:
        return None if self._head else self._calibration.fuse(tokenizer, self._table)

    def pool(self, tokens: Tokens) -> Floats:
        try:
            pooled = self._table(tokens.ids, tokens.offsets)
        except ValueError as error:
            raise FastflowError(str(error)) from error
        return apply_head(self._head, pooled, self._product)

    def _product(self, x: Floats, weight: Floats) -> Floats:
        """BLAS would give a row other bits in another batch."""
        from fastflow.kernels.search.cpu import products

        return products(np.ascontiguousarray(weight), np.ascontiguousarray(x), self._table.threads)

    def pool_batches(self, tokens: Tokens, batches: Iterable[NDArray[np.int64]]) -> Floats:
        """Pool ``tokens`` at once: a mean needs no padding."""
        return self.pool(tokens)


class ReferenceTable(ReferenceCalibrator, Backend):
    """The equations in NumPy, float32 or float64."""

    name = "reference"
    dtypes = ("float32", "float64")

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, dtype, "cpu", threads)
        if threads is not None:
            self.notes.append("threads: NumPy's BLAS decides")
        self._table = open_table(model.encoder)
        self._stages = [stage.astype(self.floats) for stage in model.calibration]

    def pool(self, tokens: Tokens) -> Floats:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                pooled = reference.pool(
                    self._table, tokens.ids, tokens.offsets, self._pooling.weights, self.floats.type
                )
        except ValueError as error:
            raise FastflowError(str(error)) from error
        return apply_head(self._head, pooled)
