"""Fit a chain of closed forms and flows, and compare it with the pooling by dropout views."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.errors import CannotFit, FastflowError
from fastflow.train.data.moments import Moments, measure_moments
from fastflow.train.methods.closed_forms import check_dims, fit_closed_form, fit_recolour, mask_constant, measure_joint
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.loop import Source, Training, fit_flow
from fastflow.train.options import DEFAULTS, Method
from fastflow.train.reporter import name_options
from fastflow.train.selection.separability import MARGIN, Keeper, Views, measure_separability
from fastflow.transforms.calibration import Stage, apply_wide, keeps_mean
from fastflow.transforms.truncation import Joined, Rows

SAMPLE = 4096  # most rows to measure on


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
                raise FastflowError(
                    name_options("training diverged: the final likelihood is not finite; use a smaller {lr}")
                )
            fitted.bits.append((_measure_gaussian_bits(apply_wide(stages, take_sample(rows))), bits))
            fitted.stages.append(make_flow_stage(flow))
        elif method.kind == "recolour":
            dim = np.asarray(pooled[:1]).shape[1]
            joint = measure_joint(stages, rows) if whole is None else whole.join(stages)
            fitted.stages.append(fit_recolour(joint, dim, **(colour or DEFAULTS.colour)))
        else:
            if (stage := method.stage) is None:
                known = statistics or measure_moments(rows, partial(apply_wide, stages))
                stage = fit_closed_form(method.kind, method.dims, known)
            fitted.stages.append(stage)
            statistics = statistics and statistics.push_through(fitted.stages[-1])
    return fitted


def _make_keeper(stages: list[Stage], views: Views) -> Keeper:
    first, second = (_to_tensor(stages, side) for side in (views.first, views.second))
    return Keeper(lambda flow: measure_separability(flow(first)[0].numpy(), flow(second)[0].numpy()))


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


@dataclass
class Choice:
    """The chosen calibration; ``record`` is for the manifest, ``reasons`` for log and card."""

    fitted: Fitted
    method: str
    views: Views | None = None
    record: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    doubt: str | None = None


def measure_stages(stages: Sequence[Stage], views: Views) -> float:
    """Measure the separability after ``stages`` in float64, about a mean that they keep."""
    return views.measure(partial(apply_wide, stages), keeps_mean(stages))


def choose(method: str, fit: Callable[[], Fitted], views: Views, automatic: bool = False) -> Choice:
    """Fit ``method``, and compare how it and the pooling separate ``views``.

    If the method keeps a part of the mean, both are compared about the mean. ``automatic`` keeps the pooling if the
    method is no better or cannot be fitted; else the method stays, with a doubt.
    """
    choice = Choice(Fitted(), "none", views, {"rule": "separability of dropout views", "texts": len(views.first)})
    try:
        fitted = fit()
    except CannotFit as error:
        if not automatic:
            raise
        values = {"none": round(views.measure(), 4), method: None}
        choice.record |= {"separability": values, "looks": [], "chosen": "none"}
        choice.reasons.append(f"auto keeps the pooling as it is: {method} cannot be fitted, because {error}")
        return choice
    raw, value = views.measure(centred=keeps_mean(fitted.stages)), measure_stages(fitted.stages, views)
    choice.reasons += [_explain_stop(look) for look in fitted.looks]
    better, about = value > raw * (1 + MARGIN), " about their mean" if keeps_mean(fitted.stages) else ""
    numbers = f"none {raw:.3f}, {method} {value:.3f}"
    worse = f"{method} separates dropout views{about} no better than the pooling ({numbers}"
    if value > raw:
        worse += f"; it needs more than {raw * (1 + MARGIN):.3f}, because a smaller gain may be chance"
    if automatic and not better:
        choice.reasons.append(f"auto keeps the pooling as it is: {worse})")
    else:
        choice.fitted, choice.method = fitted, method
        chose = f"auto chose {method}: " if automatic else ""
        choice.reasons.append(f"{chose}separability of dropout views{about}: {numbers}")
    if not (automatic or better or method.startswith("groups")):
        choice.doubt = name_options(
            "{worse}), so it may fit noise of the encoder: compare {method:none} on pairs of your own", worse=worse
        )
    separability = {"none": round(raw, 4), method: round(value, 4)}
    choice.record |= {"separability": separability, "looks": choice.fitted.looks, "chosen": choice.method}
    return choice


def _explain_stop(look: dict[str, Any]) -> str:
    last = look["kept_step"] == look["steps"]
    step = f"the last of {look['steps']} steps" if last else f"step {look['kept_step']} of {look['steps']}"
    return f"flow: kept {step}, where its latent best separates two dropout views of a text from other texts"
