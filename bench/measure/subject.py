"""A model under test, and the work of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fastflow.kernels.encoder import EncoderShape

Array = NDArray[Any]
BYTES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "int8": 1}  # bytes of a weight


@dataclass(frozen=True)
class Subject:
    """A model under test: its files, its pooling, and a folder for the files that other engines need."""

    label: str
    model: str | None  # as Runtime takes it; None is the model in the package
    encoder: Path
    layers: tuple[int, ...]  # layers averaged by ``shares``, then pooled
    max_length: int
    shape: EncoderShape
    folder: Path
    weights: Array | None = field(default=None, compare=False, repr=False)  # (vocabulary,) token weights of the mean
    mode: str = "mean"  # mean, cls or pooler
    saved: Path | None = None  # a directory of Sentence Transformers that pools by its own modules
    prompt: str = ""  # before every text
    shares: tuple[float, ...] | None = None  # weights of the layers in this mean; None: equal

    @property
    def depth(self) -> int:
        return self.shape.layers

    @property
    def computed(self) -> int:
        return max(0, *self.layers) if self.mode == "mean" else self.depth

    def matrix_weights(self) -> int:
        """Count the weights in the matrices of the needed layers."""
        inner = 3 if self.shape.gated else 2  # matrices of the feed-forward
        return self.computed * (4 * self.shape.hidden**2 + inner * self.shape.hidden * self.shape.intermediate)

    def flop(self, batch: int, tokens: int) -> float:
        """Count the operations of the products for ``batch`` x ``tokens``; a multiply-add is two."""
        return 2.0 * batch * tokens * (self.matrix_weights() + 2 * self.computed * tokens * self.shape.hidden)
