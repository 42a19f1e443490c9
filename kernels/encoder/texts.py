"""Vectors of texts in NumPy: pooling as Sentence Transformers does it, and the modules that follow it there.

The definition that ``c/encoder/texts.c`` is tested against. Texts are concatenated: N tokens in all, text i owns rows
offsets[i]:offsets[i+1]. Everything is computed in the dtype of the states (float32 or float64).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.encoder.reference import Array, Ints, erf, layer_norm

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
LEAST = 1e-9  # the divisor if a sum of weights is 0, as in Sentence Transformers
LEAST_NORM = 1e-12  # as in torch.nn.functional.normalize


def pool(hidden: Array, offsets: Ints, mode: str, weights: Array | None = None, skip: int = 0) -> Array:
    """(N, D) -> (B, D) in one of MODES; no text is without tokens.

    ``weights`` (N,), each 0 or LIGHTEST to HEAVIEST, multiply the states; a mean, by position or not, is then over
    their sum. The first ``skip`` tokens of each text, those of a prompt, are left out, but the divisor of
    weights counts them. A text without other tokens has its first state for cls, -infinity for max, and 0 for the rest.
    """
    if len(offsets) == 1:
        return np.zeros((0, hidden.shape[1]), hidden.dtype)
    lengths, starts = np.diff(offsets), offsets[:-1]
    place = np.arange(len(hidden)) - np.repeat(starts, lengths)
    counts = np.ones(len(hidden), hidden.dtype) if weights is None else weights.astype(hidden.dtype)
    if mode in ("cls", "lasttoken"):
        at = starts + np.where(skip < lengths, skip, 0) if mode == "cls" else offsets[1:] - 1
        there = counts[at] if mode == "cls" else counts[at] * (skip < lengths)
        return hidden[at] * there[:, None].astype(hidden.dtype)
    kept = place >= skip
    if mode == "max":
        low = hidden.dtype.type(-np.inf)
        return np.maximum.reduceat(np.where(kept[:, None], hidden * counts[:, None], low), starts, axis=0)
    factors = counts * (place + 1).astype(hidden.dtype) if mode == "weightedmean" else counts
    total = np.add.reduceat(factors * kept if weights is None else counts, starts)
    divisor = np.where(total > 0, total, hidden.dtype.type(LEAST))
    if mode == "mean_sqrt_len_tokens":
        divisor = np.sqrt(divisor)
    return np.add.reduceat(hidden * (factors * kept)[:, None], starts, axis=0) / divisor[:, None]


def _softplus(x: Array) -> Array:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# as torch.nn defines them when they are made without arguments
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + erf(x * x.dtype.type(sqrt(0.5)))),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "leaky_relu": lambda x: np.where(x > 0, x, x * x.dtype.type(0.01)),
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "mish": lambda x: x * np.tanh(_softplus(x)),
}


Product = Callable[[Array, Array], Array]  # x (B, in), W (out, in) -> x W^T (B, out)


def _matmul(x: Array, weight: Array) -> Array:
    return x @ weight.T


class Dense(NamedTuple):
    """activation(W x + b) of x (B, in), plus x with ``residual``, or R x where ``projection`` R (out, in) is given."""

    weight: NDArray[np.floating]  # (out, in)
    bias: NDArray[np.floating]  # (out,)
    activation: str = "identity"
    residual: bool = False
    projection: NDArray[np.floating] | None = None

    def __call__(self, x: Array, product: Product = _matmul) -> Array:
        y = ACTIVATIONS[self.activation](product(x, self.weight.astype(x.dtype)) + self.bias.astype(x.dtype))
        if not self.residual:
            return y
        return y + (x if self.projection is None else product(x, self.projection.astype(x.dtype)))

    def width(self, inputs: int) -> int:
        """The width of the results for vectors of ``inputs`` numbers."""
        return len(self.weight)


class Unit:
    """x / max(|x|, LEAST_NORM) of x (B, D)."""

    def __call__(self, x: Array) -> Array:
        norm = np.sqrt(np.square(x.astype(np.float64)).sum(axis=1, keepdims=True))
        return (x / np.maximum(norm, LEAST_NORM)).astype(x.dtype)

    def width(self, inputs: int) -> int:
        """The width of the results for vectors of ``inputs`` numbers."""
        return inputs


class Norm(NamedTuple):
    """LayerNorm of x (B, D)."""

    scale: NDArray[np.floating]
    bias: NDArray[np.floating]
    eps: float = 1e-5

    def __call__(self, x: Array) -> Array:
        return layer_norm(x, self.scale.astype(x.dtype), self.bias.astype(x.dtype), self.eps)

    def width(self, inputs: int) -> int:
        """The width of the results for vectors of ``inputs`` numbers."""
        return inputs


Head = Sequence[Dense | Unit | Norm]


def apply_head(head: Head, x: Array, product: Product = _matmul) -> Array:
    """(B, P) pooled vectors -> (B, P') after the modules of ``head``, in their dtype; ``product``: that of a Dense."""
    with np.errstate(over="ignore", invalid="ignore"):  # found in the rows, by whoever asked for them
        for module in head:
            x = module(x, product) if isinstance(module, Dense) else module(x)
    return x


def head_width(head: Head, inputs: int) -> int:
    """The width P' that ``head`` makes of vectors of ``inputs`` numbers."""
    for module in head:
        inputs = module.width(inputs)
    return inputs


def folded(head: Head) -> tuple[Dense | Unit | Norm, ...]:
    """``head`` with neighbouring affine maps as one, if that is not more work; computed in float64."""
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
