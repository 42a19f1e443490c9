"""One head of one text, for the tests of the compiled attention."""

import numpy as np

from fastflow.kernels import _cpu, processor

LENGTHS = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 200)
LONG = (511, 512, 513, 1100)  # on both sides of one block of keys, and more than two


def table(reach, seed=0, heads=1):
    """Biases that no symmetry hides: (heads, 2 reach + 1) float32."""
    return np.random.default_rng(seed).normal(size=(heads, 2 * reach + 1)).astype(np.float32) * 2


def one_head(isa, qkv, window=None, bias=None, form=_cpu.FLOAT, half=False):
    number, _, vector, _ = processor.isas()[isa]
    size = qkv.shape[1] // 3
    padded = -(-size // (2 * vector)) * 2 * vector
    given = np.zeros((len(qkv), 3, padded), np.float32)
    given[:, :, :size] = qkv.reshape(len(qkv), 3, size)
    given[:, 0] *= np.float32(size**-0.5)
    out = np.full((len(qkv), padded), np.nan, np.float32)
    ends = None if bias is None else np.pad(bias[0], _cpu.BIAS_MARGIN, mode="edge")
    _cpu.attend_head(number, form, given.reshape(len(qkv), -1), out, -1 if window is None else window, ends, half=half)
    assert not out[:, size:].any()
    return out[:, :size]


def random_head(tokens, size, seed=0, spread=1.5):
    return (spread * np.random.default_rng(seed).normal(size=(tokens, 3 * size))).astype(np.float32)
