"""Parameters of the frozen BERT, its positions, pooling and later modules; ``reference`` has the equations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BUCKETS, FARTHEST = 32, 128  # MPNet: rows of the bias table, and the least distance of its last row
WORDS = -1  # layer of embeddings with the mean position
LEAST = 1e-9  # divisor if weights sum to 0, as in Sentence Transformers
LEAST_NORM = 1e-12  # least divisor, as in torch.nn.functional.normalize
LIGHTEST, HEAVIEST = 1e-30, 1e30  # token weights that neither vanish nor overflow in float32


class EncoderShape(NamedTuple):
    """Sizes and options of an encoder. BERT's family keeps the defaults of the last four."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    eps: float
    activation: str  # gelu, gelu_tanh or relu
    positions: int  # rows of the position table, which limit a text's tokens
    position_start: int  # first position: 0, or padding id + 1 for RoBERTa
    pad_id: int | None  # padding, which RoBERTa's positions do not count
    pre_norm: bool = False  # LayerNorm before attention and feed-forward, not after
    gated: bool = False  # GeGLU (Shazeer 2020): ``up`` gives [input, gate]
    rotary: tuple[float, ...] = ()  # base of each layer's rotary angles, or empty
    windows: tuple[int | None, ...] = ()  # largest distance of a key in each layer; None, or empty: any


def mean_position(table: Array, start: int) -> Array:
    """Return (E,), the mean of the position ``table`` (positions, E) from row ``start`` on, summed in float64."""
    return np.asarray(table[start:].mean(axis=0, dtype=np.float64)).astype(table.dtype)


class Dense(NamedTuple):
    """A layer activation(W x + b) of x (B, in); ``residual`` adds x, or R x with ``projection`` R (out, in)."""

    weight: NDArray[np.floating]  # (out, in)
    bias: NDArray[np.floating]  # (out,)
    activation: str = "identity"
    residual: bool = False
    projection: NDArray[np.floating] | None = None


class Unit:
    """Division by the L2 norm: x / max(|x|, LEAST_NORM) of x (B, D)."""


class Norm(NamedTuple):
    """LayerNorm of x (B, D)."""

    scale: NDArray[np.floating]
    bias: NDArray[np.floating]
    eps: float = 1e-5


Head = Sequence[Dense | Unit | Norm]


class PoolingMode(NamedTuple):
    """A pooling of one layer's states: its description, Sentence Transformers' older field, and its compiled step."""

    about: str
    field: str
    step: str


# by Sentence Transformers' name; ``texts.pool`` has the equations
MODES = {
    "cls": PoolingMode("[CLS] state", "pooling_mode_cls_token", "FIRST_TOKEN"),
    "max": PoolingMode("maximum", "pooling_mode_max_tokens", "LARGEST_OF"),
    "mean": PoolingMode("masked mean", "pooling_mode_mean_tokens", "MEAN"),
    "mean_sqrt_len_tokens": PoolingMode(
        "sum over the square root of the length", "pooling_mode_mean_sqrt_len_tokens", "MEAN_SQRT"
    ),
    "weightedmean": PoolingMode("mean weighted by position", "pooling_mode_weightedmean_tokens", "POSITION_MEAN"),
    "lasttoken": PoolingMode("last token's state", "pooling_mode_lasttoken", "LAST_TOKEN"),
}


class PoolingSpec(NamedTuple):
    """How hidden states become vectors, and the modules after it.

    mode: pooler, or ``MODES`` joined by ``+``. layers: 0 is the embeddings. shares: layers' weights, None: equal.
    token_weights: (vocabulary,) float32, 0 or LIGHTEST to HEAVIEST; None: all 1.
    """

    mode: str
    layers: Sequence[int]
    shares: Sequence[float] | None = None
    token_weights: NDArray[np.float32] | None = None
    head: Head = ()


class Outliers(NamedTuple):
    """Large operand columns of int8, by product: smoothing (columns,) divides the operand and multiplies
    the weights; columns ``apart`` are multiplied in float32.
    """

    smoothing: Mapping[str, NDArray[Any]] = MappingProxyType({})
    apart: Mapping[str, NDArray[Any]] = MappingProxyType({})


PLAIN = Outliers()


def head_width(head: Head, inputs: int) -> int:
    """Return the width of ``head``'s result for ``inputs`` columns."""
    widths = [len(module.weight) for module in head if isinstance(module, Dense)]
    return widths[-1] if widths else inputs


def fold_head(head: Head) -> tuple[Dense | Unit | Norm, ...]:
    """Merge neighbouring affine maps of ``head`` if that is less work, in float64."""
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
    weight = dense.weight.astype(np.float64)
    if dense.residual:
        weight = weight + (np.eye(len(weight)) if dense.projection is None else dense.projection)
    return Dense(weight, dense.bias.astype(np.float64))


def _is_less(first: Dense, second: Dense) -> bool:
    return len(second.weight) * first.weight.shape[1] <= first.weight.size + second.weight.size


def rotary_angles(count: int, head: int, base: float) -> NDArray[np.float32]:
    """Return angles (count, head / 2): p base^(-2i / head) for position p and channel pair i (Su et al. 2021).

    Angles are float32 products, as in training: exact angles differ by up to 5e-4 at position 8191.
    """
    exponents = np.arange(0, head, 2, dtype=np.float32) / np.float32(head)
    frequencies = np.float32(1) / np.power(np.float64(base), exponents.astype(np.float64)).astype(np.float32)
    return np.arange(count, dtype=np.float32)[:, None] * frequencies


def rotary_table(count: int, head: int, base: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return cosine and sine of ``rotary_angles``, each (count, head / 2)."""
    angles = rotary_angles(count, head, base).astype(np.float64)
    return np.cos(angles), np.sin(angles)


def rotate(x: Array, base: float) -> Array:
    """Rotate channel pairs (i, i + d/2) of x (..., T, d) by the angles of positions 0 to T - 1."""
    cos, sin = (table.astype(x.dtype) for table in rotary_table(x.shape[-2], x.shape[-1], base))
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def buckets(distances: Array) -> NDArray[np.int64]:
    """Return the row of MPNet's bias table for each distance key - query (Raffel et al. 2020).

    Half of the rows are for later keys: one per distance below 8, then for ever wider ranges.
    """
    half = BUCKETS // 2
    exact = half // 2
    away = np.abs(distances)
    octaves = np.log2(np.maximum(away, 1) / exact) / np.log2(FARTHEST / exact)  # exact for powers of two
    far = np.minimum(exact + np.floor(octaves * (half - exact)).astype(np.int64), half - 1)
    return np.where(away < exact, away, far) + half * (distances > 0)


def relative_bias(table: Array) -> Array:
    """Return biases (heads, 2 FARTHEST + 1) by distance key - query, from MPNet's table (BUCKETS, heads)."""
    return table[buckets(np.arange(-FARTHEST, FARTHEST + 1))].T
