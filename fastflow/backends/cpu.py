"""The cpu backend: compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.backends import Backend, Calibrator, Floats, FusedCall
from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.encoder import PLAIN, Outliers, PoolingSpec, fold_head
from fastflow.late import making
from fastflow.model import Model, VectorModel
from fastflow.model.encoder import encoder_shape, read_config
from fastflow.model.encoder.weights import MappedWeights
from fastflow.model.tokenizer import Tokenizer, Tokens
from fastflow.plan import fold
from fastflow.transforms.calibration import Stage

if TYPE_CHECKING:
    from fastflow.backends.precision import CachedTrial
    from fastflow.kernels.encoder import EncoderShape
    from fastflow.kernels.encoder.cpu import CpuEncoder
    from fastflow.kernels.flow.cpu import CpuFlow
    from fastflow.kernels.table import cpu as table_kernels
    from fastflow.model.encoder.int8 import Int8

LEAST_COSINE = 0.9995  # least cosine to float32 with which bfloat16 is the default


def auto_dtype(model: Model) -> tuple[str, str]:
    """Return the fastest default dtype for ``model`` on this machine, and the reason.

    int8 is never the default: its cost shows only with labelled texts.
    """
    from fastflow.kernels.encoder.cpu import multiplies_bfloat16

    if model.pooling.of_embeddings:
        return "float32", "dtype auto: float32, for the embedding layer alone is pooled, without products"
    found = model.manifest.get("least_cosine", {}).get("bfloat16")
    if not isinstance(found, float):
        return "float32", "dtype auto: float32, for nothing is recorded of this model in bfloat16"
    if not LEAST_COSINE <= found <= 1:
        return "float32", f"dtype auto: float32, for bfloat16's least cosine was {found}, under {LEAST_COSINE}"
    if not multiplies_bfloat16():
        return "float32", "dtype auto: float32, for this processor has no bfloat16 products that are faster"
    return "bfloat16", f"dtype auto: bfloat16, whose least cosine to float32 was {found} when the model was made"


CUTS = 8


class CpuCalibrator(Calibrator):
    """The folded calibration as one compiled call, and one more for each truncation.

    A row has the same bits in any batch, order and number of threads.
    """

    name = "cpu"
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    def _open_calibration(self, threads: int | None) -> None:
        self._cuts: dict[int, CpuFlow] = {}  # width -> the calibration cut to it, most recently used last
        try:
            self._flow = self._fold(self._calibrated.calibration, threads)
        except ValueError as error:  # FASTFLOW_ISA names instructions that this machine lacks
            raise UsageError(str(error)) from error

    def calibrate(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        flow, truncate = self._flow_for(truncate)
        return np.asarray(flow(np.ascontiguousarray(pooled, np.float32), normalize, truncate))

    def _fold(self, stages: Sequence[Stage], threads: int | None) -> CpuFlow:
        from fastflow.kernels.flow.cpu import CpuFlow

        return CpuFlow(fold(stages, self.pooled_dim), threads)

    def _flow_for(self, width: int | None) -> tuple[CpuFlow, int | None]:
        if width is None or self._order is None:
            return self._flow, width
        with making:
            found = self._cuts.pop(width, None)
            if found is None:
                found = self._fold([*self._calibrated.calibration, self._order.stage(width)], self._flow.threads)
            self._cuts[width] = found
            if len(self._cuts) > CUTS:
                del self._cuts[next(iter(self._cuts))]
        return found, None

    def _fuse(self, tokenizer: Tokenizer, pooling: CpuEncoder | table_kernels.CpuTable) -> FusedCall | None:
        if (words := tokenizer.compiled) is None:
            return None
        from fastflow.kernels.embed import Texts

        fused = Texts(words, pooling, tokenizer.max_length, tokenizer.ended, tokenizer.left_out)

        def embed(texts: Sequence[str], normalize: bool, truncate: int | None) -> tuple[Floats, int]:
            flow, keep = self._flow_for(truncate)
            return fused(flow, texts, normalize, keep)

        return embed


class CpuBackend(CpuCalibrator, Backend):
    """Encoder and pooling as one compiled call without padding; bfloat16 and int8 are dtypes of its matrix products."""

    dtypes = ("float32", "bfloat16", "int8")
    gated: ClassVar[bool] = True  # whether int8 is refused if it spoils embeddings
    int8: Int8 | None = None

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        from fastflow.kernels._cpu import trim

        super().__init__(model, dtype, "cpu", threads)
        config = read_config(model.encoder)
        shape = encoder_shape(config, model.encoder)
        weights = MappedWeights(model.encoder, config, shape, model.pairs)
        exact = model.pooling.of_embeddings
        tried = self._try_int8(model, weights) if dtype == "int8" and not exact else None
        self._encoder = self._pack(model, shape, weights, threads, tried)
        if tried is not None and not tried.holds():
            self._encoder = self._pack(model, shape, weights, threads, tried)
        # after the encoder, for folding leaves NumPy's threads busy
        self._open_calibration(threads)
        self.arithmetic = self._encoder.how
        trim()
        self.details.append(
            f"encoder and calibration compiled for {self._encoder.how}, {self._encoder.threads} threads"
        )
        if exact and dtype != "float32":
            self.details.append(
                f"dtype {dtype}: its vectors are float32's, for the embedding layer alone is pooled, without products"
            )
        if tried is not None:
            self.int8 = tried.conclude(self)
            if self.gated:
                self.details.append(tried.cost(self.int8))

    def _try_int8(self, model: Model, weights: MappedWeights) -> CachedTrial:
        from fastflow.backends.precision import CachedTrial
        from fastflow.kernels.encoder.cpu import choose, describe

        try:
            arithmetic = describe(*choose("int8"))
        except ValueError as error:
            raise UsageError(str(error)) from error
        return CachedTrial(model, weights, arithmetic)

    def _pack(
        self, model: Model, shape: EncoderShape, weights: MappedWeights, threads: int | None, tried: CachedTrial | None
    ) -> CpuEncoder:
        from fastflow.kernels.encoder.cpu import CpuEncoder, find_outlying, smooth
        from fastflow.kernels.stored import NotFinite

        found, how = None if tried is None else tried.found, model.pooling
        pooling = PoolingSpec(how.mode, how.layers, how.shares, how.weights, fold_head(model.head))
        try:
            outliers = Outliers(smooth(found.largest), find_outlying(found.terms)) if found else PLAIN
            return CpuEncoder(
                weights.stored, shape, pooling, self.dtype, threads, outliers=outliers, release=weights.release
            )
        except NotFinite as error:
            raise weights.not_finite(error.name, error.part) from None
        except ValueError as error:
            raise UsageError(str(error)) from error

    def fuse(self, tokenizer: Tokenizer) -> FusedCall | None:
        return self._fuse(tokenizer, self._encoder) if self._pooling.of_embeddings else None

    def pool(self, tokens: Tokens) -> Floats:
        try:
            pooled = np.asarray(self._encoder(tokens.ids, tokens.offsets, tokens.skip, tokens.seconds))
        except ValueError as error:
            raise FastflowError(str(error)) from error
        if self.int8 is not None:
            self.int8.restore(tokens, pooled)
        return pooled


class CpuTableBackend(CpuCalibrator, Backend):
    """A token table in the mapped file, pooled by compiled kernels."""

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        from fastflow.kernels.table.cpu import CpuTable as Kernels
        from fastflow.model.static.table import open_table

        super().__init__(model, dtype, "cpu", threads)
        table = open_table(model.encoder)
        try:
            self._table = Kernels(table, self._pooling.weights, threads)
        except ValueError as error:  # FASTFLOW_ISA names instructions that this machine lacks
            raise UsageError(str(error)) from error
        self._open_calibration(threads)
        if self._head:
            self._apply_head = self._open_head()
        self.arithmetic = self._table.isa
        self.details.append(
            f"token table of {len(table.rows)} rows in {table.rows.dtype} and calibration, compiled for "
            f"{self._table.isa}, {self._table.threads} threads"
        )

    def fuse(self, tokenizer: Tokenizer) -> FusedCall | None:
        return None if self._head else self._fuse(tokenizer, self._table)

    def pool(self, tokens: Tokens) -> Floats:
        try:
            pooled = self._table(tokens.ids, tokens.offsets)
        except ValueError as error:
            raise FastflowError(str(error)) from error
        return self._apply_head(pooled) if self._head else pooled

    def _open_head(self) -> Callable[[Floats], Floats]:
        """Import now: a fork while ``pool`` imports would leave the import lock locked."""
        from fastflow.kernels.encoder.texts import apply_head
        from fastflow.kernels.search.cpu import products

        def multiply(x: Floats, weight: Floats) -> Floats:  # BLAS would give other bits in another batch
            return products(np.ascontiguousarray(weight), np.ascontiguousarray(x), self._table.threads)

        return lambda pooled: apply_head(self._head, pooled, multiply)

    def pool_batches(self, tokens: Tokens, batches: Iterable[NDArray[np.int64]]) -> Floats:
        """Pool all texts in one call: a mean needs no padding."""
        return self.pool(tokens)


class CpuVectors(CpuCalibrator):
    """A calibration without an encoder, by compiled kernels."""

    def __init__(self, model: VectorModel, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, model.input_dim, dtype, "cpu")
        self._open_calibration(threads)
        self.details.append(f"calibration compiled for {self._flow.isa}, {self._flow.threads} threads")
