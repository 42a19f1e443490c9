"""A calibration as Dense modules of Sentence Transformers: activation(W x + b) + R x.

Two modules compute a coupling y2 <- y2 + g(y1). Their outputs are y, which R copies, and the hidden units. Affine
steps are merged into the next module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.encoder import Dense, Head, Unit
from fastflow.model import Model
from fastflow.plan import Layer, fold_into
from fastflow.plan.linear import LARGEST

Array = NDArray[Any]


class Chain:
    """Modules, then the affine map y = map x + shift in float64; splits finished y[:start]."""

    logdet, diagonal = 0.0, False  # for ``fold_into``: the first is not read; directions are removed by a matrix

    def __init__(self, width: int) -> None:
        self._modules: list[Dense] = []
        self._map, self._shift = np.eye(width), np.zeros(width)
        self._begun, self._start = False, 0

    def scale(self, a: Array, b: Array) -> None:
        rows = slice(self._start, None)
        if not self._begun and b.any():  # a module subtracts the mean first: small numbers round less
            self._modules.append(Dense(np.eye(len(b)), b))
            self._map, self._shift = np.diag(a), np.zeros(len(b))
        else:
            self._map[rows] *= a[:, None]
            self._shift[rows] = a * (self._shift[rows] + b)
        self._begun = True

    def permute(self, order: Array) -> None:
        self._begun = True
        rows = np.concatenate([np.arange(self._start), order + self._start])
        self._map, self._shift = self._map[rows], self._shift[rows]

    def dense(self, matrix: Array) -> None:
        self._begun = True
        done, rows = slice(self._start), slice(self._start, None)
        self._map = np.concatenate([self._map[done], matrix @ self._map[rows]])
        self._shift = np.concatenate([self._shift[done], matrix @ self._shift[rows]])

    def remove(self, directions: Array) -> None:
        self.dense(np.eye(directions.shape[1]) - directions.T @ directions)

    def split(self) -> None:
        half = (len(self._shift) - self._start) // 2
        self.permute(np.roll(np.arange(2 * half), -half))
        self._start += half

    def join(self) -> None:
        self._start = 0

    def couple_additive(self, first: Layer, inner: Layer, last: Layer) -> None:
        self._begun = True
        count, wide = len(self._shift), len(inner[1])
        middle = (self._start + count) // 2
        kept = slice(self._start, middle)
        self._relu(self._map, first[0] @ self._map[kept], first[0] @ self._shift[kept] + first[1])
        held = np.eye(count, count + self._hidden)
        read = np.zeros((wide, count + self._hidden))
        read[:, count : count + wide] = inner[0]
        self._relu(held, read, inner[1])
        self._map = np.eye(count, count + self._hidden)
        self._map[middle:, count : count + wide] = last[0]
        self._shift = self._shift.copy()
        self._shift[middle:] += last[1]

    def _relu(self, carried: Array, weight: Array, bias: Array) -> None:
        """Add a module x -> [carried x, relu(weight x + bias)]."""
        count, inputs = carried.shape
        out = count + len(bias)
        out += out == inputs  # with equal widths a module would add x, not R x
        product, residual, shift = np.zeros((out, inputs)), np.zeros((out, inputs)), np.zeros(out)
        residual[:count] = carried
        product[count : count + len(bias)], shift[count : count + len(bias)] = weight, bias
        self._modules.append(Dense(product, shift, "relu", True, residual))
        self._hidden = out - count

    def couple_affine(self, first: Layer, inner: Layer, last: Layer) -> None:
        raise FastflowError(
            "a flow of affine couplings cannot be exported to Sentence Transformers: it multiplies numbers of a "
            "vector, and none of its modules does; fit the model again with --coupling additive"
        )

    def close(self) -> list[Dense]:
        count, inputs = self._map.shape
        if self._shift.any() or count != inputs or (self._map != np.eye(count)).any():
            self._modules.append(Dense(self._map, self._shift))
        return [_round(module) for module in self._modules]


def _round(module: Dense) -> Dense:
    arrays = [array for array in (module.weight, module.bias, module.projection) if array is not None]
    if not all((np.abs(array) <= LARGEST).all() for array in arrays):  # false for NaN
        raise FastflowError(f"the calibration folds to numbers above {LARGEST:g}, beyond float32; fit it again")
    projection = None if module.projection is None else module.projection.astype(np.float32)
    return module._replace(
        weight=module.weight.astype(np.float32), bias=module.bias.astype(np.float32), projection=projection
    )


def make_modules(model: Model, dim: int | None, normalize: bool) -> Head:
    """Make all modules after the pooling."""
    chain = Chain(model.pooled_dim)
    fold_into(chain, model.calibration)
    if dim is not None and model.truncation is not None:
        chain.dense(model.truncation.basis[:, :dim].T.astype(np.float64))
    elif dim is not None:
        chain.permute(np.arange(dim))
    return [*model.head, *chain.close(), *([Unit()] if normalize else [])]
