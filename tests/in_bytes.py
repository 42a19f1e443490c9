"""What attention in bytes costs, in float64: queries, keys, values and terms as products of bytes see them."""

from __future__ import annotations

from itertools import pairwise

import halved
import numpy as np
from packed import rounded

from fastflow.kernels import _cpu
from fastflow.kernels.encoder import reference
from fastflow.kernels.encoder.distances import rotate
from fastflow.kernels.isa import isas

NEAR, FAR, LANES = 2, 24, 16  # of avx512_vnni.c


def attention(qkv, offsets, heads, window=None, bias=None, base=None):
    """As the reference's, of bytes as ``c/encoder/avx512_vnni.c`` says, with all keys in one block."""
    dim = qkv.shape[1] // 3
    out = np.empty((len(qkv), dim))
    for start, stop in pairwise(offsets):
        q, k, v = qkv[start:stop].reshape(stop - start, 3, heads, dim // heads).transpose(1, 2, 0, 3)
        if base is not None:
            q, k = rotate(q, base), rotate(k, base)
        q, k, v = (rounded(x).astype(np.float64) for x in (q * (dim // heads) ** -0.5, k, v))
        low, reach = k.min(axis=1, keepdims=True), np.maximum(np.ptp(k, axis=1, keepdims=True), 1e-30)
        keys, q = np.rint((k - low) * 255 / reach), q * reach / 255
        unit = np.maximum(np.abs(q).max(axis=-1, keepdims=True), 1e-30) / 127
        scores = (np.rint(q / unit) @ keys.swapaxes(1, 2)) * unit
        distance = np.arange(stop - start) - np.arange(stop - start)[:, None]
        if bias is not None:
            scores += bias[:, np.clip(distance, -(bias.shape[1] // 2), bias.shape[1] // 2) + bias.shape[1] // 2]
        if window is not None:
            scores[:, np.abs(distance) > window] = -np.inf
        terms = terms_of(scores / np.log(2))
        middle, span = (v.min(axis=1) + v.max(axis=1))[:, None] / 2, np.maximum(np.ptp(v, axis=1, keepdims=True), 1e-30)
        context = terms @ np.rint((v - middle) * 254 / span) / terms.sum(axis=-1, keepdims=True) * span / 254 + middle
        out[start:stop] = context.swapaxes(0, 1).reshape(-1, dim)
    return out


def terms_of(scores):
    """(heads, T, T) scores to the base 2 -> terms: up to 255 whole numbers, and above them as they are."""
    lanes = np.full((*scores.shape[:2], -(-scores.shape[2] // LANES) * LANES), -1e30)
    lanes[:, :, : scores.shape[2]] = np.maximum(scores, -1e30)
    lanes = np.sort(lanes.reshape(*scores.shape[:2], -1, LANES).max(axis=2))
    largest, second = lanes[..., -1:], lanes[..., -2:-1]
    base = np.where(largest - second < NEAR, largest, np.maximum(second, largest - FAR))
    terms = 255 * np.exp2(scores - base)
    return np.where(terms > 255.5, terms, np.rint(terms))


def by_length(qkv, offsets, heads, window=None, bias=None, base=None):
    """As an encoder in int8 attends: texts below BYTES_FROM tokens in bfloat16, where the processor multiplies it."""
    halves = _cpu.BF16 in _cpu.attention_formats(isas()["avx512"][0])
    out = np.empty((len(qkv), qkv.shape[1] // 3))
    for start, stop in pairwise(offsets):
        of = halved.attention if halves and stop - start < _cpu.BYTES_FROM else attention
        out[start:stop] = of(qkv[start:stop], np.array([0, stop - start]), heads, window, bias, base)
    return out


EMULATED = {_cpu.FLOAT: reference.attention, _cpu.BF16: halved.attention, _cpu.INT8: by_length}  # of an encoder
