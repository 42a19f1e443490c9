"""The laws of a compiled encoder: right to float32, pooled as defined, products of its format, the same bits always."""

from unittest import mock

import numpy as np

from fastflow.kernels.encoder import WORDS, PoolingSpec, reference
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.encoder.texts import apply_head, pool

from support.exact import exact_and_plain
from support.packed import pack, random_encoder
from support.tolerances import FUSED_FACTOR, FUSED_FLOOR


def assert_near(found, exact, plain):
    """``found`` errs at most twice as much as the reference in float32 does."""
    assert found.dtype == np.float32
    assert found.shape == exact.shape
    assert np.isfinite(found).all()
    assert np.abs(found - exact).max() <= FUSED_FACTOR * np.abs(plain - exact).max() + FUSED_FLOOR


def assert_states(made, texts, isa=None, threads=1):
    layers = tuple(range(WORDS, made[1].layers + 1))
    found = CpuEncoder(*made, PoolingSpec("mean", layers), threads=threads, isa=isa).states(*texts)
    exact, plain = exact_and_plain(*made, *texts, layers)
    assert found.keys() == exact.keys()
    for layer, state in found.items():
        assert exact[layer].std() > 0.1  # the comparison is of something
        assert_near(state, exact[layer], plain[layer])


def defined(made, texts, dtype, pooling, skip=0):
    """The vectors by the definition of ``kernels.encoder.texts``, of the reference's states."""
    weights, (ids, offsets) = made[0], texts
    mode, layers, shares, token_weights, head = pooling
    states = exact_and_plain(*made, *texts, layers)[dtype == np.float32]
    if mode == "pooler":
        wide = {name: array.astype(dtype) for name, array in weights.items()}
        return reference.pooler(reference.pool_first(states[layers[0]], offsets), wide)
    by = None if token_weights is None else token_weights[ids]
    each = list(zip(shares or [1 / len(layers)] * len(layers), layers, strict=True))
    parts = [sum(share * pool(states[i], offsets, part, by, skip) for share, i in each) for part in mode.split("+")]
    return apply_head(head, np.concatenate(parts, axis=1).astype(dtype))


def assert_pools(made, texts, pooling, isa=None, threads=2, skip=0):
    """The vectors are near; the exact ones are returned."""
    encoder = CpuEncoder(*made, pooling, threads=threads, isa=isa)
    found = encoder(*texts, skip)
    want, plain = (defined(made, texts, d, pooling, skip) for d in (np.float64, np.float32))
    assert found.shape == want.shape == (len(texts[1]) - 1, encoder.outputs)
    seen = np.isfinite(want)  # no maximum of no token
    assert np.array_equal(np.isfinite(found), seen)
    assert_near(found[seen], want[seen], plain[seen])
    return want


class Product(np.ndarray):
    """A layer's matrix whose products are of the operands as a format stores them: ``operand`` and ``weight``.

    Operands are divided by ``by`` before; the products of the columns ``apart`` are exact.
    """

    def __array_finalize__(self, other):
        for name in ("operand", "weight", "by", "apart"):
            setattr(self, name, getattr(other, name, None))

    def __rmatmul__(self, x):
        matrix, by = np.asarray(self).T, 1 if self.by is None else self.by
        exact = np.isin(np.arange(x.shape[1]), [] if self.apart is None else self.apart)
        rest = self.operand(np.where(exact, 0, x / by)) @ self.weight(np.where(exact, 0, matrix * by)).T
        return rest + x[:, exact] @ matrix[:, exact].T


def emulated(made, texts, weight, operand, attention=reference.attention, smoothing=None, apart=None):
    """The reference's last state in float64, with the layers' products, and attention, in a lower precision."""
    weights, shape = made
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    for name in (n for n in wide if n.startswith("layer.") and n.endswith(".weight")):
        wide[name], product = wide[name].view(Product), name.removesuffix(".weight")
        wide[name].weight, wide[name].operand = weight, operand
        wide[name].by, wide[name].apart = (smoothing or {}).get(product), (apart or {}).get(product)
    with mock.patch.object(reference, "attention", attention):
        states = reference.encode(wide, *texts, shape, (shape.layers,), np.dtype(np.float64))
    return np.asarray(states[shape.layers])


def same(x):
    return x


def with_windows(layers, hidden, heads, intermediate, windows, positions=None):
    with mock.patch("support.packed.POSITIONS", positions or 140):
        weights, shape = random_encoder(3, layers, hidden, heads, intermediate)
    biases = np.random.default_rng(0).normal(0, 2, (32, heads)).astype(np.float32)
    return weights | {"relative": biases}, shape._replace(windows=windows)


def texts_of(lengths, seed):
    return pack([int(n) for n in np.random.default_rng(0).permutation(lengths)], seed)
