"""A calibration as Dense modules of Sentence Transformers: activation(W x + b) + R x.

Two modules compute a coupling u <- u + V h. Their outputs are u, which R copies, and the hidden units. Affine
steps are merged into the next module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.encoder import Dense, Head, Unit
from fastflow.kernels.flow import Plan
from fastflow.model import Model
from fastflow.plan import fold
from fastflow.plan.linear import LARGEST
from fastflow.stages.calibration import output_dim

Array = NDArray[Any]


class Chain:
    """Modules, then the affine map y = map x + shift in float64."""

    def __init__(self, width: int) -> None:
        self._modules: list[Dense] = []
        self._map, self._shift = np.eye(width), np.zeros(width)

    def map(self, matrix: Array, shift: Array | float = 0.0) -> None:
        """Apply y <- matrix y + shift."""
        self._map, self._shift = matrix @ self._map, matrix @ self._shift + shift

    def run(self, plan: Plan) -> None:
        if plan.R is not None:
            raise FastflowError(
                "a flow of affine couplings cannot be exported to Sentence Transformers: it multiplies numbers of a "
                "vector, and none of its modules does; fit the model again with --coupling additive"
            )
        if plan.m.any() and not self._modules:  # a module subtracts the mean first: small numbers round less
            self._modules.append(Dense(np.eye(plan.inputs), -plan.m))
        else:
            self._shift = self._shift - plan.m
        self.map(np.diag(plan.s))
        if plan.L is not None:
            self.map(plan.L)
        for k in range(plan.steps):
            self._couple(plan, k)
        self.map(plan.S if plan.gather is None else np.diag(plan.S) @ np.eye(plan.state)[plan.gather], plan.t)

    def _couple(self, plan: Plan, k: int) -> None:
        count, wide = plan.state, plan.width
        own = slice(k * wide, (k + 1) * wide)
        self._relu(self._map, plan.U[own] @ self._map, plan.U[own] @ self._shift + plan.c[own])
        read = np.zeros((wide, count + self._hidden))
        read[:, count : count + wide] = plan.B[k]
        self._relu(np.eye(count, count + self._hidden), read, plan.d[k])
        self._map = np.eye(count, count + self._hidden)
        self._map[:, count : count + wide] = plan.V[:, own]
        self._shift = self._shift + plan.p[k]

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
    for plan in fold(model.calibration, model.pooled_dim):
        chain.run(plan)
    if dim is not None and model.truncation is not None:
        chain.map(model.truncation.basis[:, :dim].T.astype(np.float64))
    elif dim is not None:
        chain.map(np.eye(dim, output_dim(model.calibration, model.pooled_dim)))
    return [*model.head, *chain.close(), *([Unit()] if normalize else [])]
