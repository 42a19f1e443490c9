"""Parameters of an encoder, its pooling, and the modules after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
BUCKETS, FARTHEST = 32, 128  # MPNet's rows of the bias table, and the distance from which on all share one
WORDS = -1  # the layer below 0: embeddings with the mean position instead of each token's
LEAST = 1e-9  # divisor if a sum of weights is 0, as in Sentence Transformers
LEAST_NORM = 1e-12  # as in torch.nn.functional.normalize
LIGHTEST, HEAVIEST = 1e-30, 1e30  # token weights whose float32 products with states neither vanish nor overflow


class EncoderShape(NamedTuple):
    """Parameters of the equations except weights. BERT's family keeps the defaults of the last four.

    Parts without weights are left out: positions, segments, biases, a projection, some LayerNorms, MPNet's bias.
    """

    layers: int
    hidden: int
    heads: int
    intermediate: int
    eps: float
    activation: str  # gelu (erf form), gelu_tanh or relu
    positions: int  # rows of the position table; without a table, the most tokens of a text
    position_start: int  # 0, or padding id + 1 for RoBERTa
    pad_id: int | None  # the token that RoBERTa does not number
    pre_norm: bool = False  # LayerNorm before attention and feed-forward instead of after their residual sums
    gated: bool = False  # GeGLU (Shazeer 2020): ``up`` gives [input | gate], followed by activate(input) * gate
    rotary: tuple[float, ...] = ()  # the base of each layer's rotary angles; empty: no rotation
    windows: tuple[
        int | None, ...
    ] = ()  # the largest distance of a key in each layer; None: any; empty: any in all layers


def mean_position(table: Array, start: int) -> Array:
    """Return (E,), the float64 mean of the position ``table`` (positions, E) from row ``start`` on, after padding's
    rows.
    """
    return np.asarray(table[start:].mean(axis=0, dtype=np.float64)).astype(table.dtype)


class Dense(NamedTuple):
    """activation(W x + b) of x (B, in), plus x with ``residual``, or R x with ``projection`` R (out, in)."""

    weight: NDArray[np.floating]  # (out, in)
    bias: NDArray[np.floating]  # (out,)
    activation: str = "identity"
    residual: bool = False
    projection: NDArray[np.floating] | None = None

    def width(self, inputs: int) -> int:
        """Return the results' width for vectors of ``inputs`` numbers."""
        return len(self.weight)


class Unit:
    """x / max(|x|, LEAST_NORM) of x (B, D)."""

    def width(self, inputs: int) -> int:
        """Return the results' width for vectors of ``inputs`` numbers."""
        return inputs


class Norm(NamedTuple):
    """LayerNorm of x (B, D)."""

    scale: NDArray[np.floating]
    bias: NDArray[np.floating]
    eps: float = 1e-5

    def width(self, inputs: int) -> int:
        """Return the results' width for vectors of ``inputs`` numbers."""
        return inputs


Head = Sequence[Dense | Unit | Norm]


class Pooling(NamedTuple):
    """How hidden states become vectors, and the modules after.

    mode: pooler, or ``texts.MODES`` joined by ``+``. layers: 0: the embeddings; WORDS: with the mean position. shares:
    of the layers; None: equal ones of sum 1. token_weights: (vocabulary,) float32, 0 or LIGHTEST to HEAVIEST, not for
    pooler; None: all 1.
    """

    mode: str
    layers: Sequence[int]
    shares: Sequence[float] | None = None
    token_weights: NDArray[np.float32] | None = None
    head: Head = ()


class Outliers(NamedTuple):
    """int8's large columns, by product: smoothing (columns,) divides the operand and multiplies the weights; apart, at
    most _cpu.APART columns, are multiplied in float32.
    """

    smoothing: Mapping[str, NDArray[Any]] = MappingProxyType({})
    apart: Mapping[str, NDArray[Any]] = MappingProxyType({})


PLAIN = Outliers()


def head_width(head: Head, inputs: int) -> int:
    """Return the width P' that ``head`` makes of vectors of ``inputs`` numbers."""
    for module in head:
        inputs = module.width(inputs)
    return inputs


def fold_head(head: Head) -> tuple[Dense | Unit | Norm, ...]:
    """Merge neighbouring affine maps of ``head`` if that is not more work; computed in float64."""
    out: list[Dense | Unit | Norm] = []
    for module in head:
        if isinstance(module, Dense) and module.activation == "identity":
            module = _affine(module)
            last = out[-1] if out else None
            if isinstance(last, Dense) and last.activation == "identity" and _is_less(last, module):
                out[-1] = Dense(module.weight @ last.weight, module.weight @ last.bias + module.bias)
                continue
        out.append(module)
    return tuple(out)


def _affine(dense: Dense) -> Dense:
    """The same map without a residual, in float64."""
    weight = dense.weight.astype(np.float64)
    if dense.residual:
        weight = weight + (np.eye(len(weight)) if dense.projection is None else dense.projection)
    return Dense(weight, dense.bias.astype(np.float64))


def _is_less(first: Dense, second: Dense) -> bool:
    return len(second.weight) * first.weight.shape[1] <= first.weight.size + second.weight.size
