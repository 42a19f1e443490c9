"""Judge a calibration by the separability of dropout views."""

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
    """The chosen calibration; ``record`` is for the manifest, ``reasons`` for log and card."""

    fitted: Fitted
    method: str
    views: Views | None = None
    record: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    doubt: str | None = None


def judge(stages: Sequence[Stage], views: Views) -> float:
    """Measure the separability after ``stages`` in float64, about a mean that they keep."""
    return views.judge(partial(apply_wide, stages), keeps_mean(stages))


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
        values = {"none": round(views.judge(), 4), method: None}
        choice.record |= {"separability": values, "looks": [], "chosen": "none"}
        choice.reasons.append(f"auto keeps the pooling as it is: {method} cannot be fitted, because {error}")
        return choice
    raw, value = views.judge(centred=keeps_mean(fitted.stages)), judge(fitted.stages, views)
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
    if not (automatic or better):
        choice.doubt = f"{worse}), so it may fit noise of the encoder: compare --method none on pairs of your own"
    separability = {"none": round(raw, 4), method: round(value, 4)}
    choice.record |= {"separability": separability, "looks": choice.fitted.looks, "chosen": choice.method}
    return choice


def _explain_stop(look: dict[str, Any]) -> str:
    last = look["kept_step"] == look["steps"]
    step = f"the last of {look['steps']} steps" if last else f"step {look['kept_step']} of {look['steps']}"
    return f"flow: kept {step}, where its latent best separates two dropout views of a text from other texts"
