"""The sentence at the head of a report: which subject is best, and whether calibration helped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastflow.report.parts import Section
from fastflow.report.subjects import MODEL, UNCALIBRATED, baseline

NO_SCORES = (
    "This page has no verdict: only pairs with human scores or tasks show whether calibration helped, and none were "
    "given (--sts PAIRS.tsv, --eval TASK)."
)
SPEARMAN = (
    "Spearman ×100 compares two orders of the same sentence pairs, by cosine and by human score: 100 is the same "
    "order, 0 no relation."
)
TASKS = "Every measure is ×100: 100 is perfect. The section on tasks explains each."
NONE = float("nan")
FEW = 500  # pairs; the standard error of a Spearman of 0.6 is then about 3 points
NO_PROOF = 100  # pairs; with fewer it is 7 points and more
FEWER_PAIRS = " So few pairs cannot decide."
FEW_PAIRS = " With so few pairs a difference of several points may be chance."
AUC = "AUC ×100 is the chance that a matching pair has the higher cosine: 100 is always, 50 a coin's toss."


def of_sections(sections: Sequence[Section]) -> tuple[str, str]:
    """(verdict, meaning of its measure) from similarity if it was measured, else from the tasks, else from QNLI."""
    found = {section.id: section.data for section in sections}
    if "similarity" in found:
        means = {name: result["average"] for name, result in found["similarity"].items()}
        result = next(iter(found["similarity"].values()))
        count = len(result["average"]["sets"])
        pairs = sum(row["pairs"] for row in result["rows"] if row["set"] in result["average"]["sets"])
        over = f"over one set of {pairs:,} pairs" if count == 1 else f"averaged over {count} sets of {pairs:,} pairs"
        values = {name: mean["all"] for name, mean in means.items()}
        few = FEWER_PAIRS if pairs < NO_PROOF else FEW_PAIRS if pairs < FEW else ""
        return verdict(f"Spearman ×100 with human scores, {over}", values) + _chance(means) + few, SPEARMAN
    if "tasks" in found:
        return of_tasks(found["tasks"])
    if "qnli" in found:
        return verdict("AUC ×100 on QNLI", {n: row["auc"] for n, row in found["qnli"].items()}), AUC
    return NO_SCORES, ""


def of_tasks(rows: Mapping[str, Sequence[dict[str, Any]]]) -> tuple[str, str]:
    """The verdict on the first measure of each task: its value for one task, the mean for several."""
    firsts = {name: [next(iter(row["measures"].items())) for row in found] for name, found in rows.items()}
    values = {name: sum(found["value"] for _, found in each) / len(each) for name, each in firsts.items()}
    sets = [row["set"] for row in rows[MODEL]]
    measure = (
        f"{firsts[MODEL][0][0]} on {sets[0]}" if len(sets) == 1 else f"mean of the first measures of {len(sets)} tasks"
    )
    return verdict(measure, values), TASKS


def verdict(measure: str, values: Mapping[str, float]) -> str:
    """One or two sentences on ``values`` (subject -> a figure of which more is better) as printed with two decimals."""
    shown = {name: round(value, 2) for name, value in values.items()}
    if undefined := [name for name, value in shown.items() if value != value]:
        return f"This page has no verdict: the {measure} is undefined for {_listed(undefined)}."
    own, base = shown[MODEL], baseline(list(shown))
    if base is None:
        return f"By {measure}, the model has {own:.2f}; nothing was given to compare it with (--against)."
    top = max(shown.values())
    first = [name for name, value in shown.items() if value == top]
    failed = "calibration did not help" if base in UNCALIBRATED else f"the model is no better than {base}"
    if own == top == shown[base]:
        return f"By {measure}, {failed}: {_listed(first)} are equal at {top:.2f}."
    place = "is the best" if len(first) == 1 else "are equal and the best"
    figure = f"{top:.2f}" if base in first else _beside(top, base, shown[base])
    best = f"By {measure}, {_listed(first)} {place} of {len(shown)}: {figure}."
    if MODEL in first:
        return best + _next(shown, base) * (len(first) == 1)
    if own > shown[base]:
        return f"{best} The model has {_beside(own, base, shown[base])}."
    return f"{best} {failed[0].upper()}{failed[1:]}: the model has {_beside(own, base, shown[base])}."


def _chance(means: Mapping[str, Mapping[str, Any]]) -> str:
    """The sentence on how far the lead over the baseline would move with other pairs; empty if it is not known."""
    base = baseline(list(means))
    low, high = means[base].get("model_leads_by", (NONE, NONE)) if base else (NONE, NONE)
    if low != low:
        return ""
    return (
        f" With other pairs of the same kind the lead of the model over {base} would be {low:.1f} to {high:.1f} (95 %)."
    )


def _next(shown: Mapping[str, float], base: str) -> str:
    """The nearest rival of a model that is the best, unless that is the baseline."""
    rival = max((name for name in shown if name != MODEL), key=lambda name: shown[name])
    return "" if rival == base else f" Next is {rival}, {shown[MODEL] - shown[rival]:.2f} below: {shown[rival]:.2f}."


def _beside(value: float, base: str, other: float) -> str:
    """A figure, and how far it is from the baseline's."""
    gain = round(value - other, 2)
    if not gain:
        return f"{value:.2f}, the same as {base}"
    return f"{value:.2f}, {abs(gain):.2f} {'above' if gain > 0 else 'below'} {base} ({other:.2f})"


def _listed(names: Sequence[str]) -> str:
    """One, one and another, or one, another and a third; the model with its article."""
    said = ["the model" if name == MODEL else name for name in names]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"
