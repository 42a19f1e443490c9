"""Results in float64 that every instruction set is compared with, computed once for all."""

import pickle
from collections.abc import Callable
from functools import wraps
from hashlib import blake2b
from typing import Any

import numpy as np

from fastflow.kernels.encoder import reference


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, run once for arguments of the same content. Do not change its result."""
    known: dict[bytes, Any] = {}

    @wraps(function)
    def get(*arguments: Any) -> Any:
        key = blake2b(pickle.dumps(arguments)).digest()
        if key not in known:
            known[key] = function(*arguments)
        return known[key]

    return get


@remembered
def exact_and_plain(weights, shape, ids, offsets, layers):
    return [
        reference.encode({n: w.astype(d) for n, w in weights.items()}, ids, offsets, shape, layers, np.dtype(d))
        for d in (np.float64, np.float32)
    ]


@remembered
def attention(qkv, offsets, heads, window, bias):
    return [reference.attention(qkv.astype(d), offsets, heads, window, bias) for d in (np.float64, np.float32)]
