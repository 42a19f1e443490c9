"""The torch backend of a static encoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastflow.backends.base import Backend, Floats
from fastflow.backends.torch import TorchCalibration, TorchCalibrator
from fastflow.errors import FastflowError
from fastflow.kernels.encoder.texts import apply_head
from fastflow.kernels.table.reference import WHOLE
from fastflow.model.kinds import Model
from fastflow.model.static.table import open_table
from fastflow.model.tokenizer.encode import Tokens


class TorchTable(TorchCalibrator, Backend):
    """PyTorch's EmbeddingBag on a CPU or GPU, float32 or float64."""

    name = "torch"
    dtypes = ("float32", "float64")

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        import torch

        self._torch = torch
        super().__init__(model, dtype, "cuda" if device == "cuda" else "cpu", threads)
        self._calibration = TorchCalibration(model, dtype, self.device, threads)
        self.arithmetic = f"PyTorch {torch.__version__}, {self.device}"
        table = open_table(model.encoder)
        try:
            vectors = table.vectors(np.arange(table.vocabulary), np.float32)
        except ValueError as error:
            raise FastflowError(str(error)) from error
        self._vectors = self._calibration.tensor(vectors)
        self._summed = torch.float64 if table.run < WHOLE else self._vectors.dtype
        weights = self._pooling.weights
        self._weights: Any = None if weights is None else self._calibration.tensor(weights)
        self._dropout = 0.0

    def train_mode(self, dropout: float | None = None) -> None:
        self._dropout = dropout or 0.0

    def pool(self, tokens: Tokens) -> Floats:
        self._calibration.mind_fork()
        tokens.check(len(self._vectors))
        torch = self._torch
        with torch.inference_mode():
            ids, starts = (torch.tensor(a, device=self.device) for a in (tokens.ids, tokens.offsets[:-1]))
            vectors = self._vectors[ids]
            if self._dropout:
                vectors = torch.nn.functional.dropout(vectors, self._dropout)
            if self._weights is None:
                return self._finished(self._sums(vectors, starts, "mean"))
            weights = self._weights[ids]
            sums, total = self._sums(vectors, starts, "sum", weights), self._sums(weights[:, None], starts, "sum")
            return self._finished(torch.where(total > 0, sums / total, sums))

    def _sums(self, vectors: Any, starts: Any, mode: str, weights: Any = None) -> Any:
        rows = self._torch.arange(len(vectors), device=self.device)
        bag = self._torch.nn.functional.embedding_bag
        weights = None if weights is None else weights.to(self._summed)
        sums = bag(rows, vectors.to(self._summed), starts.long(), mode=mode, per_sample_weights=weights)
        return sums.to(vectors.dtype)

    def _finished(self, pooled: Any) -> Floats:
        return apply_head(self._head, self._calibration.numpy(pooled))
