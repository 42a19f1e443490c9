"""Choosing a calibration without labels, and refusing one that the dropout views do not favour over raw pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastflow.calibration import Stage, apply
from fastflow.errors import FastflowError
from fastflow.train.calibrate import Fitted
from fastflow.train.criterion import MARGIN, Views

SPARED = 100  # dimensions for each principal direction that nullspace removes (Mu & Viswanath 2018)
REFITTED = 1.5  # what rescales every direction must separate this much better than what does not
# both were set with the package's encoder after all seven sets had been looked at: bench/results/token-weights.md


@dataclass
class Choice:
    """What is shipped and why: ``record`` for the manifest, ``reasons`` as sentences for the log and the card."""

    fitted: Fitted
    method: str
    record: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


def candidates(dim: int) -> tuple[str, ...]:
    """The methods that ``--method auto`` tries on ``dim`` dimensions, simplest first."""
    return ("standardize", f"nullspace:{max(1, round(dim / SPARED))}", "whiten", "flow")


def judge(stages: Sequence[Stage], views: Views) -> float:
    """The separability of ``views`` after ``stages``, in float64."""
    wide = [stage.astype(np.float64) for stage in stages]
    return views.judge(lambda x: np.asarray(apply(wide, x)))


def choose(method: str, dim: int, fit: Callable[[str], Fitted], views: Views) -> Choice:
    """Fit ``method``, or for ``auto`` every candidate; keep the best by separability, and none that is below raw.

    Whitening and flows rescale every direction and so raise separability more than similarity: in ``auto`` they have to
    be REFITTED times as good as the best of the others. A candidate that cannot be fitted to this corpus is left out
    and named; raw pooling is always among them.
    """
    raw = views.judge()
    choice = Choice(Fitted(), "none", {"rule": "separability of dropout views", "texts": len(views.first)})
    values: dict[str, float | None] = {"none": round(raw, 4)}
    best = raw * (1 + MARGIN)
    for name in candidates(dim) if method == "auto" else [method]:
        try:
            fitted = fit(name)
        except FastflowError as error:
            if method != "auto":
                raise
            values[name] = None
            choice.reasons.append(f"{name} was left out: {error}")
            continue
        value = judge(fitted.stages, views)
        values[name] = round(value, 4)
        choice.reasons += [_stop(look) for look in fitted.looks]
        if method == "auto" and name in ("whiten", "flow"):
            value /= REFITTED
        if value > best:
            choice.fitted, choice.method, best = fitted, name, value
    choice.record |= {"separability": values, "looks": choice.fitted.looks, "chosen": choice.method}
    choice.reasons.append(_verdict(method, choice.method, values))
    return choice


def _stop(look: dict[str, Any]) -> str:
    """Why the flow is the one of that step."""
    last = look["history"][-1][1]
    if look["kept_step"] == look["steps"]:
        return (
            f"flow: kept the last of {look['steps']} steps, where separability was largest, {look['separability']:.3f}"
        )
    return (
        f"flow: kept step {look['kept_step']} of {look['steps']}, where separability was largest: "
        f"{look['separability']:.3f}, against {last:.3f} at the end"
    )


def _verdict(method: str, chosen: str, values: dict[str, float | None]) -> str:
    told = ", ".join(f"{name} {value:.3f}" for name, value in values.items() if value is not None)
    if method == "auto":
        return (
            f"auto chose {chosen} by the separability of dropout views ({told}; whiten and flow have to be {REFITTED} "
            "times as good as the others)"
        )
    if chosen == method:
        return f"separability of dropout views: {told}"
    return (
        f"{method} was REFUSED and raw pooling kept: its dropout views are no better separated ({told}), so it would "
        "follow the encoder's noise; give more or more varied text, or --stop budget to have it all the same"
    )
