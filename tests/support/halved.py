"""What bfloat16 costs, in float64: numbers and attention as the processor's bfloat16 products see them."""

from functools import partial
from itertools import pairwise

import numpy as np

from fastflow.kernels.encoder import rotate

from support.packed import rounded


def attended(products, qkv, offsets, heads, window=None, bias=None, base=None):
    """As the reference's: ``products(q, k, v)`` gives the scores, and what makes them a context, biased and masked."""
    dim = qkv.shape[1] // 3
    out = np.empty((len(qkv), dim))
    for start, stop in pairwise(offsets):
        q, k, v = qkv[start:stop].reshape(stop - start, 3, heads, dim // heads).transpose(1, 2, 0, 3)
        if base is not None:
            q, k = rotate(q, base), rotate(k, base)
        scores, context = products(q * (dim // heads) ** -0.5, k, v)
        distance = np.arange(stop - start) - np.arange(stop - start)[:, None]
        if bias is not None:
            scores += bias[:, np.clip(distance, -(bias.shape[1] // 2), bias.shape[1] // 2) + bias.shape[1] // 2]
        if window is not None:
            scores[:, np.abs(distance) > window] = -np.inf
        out[start:stop] = context(scores).swapaxes(0, 1).reshape(-1, dim)
    return out


def products(q, k, v):
    """Of rounded queries, keys, values and terms; shares are of the sum of the rounded terms."""

    def context(scores):
        terms = rounded(np.exp(scores - scores.max(axis=-1, keepdims=True)))
        return terms @ rounded(v) / terms.sum(axis=-1, keepdims=True)

    return rounded(q) @ rounded(k).swapaxes(1, 2), context


attention = partial(attended, products)
