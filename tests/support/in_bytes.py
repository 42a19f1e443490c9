"""What attention in bytes costs, in float64: queries, keys, values and terms as products of bytes see them."""

from functools import partial
from itertools import pairwise

import numpy as np

from fastflow.kernels import _cpu
from fastflow.kernels.encoder import reference
from fastflow.kernels.processor import isas

from support import halved
from support.packed import rounded

NEAR, FAR, LANES = 2, 24, 16  # of avx512_vnni.c


def products(q, k, v):
    """Of bytes as ``c/encoder/avx512_vnni.c`` says, with all keys in one block."""
    q, k, v = (rounded(x).astype(np.float64) for x in (q, k, v))
    low, reach = k.min(axis=1, keepdims=True), np.maximum(np.ptp(k, axis=1, keepdims=True), 1e-30)
    keys, q = np.rint((k - low) * 255 / reach), q * reach / 255
    unit = np.maximum(np.abs(q).max(axis=-1, keepdims=True), 1e-30) / 127
    middle, span = (v.min(axis=1) + v.max(axis=1))[:, None] / 2, np.maximum(np.ptp(v, axis=1, keepdims=True), 1e-30)

    def context(scores):
        terms = terms_of(scores / np.log(2))
        return terms @ np.rint((v - middle) * 254 / span) / terms.sum(axis=-1, keepdims=True) * span / 254 + middle

    return (np.rint(q / unit) @ keys.swapaxes(1, 2)) * unit, context


attention = partial(halved.attended, products)


def terms_of(scores):
    """(heads, T, T) scores to the base 2 -> terms: up to 255 whole numbers, and above them as they are."""
    lanes = np.full((*scores.shape[:2], -(-scores.shape[2] // LANES) * LANES), -1e30)
    lanes[:, :, : scores.shape[2]] = np.maximum(scores, -1e30)
    lanes = np.sort(lanes.reshape(*scores.shape[:2], -1, LANES).max(axis=2))
    largest, second = lanes[..., -1:], lanes[..., -2:-1]
    base = np.where(largest - second < NEAR, largest, np.maximum(second, largest - FAR))
    terms = 255 * np.exp2(scores - base)
    places = (np.arange(scores.shape[2]) * 37 % 64 - 31.5) * (0.92 / 64)
    return np.where(terms > 255.03, terms, np.rint(terms + places))


def by_length(qkv, offsets, heads, window=None, bias=None, base=None):
    """As an encoder in int8 attends: texts below BYTES_FROM tokens in bfloat16, if the processor multiplies it."""
    halves = _cpu.BF16 in _cpu.attention_formats(isas()["avx512"][0])
    out = np.empty((len(qkv), qkv.shape[1] // 3))
    for start, stop in pairwise(offsets):
        of = halved.attention if halves and stop - start < _cpu.BYTES_FROM else attention
        out[start:stop] = of(qkv[start:stop], np.array([0, stop - start]), heads, window, bias, base)
    return out


EMULATED = {_cpu.FLOAT: reference.attention, _cpu.BF16: halved.attention, _cpu.INT8: by_length}  # of an encoder
