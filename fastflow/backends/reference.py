"""The reference backend: the equations in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fastflow.backends import Backend, Calibrator, Floats
from fastflow.errors import FastflowError
from fastflow.kernels.encoder import Head, reference, texts
from fastflow.model import Calibrated, Model, VectorModel
from fastflow.model.encoder import encoder_shape, read_config
from fastflow.model.encoder.weights import load_weights
from fastflow.model.tokenizer import Tokens
from fastflow.transforms import calibration
from fastflow.transforms.calibration import Stage
from fastflow.transforms.pooling import Pooling
from fastflow.transforms.vectors import shorten


def pool_states(hidden: Mapping[int, Floats], tokens: Tokens, how: Pooling, head: Head) -> Floats:
    """Pool hidden states {layer: (N, D)} -> (B, P), then apply ``head``; not for the mode pooler."""
    weights = None if how.weights is None else how.weights[tokens.ids]
    with np.errstate(over="ignore", invalid="ignore"):
        parts = []
        for mode in how.parts:
            layers = [texts.pool(hidden[i], tokens.offsets, mode, weights, tokens.skip) for i in how.layers]
            shared = [share * x for share, x in zip(how.factors, layers, strict=True)]
            parts.append(np.sum(shared, axis=0, dtype=layers[0].dtype))
        return texts.apply_head(head, np.concatenate(parts, axis=1))


class ReferenceCalibrator(Calibrator):
    """The calibration, stage by stage in NumPy."""

    name = "reference"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    _stages: list[Stage]

    def _open_stages(self, model: Calibrated, threads: int | None) -> None:
        if threads is not None:
            self.notes.append("threads: NumPy's BLAS decides")
        self._stages = [stage.astype(self.floats) for stage in model.calibration]

    def calibrate(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            z = np.asarray(calibration.apply(self._stages, pooled.astype(self.floats, copy=False)))
            return shorten(z, normalize, truncate, self._order)


class ReferenceBackend(ReferenceCalibrator, Backend):
    """The encoder in NumPy: others are compared with it, and it runs without compiled kernels."""

    watch: reference.Watch | None = None

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, dtype, "cpu", threads)
        config = read_config(model.encoder)
        self._shape = encoder_shape(config, model.encoder)
        self._weights = self.load(model, config)
        self._open_stages(model, threads)

    def load(self, model: Model, config: dict[str, Any]) -> Mapping[str, Any]:
        return load_weights(model.encoder, config, self._shape, self.floats, model.pairs)

    def pool(self, tokens: Tokens) -> Floats:
        return self.pooling(self.hidden_states(tokens), tokens)

    def hidden_states(self, tokens: Tokens) -> dict[int, Floats]:
        """Return the states of the pooled layers, {layer: (N, D)}."""
        tokens.check(len(self._weights["word"]))
        layers = self._pooling.layers
        with np.errstate(over="ignore", invalid="ignore"):
            return reference.encode(
                self._weights, tokens.ids, tokens.offsets, self._shape, layers, self.floats, self.watch, tokens.seconds
            )

    def pooling(self, hidden: dict[int, Floats], tokens: Tokens) -> Floats:
        if self._pooling.mode == "pooler":
            first = reference.pool_first(hidden[self._pooling.layers[0]], tokens.offsets)
            return reference.pooler(first, self._weights)
        return pool_states(hidden, tokens, self._pooling, self._head)


class ReferenceTable(ReferenceCalibrator, Backend):
    """A token table in NumPy."""

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, dtype, "cpu", threads)
        from fastflow.model.static.table import open_table

        self._table = open_table(model.encoder)
        self._open_stages(model, threads)

    def pool(self, tokens: Tokens) -> Floats:
        from fastflow.kernels.table import reference as table_reference

        try:
            with np.errstate(over="ignore", invalid="ignore"):
                pooled = table_reference.pool(
                    self._table, tokens.ids, tokens.offsets, self._pooling.weights, self.floats.type
                )
        except ValueError as error:
            raise FastflowError(str(error)) from error
        return texts.apply_head(self._head, pooled)


class ReferenceVectors(ReferenceCalibrator):
    """A calibration without an encoder in NumPy."""

    def __init__(self, model: VectorModel, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, model.input_dim, dtype, "cpu")
        self._open_stages(model, threads)
