"""Choose a calibration by the separability of dropout views, or refuse it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastflow.errors import CannotFit
from fastflow.stages.calibration import Stage, apply_wide, keeps_mean
from fastflow.train.choice.separability import MARGIN, Views
from fastflow.train.methods.chain import Fitted

AUTO, AUTO_STREAMED = "flow", "whiten,recolour"  # chosen on STS12-14 (bench/results/verdicts.md)


@dataclass
class Choice:
    """The chosen calibration; ``record`` is for the manifest, ``reasons`` are for log and card."""

    fitted: Fitted
    method: str
    views: Views | None = None
    record: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


def judge(stages: Sequence[Stage], views: Views) -> float:
    """Measure the separability after ``stages`` in float64, about the mean if they keep a part of it."""
    return views.judge(partial(apply_wide, stages), keeps_mean(stages))


def choose(method: str, fit: Callable[[], Fitted], views: Views, automatic: bool = False) -> Choice:
    """Fit ``method``, and keep it if it separates ``views`` better than the pooling.

    If the method keeps a part of the mean, both are compared about the mean. ``automatic`` keeps the pooling if the
    method cannot be fitted.
    """
    choice = Choice(Fitted(), "none", views, {"rule": "separability of dropout views", "texts": len(views.first)})
    try:
        fitted = fit()
    except CannotFit as error:
        if not automatic:
            raise
        values = {"none": round(views.judge(), 4), method: None}
        choice.record |= {"separability": values, "looks": [], "chosen": "none"}
        choice.reasons.append(f"auto keeps the pooling as it is: {method} cannot be fitted, because {error}")
        return choice
    raw, value = views.judge(centred=keeps_mean(fitted.stages)), judge(fitted.stages, views)
    choice.reasons += [_explain_stop(look) for look in fitted.looks]
    if value > raw * (1 + MARGIN):
        choice.fitted, choice.method = fitted, method
    separability = {"none": round(raw, 4), method: round(value, 4)}
    choice.record |= {"separability": separability, "looks": choice.fitted.looks, "chosen": choice.method}
    about = " about their mean" if keeps_mean(fitted.stages) else ""
    choice.reasons.append(_explain_choice(method, choice.method, raw, value, about, automatic))
    return choice


def _explain_stop(look: dict[str, Any]) -> str:
    last = look["kept_step"] == look["steps"]
    step = f"the last of {look['steps']} steps" if last else f"step {look['kept_step']} of {look['steps']}"
    return f"flow: kept {step}, where its latent best separates two dropout views of a text from other texts"


def _explain_choice(method: str, chosen: str, raw: float, value: float, about: str, automatic: bool) -> str:
    numbers = f"none {raw:.3f}, {method} {value:.3f}"
    if chosen == method:
        chose = f"auto chose {method}: " if automatic else ""
        return f"{chose}separability of dropout views{about}: {numbers}"
    why = f"its dropout views are no better separated{about} ({numbers}"
    if value > raw:
        why += f"; it needs more than {raw * (1 + MARGIN):.3f}, because a smaller gain may be chance"
    if automatic:
        return f"auto keeps the pooling as it is: {method} was refused, {why})"
    return (
        f"{method} was REFUSED and the pooling kept as it is: {why}), so it would fit the encoder's noise; give more "
        "text or more varied text, or keep it with --stop budget"
    )
