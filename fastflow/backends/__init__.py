"""The interface of every backend: tokens -> pooled vectors -> embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.model import Calibrated, Model
from fastflow.model.tokenizer import Tokenizer, Tokens

Floats = NDArray[np.floating[Any]]
# (texts, normalize, truncate) -> (embeddings (B, D'), number of texts cut)
FusedCall = Callable[..., tuple[Floats, int]]


class Calibrator(ABC):
    """A calibration on one device: (B, D) -> (B, D'), float32, or float64 if ``dtype`` is float64."""

    name: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]]

    def __init__(self, model: Calibrated, pooled_dim: int, dtype: str, device: str) -> None:
        self.dtype, self.device, self.pooled_dim = dtype, device, pooled_dim
        self.notes: list[str] = []
        self.details: list[str] = []
        self.arithmetic = ""  # decides a vector's bits together with name and dtype
        self._order, self._calibrated = model.truncation, model

    @abstractmethod
    def calibrate(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        """Calibrate (B, D) -> (B, D'), cut to ``truncate`` columns, then L2-normalised."""

    @property
    def floats(self) -> np.dtype[Any]:
        return np.dtype(np.float64 if self.dtype == "float64" else np.float32)


class Backend(Calibrator):
    """A model that embeds texts on one device."""

    batch_tokens: ClassVar[int] = 8192  # tokens of a batch that keep BLAS busy in little memory
    overlaps: ClassVar[bool] = False

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        super().__init__(model, model.pooled_dim, dtype, device)
        self._pooling, self._head = model.pooling, model.head

    def fuse(self, tokenizer: Tokenizer) -> FusedCall | None:
        """Return one compiled call for all steps, with the same bits, or None."""
        return None

    @abstractmethod
    def pool(self, tokens: Tokens) -> Floats:
        """Encode and pool one batch to (B, D), with the modules after the pooling."""

    def pool_batches(self, tokens: Tokens, batches: Iterable[NDArray[np.int64]]) -> Floats:
        """Pool B texts to (B, D); ``batches`` hold every text number once."""
        out = np.empty((len(tokens.offsets) - 1, self.pooled_dim), self.floats)
        for rows in batches:
            out[rows] = self.pool(tokens.select(rows))
        return out

    def embed(
        self, tokens: Tokens, batches: Iterable[NDArray[np.int64]], normalize: bool = False, truncate: int | None = None
    ) -> Floats:
        return self.calibrate(self.pool_batches(tokens, batches), normalize, truncate)
