"""The sentence at the head of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastflow.report.models import MODEL, UNCALIBRATED, find_baseline

HIGHEST, LOWEST = float("inf"), float("-inf")


@dataclass(frozen=True)
class Line:
    """A row: one measure of every subject (column), with 95 % ``intervals`` (low, high) and best value ``toward``."""

    name: str
    values: Mapping[str, float]
    toward: float = HIGHEST
    digits: int = 2
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def distances(self) -> dict[str, float]:
        """Compute how far each printed value is from the best; with HIGHEST and LOWEST the results only order them."""
        shown = {name: float(f"{x:.{self.digits}f}") for name, x in self.values.items()}
        if self.toward in (HIGHEST, LOWEST):
            return {name: -x if self.toward == HIGHEST else x for name, x in shown.items()}
        return {name: round(abs(x - self.toward), 9) for name, x in shown.items()}  # 0.3 - 0.2 and 0.4 - 0.3 are a tie

    def best(self) -> set[str]:
        """Find the subjects nearest to ``toward``; empty if there is only one subject."""
        off = {name: away for name, away in self.distances().items() if away == away}
        least = min(off.values(), default=0.0)
        return {name for name, away in off.items() if away == least} if len(self.values) > 1 else set()


@dataclass(frozen=True)
class Section:
    """Rows of the table, their explanation, an SVG with caption, and ``data`` of --json."""

    id: str
    title: str
    text: str
    data: Any
    lines: Sequence[Line] = ()
    plot: str = ""
    caption: str = ""


def format_figure(value: float, digits: int) -> str:
    """Format a number, never as minus zero."""
    text = f"{value:.{digits}f}"
    return "undefined" if value != value else text if float(text) else text.lstrip("-")


NO_SCORES = (
    "This page has no verdict: only pairs with human scores or tasks show whether calibration helped, and none were "
    "given (--sts PAIRS.tsv, --eval TASK)."
)
SPEARMAN = (
    "Spearman ×100 compares two orders of the same sentence pairs, by cosine and by human score: 100 is the same "
    "order, 0 no relation."
)
TASKS = "Every measure is ×100: 100 is perfect. The section on tasks explains each."
AUC = "AUC ×100 is the chance that a matching pair has the higher cosine: 100 is always, 50 a coin's toss."
FEW = 500  # pairs: the standard error of a Spearman of 0.6 is about 3 points
NO_PROOF = 100  # pairs: the standard error is at least 7 points
FEWER_PAIRS = " So few pairs cannot decide."
FEW_PAIRS = " With so few pairs a difference of several points may be chance."


def judge_sections(sections: Sequence[Section]) -> tuple[str, str]:
    """Return (verdict, meaning of its measure) from similarity, else tasks, else QNLI."""
    found = {section.id: section.data for section in sections}
    if "similarity" in found:
        return _judge_similarity(found["similarity"]), SPEARMAN
    if "tasks" in found:
        return _judge_tasks(found["tasks"]), TASKS
    if "qnli" in found:
        return judge("AUC ×100 on QNLI", {n: row["auc"] for n, row in found["qnli"].items()}), AUC
    return NO_SCORES, ""


def _judge_similarity(found: Mapping[str, Any]) -> str:
    means = {name: result["average"] for name, result in found.items()}
    averaged, rows = means[MODEL]["sets"], found[MODEL]["rows"]
    pairs = sum(row["pairs"] for row in rows if row["set"] in averaged)
    over = "over one set" if len(averaged) == 1 else f"averaged over {len(averaged)} sets"
    values = {name: mean["all"] for name, mean in means.items()}
    said = judge(f"Spearman ×100 with human scores, {over} of {pairs:,} pairs", values)
    base = find_baseline(list(means))
    low, high = means[base].get("model_leads_by", (None, None)) if base else (None, None)
    if low is not None and low == low:
        said += f" With other pairs of the same kind the lead of the model over {base} would be "
        said += f"{low:.1f} to {high:.1f} (95 %)."
    return said + (FEWER_PAIRS if pairs < NO_PROOF else FEW_PAIRS if pairs < FEW else "")


def _judge_tasks(rows: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    firsts = {name: [next(iter(row["measures"].items())) for row in found] for name, found in rows.items()}
    values = {name: sum(found["value"] for _, found in each) / len(each) for name, each in firsts.items()}
    sets = [row["set"] for row in rows[MODEL]]
    if len(sets) > 1:
        return judge(f"mean of the first measures of {len(sets)} tasks", values)
    return judge(f"{firsts[MODEL][0][0]} on {sets[0]}", values)


def judge(measure: str, values: Mapping[str, float]) -> str:
    """Write the verdict on ``values`` (subject -> figure, higher is better), as printed."""
    shown = {name: round(value, 2) for name, value in values.items()}
    if undefined := [name for name, value in shown.items() if value != value]:
        return f"This page has no verdict: the {measure} is undefined for {_list(undefined)}."
    own, base = shown[MODEL], find_baseline(list(shown))
    if base is None:
        return f"By {measure}, the model has {own:.2f}; nothing was given to compare it with (--against)."
    top = max(shown.values())
    first = [name for name, value in shown.items() if value == top]
    failed = "calibration did not help" if base in UNCALIBRATED else f"the model is no better than {base}"
    if own == top == shown[base]:
        return f"By {measure}, {failed}: {_list(first)} are equal at {top:.2f}."
    place = "is the best" if len(first) == 1 else "are equal and the best"
    figure = f"{top:.2f}" if base in first else _compare(top, base, shown[base])
    best = f"By {measure}, {_list(first)} {place} of {len(shown)}: {figure}."
    if own > shown[base] and MODEL not in first:
        return f"{best} The model has {_compare(own, base, shown[base])}."
    if MODEL not in first:
        return f"{best} {failed[0].upper()}{failed[1:]}: the model has {_compare(own, base, shown[base])}."
    rival = max((name for name in shown if name != MODEL), key=lambda name: shown[name])
    if rival == base or len(first) > 1:
        return best
    return f"{best} Next is {rival}, {own - shown[rival]:.2f} below: {shown[rival]:.2f}."


def _compare(value: float, base: str, other: float) -> str:
    gain = round(value - other, 2)
    if not gain:
        return f"{value:.2f}, the same as {base}"
    return f"{value:.2f}, {abs(gain):.2f} {'above' if gain > 0 else 'below'} {base} ({other:.2f})"


def _list(names: Sequence[str]) -> str:
    said = ["the model" if name == MODEL else name for name in names]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"
