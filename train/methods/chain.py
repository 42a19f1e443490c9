"""method -> fitted stages: the flow and the closed-form calibrations, alone or in a chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.stages.calibration import Stage, apply
from fastflow.stages.rows import Joined, Rows
from fastflow.train.choice.held_out import HELD_OUT, HeldOut
from fastflow.train.choice.separability import Keeper, Views, separability
from fastflow.train.data.moments import Moments, moments
from fastflow.train.methods.closed_forms import check_dims, fit_closed_form
from fastflow.train.methods.constant import constant_channels
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.loop import Fitting, Source, fit_flow
from fastflow.train.methods.names import Method
from fastflow.train.methods.recolour import fit_recolour, joint_moments
from fastflow.train.options import DEFAULTS

SAMPLE = 4096  # texts on which before and after are measured


@dataclass
class Fitted:
    """The fitted chain: its stages, the PyTorch flows by stage number, bits per dimension of each flow."""

    stages: list[Stage] = field(default_factory=list)
    flows: dict[int, Flow] = field(default_factory=dict)
    bits: list[tuple[float, float]] = field(default_factory=list)  # before and after training, a flow stage each
    looks: list[dict[str, Any]] = field(default_factory=list)  # a flow stage each, if stopped by the rule


def check_chain(methods: Sequence[Method], dim: int, shape: dict[str, Any]) -> None:
    """Raise a UsageError if the chain cannot run on ``dim`` dimensions: known before anything is embedded."""
    for method in methods:
        if method.kind == "flow":
            FlowConfig(dim=dim, **shape)
        elif method.dims is not None:
            check_dims(method.kind, method.dims, dim if method.kind == "whiten" else dim - 1)
            dim = method.dims if method.kind == "whiten" else dim


def flow_stage(flow: Flow) -> Stage:
    """The plain-data description of a trained flow."""
    params = {name: tensor.detach().cpu().numpy() for name, tensor in flow.state_dict().items()}
    return Stage("flow", dict(flow.config.as_dict()), params)


def fit(
    methods: Sequence[Method],
    pooled: Rows,
    shape: dict[str, Any],
    fitting: Fitting,
    colour: dict[str, Any] | None = None,
    live: Source | None = None,
    statistics: Moments | None = None,
    background: NDArray[np.float32] | None = None,
) -> Fitted:
    """Fit the chain on cached embeddings ``pooled`` (n, D); ``live`` replaces them while a flow trains (dropout).

    ``shape`` holds levels, depth, width, coupling and permutation of any flow in the chain, ``colour`` the settings of
    recolour (None: the defaults). ``statistics`` of the whole corpus, if ``pooled`` is only a sample, serve the closed
    forms; the chain then has no flow. Every stage is fitted to the rows of ``background`` (k, D) after those of the
    corpus, whose numbers ``live`` counts too; bits per dimension are of both.
    """
    rows: Rows = pooled if background is None else Joined(pooled, background)
    if statistics is not None and background is not None:
        statistics = moments(background).merge(statistics)
    fitted, whole = Fitted(), statistics
    for index, method in enumerate(methods):
        stages = list(fitted.stages)
        if method.kind == "flow":
            dim = _through(stages, pooled[:1]).shape[1]
            config = FlowConfig(dim=dim, **shape)
            checkpoint = fitting.checkpoints / f"stage-{index}.safetensors" if fitting.checkpoints else None
            source = _source(stages, live or rows.__getitem__)
            keeper = _keeper(stages, fitting.views) if fitting.views else None
            flow = fit_flow(source, len(rows), config, fitting, checkpoint, keeper)
            if keeper:
                fitted.looks.append(keeper.record())
            fitted.flows[index] = flow
            bits = _bits(flow, stages, rows)
            if not math.isfinite(bits):
                raise FastflowError("training diverged: the final likelihood is not finite; use a smaller --lr")
            fitted.bits.append((_gaussian_bits(_through(stages, sample(rows))), bits))
            fitted.stages.append(flow_stage(flow))
        elif method.kind == "recolour":
            dim = np.asarray(pooled[:1]).shape[1]
            joint = joint_moments(stages, rows) if whole is None else whole.beside(stages)
            fitted.stages.append(fit_recolour(joint, dim, **(colour or DEFAULTS.colour)))
        else:
            known = statistics or moments(_View(stages, rows) if stages else rows)
            fitted.stages.append(fit_closed_form(method.kind, method.dims, known))
            statistics = statistics and statistics.through(fitted.stages[-1])
    return fitted


def _keeper(stages: list[Stage], views: Views | HeldOut) -> Keeper:
    """The keeper of a flow's best step after ``stages``: by dropout views, or by the likelihood of held-out rows."""
    if isinstance(views, HeldOut):
        x = torch.from_numpy(_through(stages, views.rows).astype(np.float32))
        return Keeper(views.measure(x), HELD_OUT)
    return Keeper(_measure(stages, views))


def _measure(stages: list[Stage], views: Views) -> Callable[[Flow], float]:
    """flow -> the separability of ``views`` after ``stages`` and the flow."""
    sides = [torch.from_numpy(_through(stages, side).astype(np.float32)) for side in (views.first, views.second)]

    @torch.no_grad()
    def measure(flow: Flow) -> float:
        return separability(*(flow(side)[0].numpy() for side in sides))

    return measure


class _View:
    """(n, D') embeddings after ``stages``, computed a slice at a time."""

    def __init__(self, stages: list[Stage], pooled: Rows) -> None:
        self._stages, self._pooled = stages, pooled
        self.shape = (len(pooled), _through(stages, pooled[:1]).shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return _through(self._stages, self._pooled[rows])


def _through(stages: Sequence[Stage], x: NDArray[Any]) -> NDArray[np.float64]:
    """(b, D) after ``stages``, in float64."""
    return np.asarray(apply([stage.astype(np.float64) for stage in stages], np.asarray(x, np.float64)))


def _source(stages: list[Stage], rows: Callable[[NDArray[np.int64]], NDArray[Any]]) -> Source:
    if not stages:
        return lambda index: np.ascontiguousarray(rows(index), np.float32)
    return lambda index: _through(stages, rows(index)).astype(np.float32)


def sample(pooled: Rows) -> NDArray[Any]:
    """Up to SAMPLE rows, evenly spaced."""
    return np.asarray(pooled[:: -(-len(pooled) // SAMPLE)])


@torch.no_grad()
def _bits(flow: Flow, stages: list[Stage], pooled: Rows) -> float:
    x = torch.from_numpy(_through(stages, sample(pooled)).astype(np.float32))
    return float(flow.bits_per_dimension(x))


def _gaussian_bits(x: NDArray[np.float64]) -> float:
    """Bits per dimension of (n, D) under independent Gaussians fitted to it, 2.05 + log2 sigma: to be beaten.

    A constant channel counts as in the flow: one of deviation 1, at its mean.
    """
    constant = constant_channels(x.mean(axis=0), x.var(axis=0))
    entropy = np.log2(np.where(constant, 1.0, x.std(axis=0))) + 0.5 * np.log2(np.e) * ~constant
    return float(np.mean(entropy) + 0.5 * np.log2(2 * np.pi))
