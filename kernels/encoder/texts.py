"""Pooling as in Sentence Transformers, and the modules after it: the definition of ``c/encoder/texts.c``."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np

from fastflow.kernels.encoder import LEAST, LEAST_NORM, Array, Dense, Head, Norm, Unit
from fastflow.kernels.encoder.reference import Ints, erf, layer_norm


def pool(hidden: Array, offsets: Ints, mode: str, weights: Array | None = None, skip: int = 0) -> Array:
    """Pool (N, D) -> (B, D) in one of MODES, over texts that are not empty.

    ``weights`` (N,) multiply the states; a mean divides by their sum, skipped tokens included. ``skip`` tokens at a
    text's start are left out; if no token is left, cls takes the first, max is -infinity, others 0.
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


# as in torch.nn
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


def apply_head(head: Head, x: Array, product: Product = _matmul) -> Array:
    """Apply the modules of ``head`` to vectors (B, P); ``product`` multiplies x by a Dense's W."""
    with np.errstate(over="ignore", invalid="ignore"):  # the caller checks that rows are finite
        for module in head:
            x = _apply(module, x, product)
    return x


def _apply(module: Dense | Unit | Norm, x: Array, product: Product) -> Array:
    if isinstance(module, Unit):
        norm = np.sqrt(np.square(x.astype(np.float64)).sum(axis=1, keepdims=True))
        return (x / np.maximum(norm, LEAST_NORM)).astype(x.dtype)
    if isinstance(module, Norm):
        return layer_norm(x, module.scale.astype(x.dtype), module.bias.astype(x.dtype), module.eps)
    y = ACTIVATIONS[module.activation](product(x, module.weight.astype(x.dtype)) + module.bias.astype(x.dtype))
    if not module.residual:
        return y
    return y + (x if module.projection is None else product(x, module.projection.astype(x.dtype)))
