"""The interface of every backend: tokens -> pooled vectors -> embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.flow import Plan, execute_with_log_det
from fastflow.late import late
from fastflow.model import Calibrated, Model
from fastflow.model.tokenizer import Tokenizer, Tokens
from fastflow.plan import fold
from fastflow.stages.calibration import Densities, Density, density_of, has_density, log_normal

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

    def log_prob(self, pooled: Floats) -> Densities:
        """Return float64 log-densities (B,), not finite after an overflow."""
        z, total = np.asarray(pooled, np.float64), np.full(len(pooled), self.density.log_det)
        with np.errstate(over="ignore", invalid="ignore"):
            for plan in self.latent_plans:
                z, log_det = execute_with_log_det(plan, z)
                total = total + log_det
            return log_normal(z, total)

    @property
    def has_density(self) -> bool:
        return has_density(self._calibrated.calibration)

    @late
    def density(self) -> Density:
        return density_of(self._calibrated.calibration, self._calibrated.path)

    @late
    def latent_plans(self) -> tuple[Plan, ...]:
        return fold(self.density.stages, self.pooled_dim)

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

    def embed_with_log_prob(
        self, tokens: Tokens, batches: Iterable[NDArray[np.int64]], normalize: bool = False, truncate: int | None = None
    ) -> tuple[Floats, Densities]:
        pooled = self.pool_batches(tokens, batches)
        return self.calibrate(pooled, normalize, truncate), self.log_prob(pooled)
