"""The definition of pooling and of the modules after it, against PyTorch and by hand."""

import numpy as np
import pytest
import torch

from fastflow.kernels.encoder.texts import ACTIVATIONS, MODES, Dense, Norm, Unit, apply_head, folded, head_width, pool

OFFSETS = np.array([0, 1, 4, 9])
NAMES = {
    "identity": "Identity", "tanh": "Tanh", "relu": "ReLU", "gelu": "GELU", "sigmoid": "Sigmoid", "silu": "SiLU",
    "elu": "ELU", "leaky_relu": "LeakyReLU", "softplus": "Softplus", "softsign": "Softsign", "relu6": "ReLU6",
    "hardtanh": "Hardtanh", "mish": "Mish",
}  # fmt: skip


@pytest.fixture
def states():
    return np.random.default_rng(0).normal(size=(9, 4))


def by_hand(x, mode, w, skip):
    """One text, as the sentences of Sentence Transformers' documentation describe it."""
    kept = [i for i in range(len(x)) if i >= skip]
    weights = np.ones(len(x)) if w is None else w
    if mode == "cls":
        i = kept[0] if kept else 0
        return x[i] * weights[i]
    if mode == "lasttoken":
        return x[-1] * weights[-1] if kept else np.zeros_like(x[0])
    if mode == "max":
        return np.max([x[i] * weights[i] for i in kept], axis=0) if kept else np.full_like(x[0], -np.inf)
    factor = [i + 1 if mode == "weightedmean" else 1 for i in range(len(x))]
    total = sum((x[i] * weights[i] * factor[i] for i in kept), np.zeros_like(x[0]))
    divisor = sum(factor[i] for i in kept) if w is None else w.sum()
    return total / (np.sqrt(max(divisor, 1e-9)) if mode == "mean_sqrt_len_tokens" else max(divisor, 1e-9))


@pytest.mark.parametrize("skip", [0, 1, 2, 9])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_pooling(states, mode, weighted, skip):
    table = np.array([2, 0.5, 0, 3, 1, 0, 0, 0.25, 4.0]) if weighted else None
    found = pool(states, OFFSETS, mode, table, skip)
    for i in range(3):
        rows = slice(OFFSETS[i], OFFSETS[i + 1])
        want = by_hand(states[rows], mode, None if table is None else table[rows], skip)
        np.testing.assert_allclose(found[i], want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("mode", MODES)
def test_pooling_of_no_texts_and_of_float32(states, mode):
    assert pool(states[:0], np.array([0]), mode).shape == (0, 4)
    assert pool(states.astype(np.float32), OFFSETS, mode, np.ones(9, np.float32), 1).dtype == np.float32


def test_weights_of_nothing_but_zeros_give_zeros(states):
    for mode in set(MODES) - {"max"}:
        np.testing.assert_array_equal(pool(states, OFFSETS, mode, np.zeros(9)), 0)


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_activations_are_those_of_torch(name, kind):
    assert set(NAMES) == set(ACTIVATIONS)
    x = np.linspace(-30, 30, 2001)
    with np.errstate(over="ignore"):
        found = ACTIVATIONS[name](x)
    want = getattr(torch.nn, kind)()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-11)


def dense(out, inputs, activation="identity", residual=False, projected=False):
    rng = np.random.default_rng(out + inputs)
    projection = rng.normal(size=(out, inputs)) if projected else None
    return Dense(rng.normal(size=(out, inputs)), rng.normal(size=out), activation, residual, projection)


@pytest.mark.parametrize(
    ("module", "width"),
    [
        (dense(3, 4, "tanh"), 3),
        (dense(4, 4, "gelu", residual=True), 4),
        (dense(3, 4, "relu", residual=True, projected=True), 3),
        (Unit(), 4),
        (Norm(np.array([1.0, 2, 3, 4]), np.array([0.5, 0, 0, 1])), 4),
    ],
)
def test_modules_are_those_of_torch(states, module, width):
    x = torch.from_numpy(states)
    if isinstance(module, Dense):
        y = torch.nn.functional.linear(x, torch.from_numpy(module.weight), torch.from_numpy(module.bias))
        y = getattr(torch.nn, NAMES[module.activation])()(y)
        if module.residual:
            y = y + (x if module.projection is None else x @ torch.from_numpy(module.projection).T)
    elif isinstance(module, Unit):
        y = torch.nn.functional.normalize(x, p=2, dim=-1)
    else:
        y = torch.nn.functional.layer_norm(x, (4,), torch.from_numpy(module.scale), torch.from_numpy(module.bias))
    np.testing.assert_allclose(apply_head([module], states), y.numpy(), rtol=1e-11, atol=1e-12)
    assert head_width([module], 4) == width


def test_zeros_have_no_direction_and_stay():
    np.testing.assert_array_equal(apply_head([Unit()], np.zeros((2, 3))), 0)


def test_affine_neighbours_become_one_where_that_is_less_work(states):
    chain = [dense(5, 4), dense(5, 5, residual=True), dense(2, 5, residual=True, projected=True), Unit(), dense(2, 2)]
    found = folded(chain)
    assert [type(module) for module in found] == [Dense, Unit, Dense]
    assert (found[0].weight.shape, found[0].residual) == ((2, 4), False)
    np.testing.assert_allclose(apply_head(found, states), apply_head(chain, states), rtol=1e-11)
    wide = [dense(1, 4), dense(6, 1)]  # a bottleneck is less work as it is
    assert len(folded(wide)) == 2
    assert len(folded([dense(4, 4, "tanh"), dense(4, 4)])) == 2
