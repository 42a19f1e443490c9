"""The interface of every backend: tokens -> pooled vectors -> embeddings, or the last step alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.model.architecture import encoder_size, read_config
from fastflow.model.kinds import Calibrated, Model
from fastflow.model.tokens import Tokens

Floats = NDArray[np.floating[Any]]


class Calibrator(ABC):
    """The calibration of a model ready to run on one device. A subclass gives ``calibrate``.

    Pooled width D, embedding width D'. Vectors are float32, float64 where ``dtype`` is.
    """

    name: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]]  # of the arithmetic: the encoder's where there is one

    def __init__(self, model: Calibrated, pooled_dim: int, dtype: str, device: str) -> None:
        self.dtype, self.device, self.pooled_dim = dtype, device, pooled_dim
        self.notes: list[str] = []  # for the user, such as a step down
        self.details: list[str] = []  # how this machine runs the model
        self._order = model.truncation

    @abstractmethod
    def calibrate(self, pooled: Floats, normalize: bool = False, truncate: int | None = None) -> Floats:
        """(B, D) -> (B, D') calibrated embeddings, cut to ``truncate`` columns, then L2-normalised, as asked."""

    @property
    def floats(self) -> np.dtype[Any]:
        """The NumPy dtype of pooled vectors and embeddings."""
        return np.dtype(np.float64 if self.dtype == "float64" else np.float32)


class Backend(Calibrator):
    """A model of texts ready to run on one device. A subclass gives ``pool`` and ``calibrate``, and ``embed`` where it
    can do better than one after the other.

    B texts of N tokens.
    """

    batch_tokens: ClassVar[int] = 8192  # tokens of a batch: enough to keep BLAS busy, small enough for a small machine
    overlaps: ClassVar[bool] = False  # whether the next texts are worth tokenising while ``embed`` computes

    def __init__(self, model: Model, dtype: str, device: str, threads: int | None) -> None:
        """``threads``: None for all the machine allows. Raises a FastflowError for a model that cannot run here."""
        super().__init__(model, encoder_size(read_config(model.encoder), model.encoder).hidden, dtype, device)
        self._pooling = model.pooling

    @abstractmethod
    def pool(self, tokens: Tokens) -> Floats:
        """(B, D) pooled vectors of one batch."""

    def pool_batches(self, tokens: Tokens, batches: Iterable[NDArray[np.int64]]) -> Floats:
        """(B, D) pooled vectors of ``tokens``, whose rows come in ``batches``."""
        out = np.empty((len(tokens.offsets) - 1, self.pooled_dim), self.floats)
        for rows in batches:
            out[rows] = self.pool(tokens.select(rows))
        return out

    def embed(
        self, tokens: Tokens, batches: Iterable[NDArray[np.int64]], normalize: bool = False, truncate: int | None = None
    ) -> Floats:
        """(B, D') embeddings of ``tokens``, whose rows come in ``batches``, as ``calibrate`` shortens them."""
        return self.calibrate(self.pool_batches(tokens, batches), normalize, truncate)
