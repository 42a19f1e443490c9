"""Choosing a calibration without labels, and refusing one that the dropout views do not favour over none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastflow.errors import CannotFit
from fastflow.stages.calibration import Stage, apply, keeps_mean
from fastflow.train.choice.separability import MARGIN, Views
from fastflow.train.methods.chain import Fitted

AUTO = "flow"  # with recolour after it: chosen on STS12-14 (bench/results/verdicts.md)
AUTO_STREAMED = "whiten,recolour"  # its closed-form sibling, for a corpus that is read once


@dataclass
class Choice:
    """The calibration that is shipped, and why: ``record`` for the manifest, ``reasons`` for the log and the card.

    ``views`` are those that it was judged by, None without a judgement.
    """

    fitted: Fitted
    method: str
    views: Views | None = None
    record: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


def judge(stages: Sequence[Stage], views: Views) -> float:
    """The separability of ``views`` after ``stages``, in float64; about the mean if they keep a part."""
    wide = [stage.astype(np.float64) for stage in stages]
    return views.judge(lambda x: np.asarray(apply(wide, x)), keeps_mean(stages))


def choose(method: str, fit: Callable[[str], Fitted], views: Views, automatic: bool = False) -> Choice:
    """Fit ``method`` and keep it, unless it separates ``views`` no better than the pooling that it calibrates.

    Methods that keep a part of the mean are judged about the mean, and the pooling with them: dropout views cannot show
    whether a mean should go. ``automatic``: nobody named the method, so a corpus that it cannot be fitted to is a
    reason to keep the pooling, not an error.
    """
    choice = Choice(Fitted(), "none", views, {"rule": "separability of dropout views", "texts": len(views.first)})
    try:
        fitted = fit(method)
    except CannotFit as error:
        if not automatic:
            raise
        choice.record |= {
            "separability": {"none": round(views.judge(), 4), method: None},
            "looks": [],
            "chosen": "none",
        }
        choice.reasons.append(f"auto keeps the pooling as it is: {method} cannot be fitted, because {error}")
        return choice
    raw, value = views.judge(centred=keeps_mean(fitted.stages)), judge(fitted.stages, views)
    choice.reasons += [_stop(look) for look in fitted.looks]
    if value > raw * (1 + MARGIN):
        choice.fitted, choice.method = fitted, method
    values = {"none": round(raw, 4), method: round(value, 4)}
    choice.record |= {"separability": values, "looks": choice.fitted.looks, "chosen": choice.method}
    about = " about their mean" if keeps_mean(fitted.stages) else ""
    choice.reasons.append(_verdict(method, choice.method, raw, value, about, automatic))
    return choice


def _stop(look: dict[str, Any]) -> str:
    """Why the flow is the one of that step."""
    last = look["kept_step"] == look["steps"]
    step = f"the last of {look['steps']} steps" if last else f"step {look['kept_step']} of {look['steps']}"
    return f"flow: kept {step}, where its latent best separates two dropout views of a text from other texts"


def _verdict(method: str, chosen: str, raw: float, value: float, about: str, automatic: bool) -> str:
    """The choice with its two numbers."""
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
