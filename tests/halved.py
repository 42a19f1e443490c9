"""What bfloat16 costs, in float64: numbers and attention as the processor's bfloat16 products see them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from packed import rounded

from fastflow.kernels.encoder.distances import rotate


def attention(qkv, offsets, heads, window=None, bias=None, base=None):
    """As the reference's, of rounded queries, keys, values and terms; shares are of the sum of the rounded terms."""
    dim = qkv.shape[1] // 3
    out = np.empty((len(qkv), dim))
    for start, stop in pairwise(offsets):
        q, k, v = qkv[start:stop].reshape(stop - start, 3, heads, dim // heads).transpose(1, 2, 0, 3)
        if base is not None:
            q, k = rotate(q, base), rotate(k, base)
        scores = rounded(q * (dim // heads) ** -0.5) @ rounded(k).swapaxes(1, 2)
        distance = np.arange(stop - start) - np.arange(stop - start)[:, None]
        if bias is not None:
            scores += bias[:, np.clip(distance, -(bias.shape[1] // 2), bias.shape[1] // 2) + bias.shape[1] // 2]
        if window is not None:
            scores[:, np.abs(distance) > window] = -np.inf
        terms = rounded(np.exp(scores - scores.max(axis=-1, keepdims=True)))
        context = terms @ rounded(v) / terms.sum(axis=-1, keepdims=True)
        out[start:stop] = context.swapaxes(0, 1).reshape(-1, dim)
    return out
