"""Conclusions from ``default``'s figures: the blind choice, and each claim with the figure that decides it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

Run = dict[str, Any]
GROUPS = ("target", "corpora", "few", "subsets")
CLOSE = 0.1  # candidates that do as well as the best
SIMPLEST = ("none", "components", "nullspace", "whiten", "flow")
NOISE = 1.0  # points: what a subset of a few hundred pairs moves by when its pairs are drawn again


def blind_choice(rows: list[Run]) -> dict[str, Any]:
    """The mean score of each candidate over groups, places and seeds; and the simplest within CLOSE."""
    of: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in rows:
        for label, value in row["scores"].items():
            of[label][row["group"]][row["place"]].append(value)
    most = {group: max(len(found[group]) for found in of.values()) for group in GROUPS}
    whole = {
        label: {group: float(np.mean([np.mean(seeds) for seeds in found[group].values()])) for group in GROUPS}
        for label, found in of.items()
        if all(len(found[group]) == most[group] for group in GROUPS)
    }
    table = {label: row | {"mean": float(np.mean(list(row.values())))} for label, row in whole.items()}
    best = max(row["mean"] for row in table.values())
    near = [label for label, row in table.items() if row["mean"] > best - CLOSE]
    simplest = min(rank(label) for label in near)
    chosen = max((label for label in near if rank(label) == simplest), key=lambda label: table[label]["mean"])
    return {"table": table, "chosen": chosen, "best": best, "left_out": sorted(set(of) - set(whole))}


def rank(label: str) -> int:
    """How simple a candidate is, 0 the simplest."""
    return next(i for i, name in enumerate(SIMPLEST) if label.startswith(name))


def middle(run: Run, column: str) -> float:
    """The mean of ``all`` and ``wmean`` over the sets of a run."""
    return float(np.mean([run["scores"][column][name] for name in run["scores"][column]]))


def gains(runs: list[Run], group: str, over: str, column: str = "default") -> list[tuple[float, Run]]:
    """The gain of ``column`` over another at every run of a group; one that no seed changes is that of seed 0."""
    first = {run["place"]: run for run in runs if run["seed"] == 0}
    out = []
    for run in runs:
        if run["group"] == group and column in run["scores"]:
            beside = run if over in run["scores"] else first[run["place"]]
            out.append((middle(run, column) - middle(beside, over), run))
    return out


def claims(runs: list[Run]) -> list[dict[str, Any]]:
    """Each claim with the figure that decides it."""
    fits = ("target", "corpora")
    nine = [run for run in runs if run["group"] in fits and run["place"] != "mix"]
    target, mix = ([middle(run, "default") for run in runs if run["place"] == where] for where in ("target", "mix"))
    above = [gain for group in fits for gain, run in gains(runs, group, "components:1") if run["place"] != "mix"]
    out = [
        _claim("target: the default reaches 65.4", np.mean(target), np.mean(target) >= 65.4),
        _claim("broad mix: the default reaches 64.8", np.mean(mix), np.mean(mix) >= 64.8),
        _claim("nine fits: on average 0.3 above components:1", np.mean(above), np.mean(above) >= 0.3),
        _claim("nine fits: never more than 0.3 below components:1", min(above), min(above) >= -0.3),
        _range(runs, fits, {run["place"] for run in nine}),
    ]
    for group, label in (("few", "100 to 3,000 texts"), ("subsets", "subsets on themselves")):
        found = gains(runs, group, "raw")
        low, run = min(found, key=lambda pair: pair[0])
        shown = f"{low:+.2f} ({run['place']}, seed {run['seed']})"
        out.append({"claim": f"{label}, every seed: not below raw pooling by more than {NOISE:g}", "measured": shown,
                    "holds": bool(low >= -NOISE)})  # fmt: skip
    return out


def _range(runs: list[Run], groups: tuple[str, ...], where: set[str]) -> dict[str, Any]:
    found = [gain for group in groups for gain, run in gains(runs, group, "raw") if run["place"] in where]
    claim = "nine fits, every seed: above raw pooling"
    return {"claim": claim, "measured": f"{min(found):.2f} to {max(found):.2f}", "holds": min(found) > 0}


def _claim(text: str, value: float | np.floating[Any], holds: bool | np.bool_) -> dict[str, Any]:
    return {"claim": text, "measured": f"{value:.2f}", "holds": bool(holds)}
