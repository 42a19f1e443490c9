"""Fit a chain of closed forms and flows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.stages.calibration import Stage, apply_wide
from fastflow.stages.truncation import Joined, Rows
from fastflow.train.choice.separability import Keeper, Views, measure_separability
from fastflow.train.data.moments import Moments, measure_moments
from fastflow.train.methods.closed_forms import check_dims, fit_closed_form, mask_constant
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.loop import Source, Training, fit_flow
from fastflow.train.methods.names import Method
from fastflow.train.methods.recolour import fit_recolour, measure_joint
from fastflow.train.options import DEFAULTS

SAMPLE = 4096  # most rows to measure on
HELD_OUT = "held_out_likelihood"


@dataclass
class Fitted:
    """A fitted chain; for each flow, ``bits`` per dimension (Gaussian, flow) and ``looks``, measures at some steps."""

    stages: list[Stage] = field(default_factory=list)
    flows: dict[int, Flow] = field(default_factory=dict)
    bits: list[tuple[float, float]] = field(default_factory=list)
    looks: list[dict[str, Any]] = field(default_factory=list)


def check_chain(methods: Sequence[Method], dim: int, shape: dict[str, Any]) -> None:
    """Raise a UsageError if the chain cannot run on ``dim`` dimensions."""
    for method in methods:
        if method.kind == "flow":
            FlowConfig(dim=dim, **shape)
        elif method.dims is not None:
            check_dims(method.kind, method.dims, dim if method.kind == "whiten" else dim - 1)
            dim = method.dims if method.kind == "whiten" else dim


def make_flow_stage(flow: Flow) -> Stage:
    """Copy a trained flow to a stage."""
    params = {name: tensor.detach().cpu().numpy() for name, tensor in flow.state_dict().items()}
    return Stage("flow", dict(vars(flow.config)), params)


def fit_chain(
    methods: Sequence[Method],
    pooled: Rows,
    shape: dict[str, Any],
    training: Training,
    colour: dict[str, Any] | None = None,
    live: Source | None = None,
    statistics: Moments | None = None,
    background: NDArray[np.float32] | None = None,
) -> Fitted:
    """Fit ``methods``, one after the other, to embeddings ``pooled`` (n, D) and ``background`` (k, D).

    ``shape`` has FlowConfig's arguments, ``colour`` recolour's. ``live`` embeds texts anew, with dropout, at a flow's
    steps. If ``pooled`` is a sample, closed forms take ``statistics`` of the corpus.
    """
    rows: Rows = pooled if background is None else Joined(pooled, background)
    if statistics is not None and background is not None:
        statistics = measure_moments(background).merge(statistics)
    fitted, whole = Fitted(), statistics
    for index, method in enumerate(methods):
        stages = list(fitted.stages)
        if method.kind == "flow":
            dim = apply_wide(stages, pooled[:1]).shape[1]
            config = FlowConfig(dim=dim, **shape)
            checkpoint = training.checkpoints / f"stage-{index}.safetensors" if training.checkpoints else None
            source = _make_source(stages, live or rows.__getitem__)
            keeper = None if training.views is None else _make_keeper(stages, training.views)
            flow = fit_flow(source, len(rows), config, training, checkpoint, keeper)
            if keeper:
                fitted.looks.append(keeper.record())
            fitted.flows[index] = flow
            with torch.no_grad():
                bits = float(flow.bits_per_dimension(_to_tensor(stages, take_sample(rows))))
            if not math.isfinite(bits):
                raise FastflowError("training diverged: the final likelihood is not finite; use a smaller --lr")
            fitted.bits.append((_measure_gaussian_bits(apply_wide(stages, take_sample(rows))), bits))
            fitted.stages.append(make_flow_stage(flow))
        elif method.kind == "recolour":
            dim = np.asarray(pooled[:1]).shape[1]
            joint = measure_joint(stages, rows) if whole is None else whole.join(stages)
            fitted.stages.append(fit_recolour(joint, dim, **(colour or DEFAULTS.colour)))
        else:
            known = statistics or measure_moments(rows, partial(apply_wide, stages))
            fitted.stages.append(fit_closed_form(method.kind, method.dims, known))
            statistics = statistics and statistics.push_through(fitted.stages[-1])
    return fitted


def _make_keeper(stages: list[Stage], views: Views | NDArray[np.float32]) -> Keeper:
    if isinstance(views, Views):
        first, second = (_to_tensor(stages, side) for side in (views.first, views.second))
        return Keeper(lambda flow: measure_separability(flow(first)[0].numpy(), flow(second)[0].numpy()))
    x = _to_tensor(stages, views)
    return Keeper(lambda flow: -float(flow.bits_per_dimension(x)), HELD_OUT)


def _to_tensor(stages: Sequence[Stage], x: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(apply_wide(stages, x).astype(np.float32))


def _make_source(stages: list[Stage], rows: Callable[[NDArray[np.int64]], NDArray[Any]]) -> Source:
    return lambda index: apply_wide(stages, rows(index)).astype(np.float32)


def take_sample(pooled: Rows) -> NDArray[Any]:
    """Take up to SAMPLE rows, evenly spaced."""
    return np.asarray(pooled[:: -(-len(pooled) // SAMPLE)])


def _measure_gaussian_bits(x: NDArray[np.float64]) -> float:
    constant = mask_constant(x.mean(axis=0), x.var(axis=0))
    entropy = np.log2(np.where(constant, 1.0, x.std(axis=0))) + 0.5 * np.log2(np.e) * ~constant
    return float(np.mean(entropy) + 0.5 * np.log2(2 * np.pi))
