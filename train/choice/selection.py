"""Choosing a calibration without labels, and refusing one that the dropout views do not favour over raw pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastflow.errors import FastflowError
from fastflow.stages.calibration import Stage, apply
from fastflow.train.choice.separability import MARGIN, Views
from fastflow.train.methods.chain import Fitted
from fastflow.train.methods.names import parse_method

# candidates of auto, chosen on STS12-14 with the encoder in the package
WEIGHTED = ("components:1",)  # with token weights, on which nothing gained more: bench/results/token-weights.md
PLAIN = ("standardize", "nullspace:10", "whiten", "flow")  # every token counts 1: bench/results/study.md
RESCALING = ("whiten", "flow")
REFITTED = 1.2  # margin required of the methods that rescale every direction


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


def candidates(weighted: bool) -> tuple[str, ...]:
    """The methods that ``--method auto`` tries on means with token weights or without, simplest first."""
    return WEIGHTED if weighted else PLAIN


def judge(stages: Sequence[Stage], views: Views) -> float:
    """The separability of ``views`` after ``stages``, in float64."""
    wide = [stage.astype(np.float64) for stage in stages]
    return views.judge(lambda x: np.asarray(apply(wide, x)))


def choose(method: str, weighted: bool, fit: Callable[[str], Fitted], views: Views) -> Choice:
    """Fit ``method``, or for ``auto`` every candidate; keep the best by separability, and none that is below raw.

    Whitening and flows rescale every direction and so raise separability more than similarity: in ``auto`` they have to
    be REFITTED times as good as the best of the others. A candidate that cannot be fitted to this corpus is left out
    and named; raw pooling is always among them. Methods that keep the mean are judged about the mean, and
    raw pooling with them.
    """
    names = candidates(weighted) if method == "auto" else (method,)
    if keep_mean := all(link.kind == "components" for name in names for link in parse_method(name)):
        views = views.about_mean()
    raw = views.judge()
    choice = Choice(Fitted(), "none", views, {"rule": "separability of dropout views", "texts": len(views.first)})
    values: dict[str, float | None] = {"none": round(raw, 4)}
    best = raw * (1 + MARGIN)
    for name in names:
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
        if value > best * (margin := _margin(method, name)):
            choice.fitted, choice.method, best = fitted, name, value / margin
    choice.record |= {"separability": values, "looks": choice.fitted.looks, "chosen": choice.method}
    choice.reasons.append(_verdict(method, choice.method, values, best, " about their mean" if keep_mean else ""))
    return choice


def _margin(method: str, name: str) -> float:
    """How many times the separability of the others ``name`` must have."""
    return REFITTED if method == "auto" and name in RESCALING else 1.0


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


def _verdict(method: str, chosen: str, values: dict[str, float | None], best: float, about: str) -> str:
    """The choice with every number, and why no method of a larger number was taken; ``best`` is the one to exceed."""
    known = {name: value for name, value in values.items() if value is not None}
    listed = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
    short = [_too_small(method, chosen, name, best) for name, value in known.items() if value > known[chosen]]
    why = "".join(f"; {reason}" for reason in short)
    if method == "auto":
        return f"auto chose {chosen} by the separability of dropout views{about} ({listed}){why}"
    if chosen == method:
        return f"separability of dropout views{about}: {listed}"
    return (
        f"{method} was REFUSED and raw pooling kept: its dropout views are no better separated{about} ({listed}{why}), "
        "so it would fit the encoder's noise; give more text or more varied text, or keep it with --stop budget"
    )


def _too_small(method: str, chosen: str, name: str, best: float) -> str:
    """Why ``name``, whose number is larger than that of ``chosen``, was not taken: the value it needs, and why."""
    if (margin := _margin(method, name)) == 1:
        return f"{name} needs more than {best:.3f}, {100 * MARGIN:g} % above none, because a smaller gain may be chance"
    of = chosen if chosen != "none" else f"the {best:.3f} that the other methods need"
    return (
        f"{name} needs more than {margin * best:.3f}, {margin:g} times {of}, because whitening and flows raise this "
        "number more than they improve similarity"
    )
