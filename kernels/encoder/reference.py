"""The frozen encoder in NumPy, in the weights' dtype: the definition of the compiled kernels.

Texts are concatenated to N tokens; text i has the rows offsets[i]:offsets[i+1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import erf as exact_erf
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.encoder import WORDS, Array, EncoderShape, mean_position, relative_bias, rotate

Ints = NDArray[np.integer]
Weights = Mapping[str, Array]
Watch = Callable[[str, Array], None]


@cache
def _erf_series(limit: float, degree: int) -> tuple[float, ...]:
    """Return Chebyshev coefficients of erf(u)/u in u^2 over [0, limit^2]."""
    nodes = np.polynomial.chebyshev.chebpts1(degree + 1)
    u = np.sqrt((nodes + 1) * limit * limit / 2)
    values = np.array([exact_erf(v) / v if v else 2 / sqrt(pi) for v in u])
    return tuple(np.polynomial.chebyshev.chebfit(nodes, values, degree))


def erf(x: Array) -> Array:
    """Compute the error function: absolute error below 4e-7 (float32) and 1e-13 (float64)."""
    limit, degree = (4.0, 16) if x.dtype == np.float32 else (6.0, 36)
    u = np.clip(x, -limit, limit)
    series = np.array(_erf_series(limit, degree), x.dtype)
    return u * np.polynomial.chebyshev.chebval(u * u * x.dtype.type(2 / limit**2) - x.dtype.type(1), series)


def activate(x: Array, kind: str) -> Array:
    """Apply gelu (Hendrycks & Gimpel 2016), its approximation gelu_tanh, or relu."""
    if kind == "relu":
        return np.maximum(x, 0)
    half = x.dtype.type(0.5)
    if kind == "gelu_tanh":
        return half * x * (1 + np.tanh(x.dtype.type(sqrt(2 / pi)) * (x + x.dtype.type(0.044715) * x**3)))
    return half * x * (1 + erf(x * x.dtype.type(sqrt(0.5))))


def layer_norm(x: Array, scale: Array, bias: Array | None, eps: float) -> Array:
    """Compute (x - mean) / sqrt(var + eps) * scale + bias. x: (N, D); scale, bias: (D,), or None."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    deviation = np.sqrt(variance + x.dtype.type(eps)) + (variance - variance)  # + NaN if the squares overflow
    scaled = centred / deviation * scale
    return scaled if bias is None else scaled + bias


def _equal_runs(offsets: Ints) -> Iterator[tuple[int, int, int]]:
    """Yield (first row, texts, tokens per text) of every run of neighbouring texts of equal length."""
    lengths = np.diff(offsets)
    starts = [i for i in range(len(lengths)) if i == 0 or lengths[i] != lengths[i - 1]]
    for start, stop in zip(starts, [*starts[1:], len(lengths)], strict=False):
        yield int(offsets[start]), int(stop - start), int(lengths[start])


def attention(
    qkv: Array, offsets: Ints, heads: int, window: int | None = None, bias: Array | None = None,
    base: float | None = None,
) -> Array:  # fmt: skip
    """Compute softmax(Q K^T / sqrt(d) + B) V within each text, qkv (N, 3D) -> (N, D) (Vaswani et al. 2017, eq. 1).

    A query sees keys at most ``window`` tokens away. ``bias`` (heads, 2 reach + 1): B by distance key - query, its ends
    for larger distances. ``base``: of rotary angles; None: no rotation.
    """
    dim = qkv.shape[1] // 3
    scale = qkv.dtype.type(1 / sqrt(dim // heads))
    out = np.empty((len(qkv), dim), qkv.dtype)
    for row, texts, tokens in _equal_runs(offsets):
        rows = slice(row, row + texts * tokens)
        q, k, v = qkv[rows].reshape(texts, tokens, 3, heads, dim // heads).transpose(2, 0, 3, 1, 4)
        if base is not None:
            q, k = rotate(q, base), rotate(k, base)
        scores = (q @ k.swapaxes(-1, -2)) * scale  # (texts, heads, T, T)
        distance = np.arange(tokens) - np.arange(tokens)[:, None]
        if bias is not None:
            reach = bias.shape[1] // 2
            scores += bias.astype(qkv.dtype)[:, np.clip(distance, -reach, reach) + reach]
        if window is not None:
            scores[..., np.abs(distance) > window] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        out[rows] = (scores @ v).swapaxes(1, 2).reshape(texts * tokens, dim)
    return out


def positions(ids: Ints, offsets: Ints, shape: EncoderShape) -> Ints:
    """Return (N,): the row of the position table for each token."""
    starts = offsets[:-1].repeat(offsets[1:] - offsets[:-1])
    if shape.pad_id is None:
        return np.arange(shape.position_start, shape.position_start + len(ids)) - starts
    real = ids != shape.pad_id  # RoBERTa does not count a literal <pad>
    counted = np.cumsum(real)
    before = np.r_[0, counted][starts]
    return np.where(real, counted - before + shape.position_start - 1, shape.pad_id)


def embed_tokens(
    weights: Weights, ids: Ints, offsets: Ints, shape: EncoderShape, dtype: np.dtype, seconds: Ints | None = None
) -> Array:
    """Compute layer 0: LayerNorm(word + position + segment), then any projection (ELECTRA); (N,) -> (N, D).

    The first ``seconds`` (B,) tokens of each text have the weight ``segment``, the others ``second``; None: all.
    """
    place = weights["position"][positions(ids, offsets, shape)] if "position" in weights else None
    if place is not None and seconds is not None:
        later = np.arange(len(ids)) >= np.repeat(offsets[:-1] + seconds, np.diff(offsets))
        place = place + np.where(later[:, None], weights["second"] - weights["segment"], 0).astype(dtype)
    return _embed(weights, ids, place, shape, dtype)


def embed_words(weights: Weights, ids: Ints, shape: EncoderShape, dtype: np.dtype) -> Array:
    """Compute layer WORDS: as ``embed_tokens`` with the mean position."""
    place = mean_position(weights["position"], shape.position_start) if "position" in weights else None
    return _embed(weights, ids, place, shape, dtype)


def _embed(weights: Weights, ids: Ints, place: Array | None, shape: EncoderShape, dtype: np.dtype) -> Array:
    x = weights["word"][ids].astype(dtype)
    if place is not None:
        x = x + place + weights["segment"]
    x = layer_norm(x, weights["embed_norm.scale"], weights.get("embed_norm.bias"), shape.eps)
    if "projection.weight" in weights:
        x = x @ weights["projection.weight"].T + weights["projection.bias"]
    return x


def encoder_layer(
    x: Array, weights: Weights, layer: int, offsets: Ints, shape: EncoderShape, watch: Watch | None = None
) -> Array:
    """Apply transformer layer ``layer`` (Devlin et al. 2019; Warner et al. 2024): x (N, D) -> (N, D)."""
    prefix = f"layer.{layer}."
    base = shape.rotary[layer] if shape.rotary else None
    window = shape.windows[layer] if shape.windows else None
    bias = relative_bias(weights["relative"]) if "relative" in weights else None

    def linear(x: Array, name: str) -> Array:
        if watch is not None:
            watch(prefix + name, x)
        y, bias = x @ weights[f"{prefix}{name}.weight"].T, weights.get(f"{prefix}{name}.bias")
        return y if bias is None else y + bias

    def norm(x: Array, name: str) -> Array:
        return layer_norm(x, weights[f"{prefix}{name}.scale"], weights.get(f"{prefix}{name}.bias"), shape.eps)

    def attend(x: Array) -> Array:
        return linear(attention(linear(x, "qkv"), offsets, shape.heads, window, bias, base), "out")

    def feed(x: Array) -> Array:
        wide = linear(x, "up")
        if not shape.gated:
            return linear(activate(wide, shape.activation), "down")
        given, gate = np.split(wide, 2, axis=1)
        return linear(activate(given, shape.activation) * gate, "down")

    if shape.pre_norm:
        x = x + attend(norm(x, "norm1") if f"{prefix}norm1.scale" in weights else x)
        return x + feed(norm(x, "norm2"))
    x = norm(x + attend(x), "norm1")
    return norm(x + feed(x), "norm2")


def encode(
    weights: Weights, ids: Ints, offsets: Ints, shape: EncoderShape, layers: tuple[int, ...], dtype: np.dtype,
    watch: Watch | None = None, seconds: Ints | None = None,
) -> dict[int, Array]:  # fmt: skip
    """Return hidden states of the wanted layers, {layer: (N, D)}; ``watch`` gets name and operand of layer products."""
    wanted = {WORDS: embed_words(weights, ids, shape, dtype)} if WORDS in layers else {}
    if max(layers) < 0:
        return wanted
    x = embed_tokens(weights, ids, offsets, shape, dtype, seconds)
    if 0 in layers:
        wanted[0] = x
    for layer in range(1, max(layers) + 1):
        x = encoder_layer(x, weights, layer - 1, offsets, shape, watch)
        if layer == shape.layers and "final_norm.scale" in weights:
            x = layer_norm(x, weights["final_norm.scale"], weights.get("final_norm.bias"), shape.eps)
        if layer in layers:
            wanted[layer] = x
    return wanted


def pool_mean(hidden: Array, offsets: Ints, weights: Array | None = None) -> Array:
    """Average each text's tokens: (N, D) -> (B, D), with ``weights`` (N,) sum(w h) / sum(w)."""
    if len(offsets) == 1:
        return np.zeros((0, hidden.shape[1]), hidden.dtype)
    if weights is None:
        weights = np.ones(len(hidden), hidden.dtype)
    weights = weights.astype(hidden.dtype)[:, None]
    return np.add.reduceat(hidden * weights, offsets[:-1], axis=0) / np.add.reduceat(weights, offsets[:-1], axis=0)


def pool_first(hidden: Array, offsets: Ints) -> Array:
    """Return each text's first state: (N, D) -> (B, D)."""
    return hidden[offsets[:-1]]


def pooler(first: Array, weights: Weights) -> Array:
    """Compute BERT's pooler, tanh(W [CLS] + b): (B, D) -> (B, D)."""
    return np.tanh(first @ weights["pooler.weight"].T + weights["pooler.bias"])
