"""Fold a calibration into plans (merged matrices) that kernels run; computed in float64.

ActNorms and permutations between couplings merge: y = M u + t, M a diagonal times a gather, and couplings update the
state u. A dense matrix after couplings begins another plan, as do a coupling of another kind, channels that float32
cannot scale back, and a level whose channels are scattered over u. Neighbours with dense matrices are stacked if that
takes fewer products. No dense matrix is inverted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.flow import Plan
from fastflow.plan.builder import LARGEST, Builder, join, magnitude
from fastflow.transforms.calibration import Stage, check, keeps_mean

Array = NDArray[Any]
FEW = 8  # least channels per direction to remove it by half of a dense matrix's products


def fold(stages: Sequence[Stage], dim: int) -> tuple[Plan, ...]:
    """Fold ``stages`` on ``dim`` channels into float64 plans, run in order; errors name the stage at fault."""
    check(stages, dim)
    builder = Builder(dim)
    _add_stages(builder, stages)
    builder.close()
    plans = join(builder.done)
    _check_range(plans)
    return tuple(plans)


def _add_stages(builder: Builder, stages: Sequence[Stage]) -> None:
    for position, stage in enumerate(stages):
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                if stage.kind == "nullspace" and position == len(stages) - 1:
                    _last_nullspace(builder, stage.astype(np.float64))
                elif stage.kind == "nullspace" and keeps_mean([stage]) and stages[position + 1].kind == "flow":
                    _components(builder, stage.astype(np.float64), stages[position + 1].astype(np.float64))
                else:
                    _FOLDS[stage.kind](builder, stage.astype(np.float64))
        except FloatingPointError as error:
            raise FastflowError(
                f"calibration stage {position} ({stage.kind}) does not fold to finite numbers ({error}); "
                "its parameters are beyond use: fit it again"
            ) from error


def _check_range(plans: Sequence[Plan]) -> None:
    for plan in plans:
        for array in plan.arrays().values():
            if not magnitude(array) <= LARGEST:  # false for NaN
                raise FastflowError(f"the calibration folds to numbers above {LARGEST:g}, beyond float32; fit it again")


def _standardize(builder: Builder, stage: Stage) -> None:
    builder.scale(1 / stage.params["deviation"], -stage.params["mean"])


def _nullspace(builder: Builder, stage: Stage) -> None:
    mean, directions = stage.params["mean"], stage.params["directions"]
    builder.scale(np.ones(len(mean)), -mean)
    if len(directions):
        builder.dense(np.eye(len(mean)) - directions.T @ directions)


def _components(builder: Builder, stage: Stage, flow: Stage) -> None:
    """Apply P x as P (x + b) - P b, b the flow's first shift, so that products stay small."""
    directions, shift = stage.params["directions"], flow.params["levels.0.0.actnorm.shift"]
    ones = np.ones(len(shift))
    builder.scale(ones, shift)
    _nullspace(builder, stage)
    builder.scale(ones, -(shift - directions.T @ (directions @ shift)))


def _last_nullspace(builder: Builder, stage: Stage) -> None:
    """Remove few directions V as the equation does: a dense I - V^T V rounds each channel like the largest."""
    directions = stage.params["directions"]
    if builder.diagonal and 0 < len(directions) * FEW <= directions.shape[1]:
        builder.scale(np.ones(directions.shape[1]), -stage.params["mean"])
        builder.remove(directions)
    else:
        _nullspace(builder, stage)


def _whiten(builder: Builder, stage: Stage) -> None:
    mean, matrix = stage.params["mean"], stage.params["matrix"]
    builder.scale(np.ones(len(mean)), -mean)
    builder.dense(matrix.T)


def _recolour(builder: Builder, stage: Stage) -> None:
    mean, matrix = stage.params["mean"], stage.params["matrix"]
    builder.scale(np.ones(len(mean)), -mean)
    builder.dense(matrix.T)
    builder.scale(np.ones(len(mean)), stage.params["shift"])


def _linear(builder: Builder, stage: Stage) -> None:
    builder.dense(stage.params["matrix"].T)
    builder.scale(np.ones(len(stage.params["shift"])), stage.params["shift"])


def _flow(builder: Builder, stage: Stage) -> None:
    s = stage.settings
    for level in range(s["levels"]):
        if level:
            builder.split()
        for index in range(s["depth"]):
            prefix = f"levels.{level}.{index}."
            step = {k.removeprefix(prefix): v for k, v in stage.params.items() if k.startswith(prefix)}
            _step(builder, step, s["coupling"], s["permutation"])
    builder.join()


def _step(builder: Builder, step: dict[str, Array], coupling: str, permutation: str) -> None:
    builder.scale(np.exp(3 * step["actnorm.logscale"]), step["actnorm.shift"])
    if permutation == "reversal":
        builder.permute(np.arange(len(step["actnorm.shift"]))[::-1])
    elif permutation == "random":
        builder.permute(step["permutation.index"])
    else:
        builder.dense(_lu(step))
    net = {k.removeprefix("coupling.net."): v for k, v in step.items() if k.startswith("coupling.net.")}
    scale1, scale2, scale3 = (np.exp(3 * net[f"logscale{i}"]) for i in (1, 2, 3))
    layers = (
        (scale1[:, None] * net["weight1"], scale1 * net["shift1"]),
        (scale2[:, None] * net["weight2"], scale2 * net["shift2"]),
        (scale3[:, None] * net["weight3"], scale3 * net["bias3"]),
    )
    if coupling == "affine":
        builder.couple_affine(*layers)
    else:
        builder.couple_additive(*layers)


def _lu(step: dict[str, Array]) -> Array:
    diagonal = np.diag(step["permutation.sign"] * np.exp(step["permutation.logdiag"]))
    lower = np.tril(step["permutation.lower"], -1) + np.eye(len(diagonal))
    product: Array = lower @ (np.triu(step["permutation.upper"], 1) + diagonal)
    return product[step["permutation.index"]]


_FOLDS = {
    "standardize": _standardize, "nullspace": _nullspace, "whiten": _whiten, "recolour": _recolour,
    "linear": _linear, "flow": _flow,
}  # fmt: skip
