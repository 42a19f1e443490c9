"""The page of token_weights: its tables, and each claim about the default as a computed figure and a yes or no."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.bench.study_data import CONFIRM, FIT
from fastflow.evaluate import SEVEN

TARGET = "target"
TEMPLATE = Path(__file__).with_name("token_weights.template.md")
BEFORE = "nullspace:10"  # what auto tried before it was changed
WANTED = 1.0  # points by which the default is to lead the better of flow and whitening on plain pooling
Scores = dict[str, list[float]]


def means(scores: Scores, sets: Sequence[str] = SEVEN) -> NDArray[np.float64]:
    """(2,) `all` and `wmean` over ``sets``."""
    return np.asarray(np.mean([scores[name] for name in sets], axis=0))


def pair(values: Sequence[float] | NDArray[np.float64], sign: str = "") -> str:
    """``all / wmean``."""
    return " / ".join(f"{value:{sign}.1f}" for value in values)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text."""
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


class Closed:
    """The closed forms of ``result`` by what they are fitted on."""

    def __init__(self, result: dict[str, Any]) -> None:
        self._scores = {(r["fitted_on"], r["weights"], r["method"]): r["spearman"] for r in result["closed"]}
        self.fits = list(dict.fromkeys(where for where, *_ in self._scores))
        self.columns = list(dict.fromkeys((weights, method) for _, weights, method in self._scores))

    def __call__(self, where: str, weights: str, method: str) -> Scores:
        return self._scores[where, weights, method]

    def means(self, sets: Sequence[str]) -> str:
        """Every closed form over ``sets``."""
        heads = [f"{'plain' if w == 'plain' else 'weights'}: {m.replace(':', ' ')}" for w, m in self.columns]
        rows = [[where, *(pair(means(self(where, *c), sets)) for c in self.columns)] for where in self.fits]
        return table(["fitted on", *heads], rows)

    def steps(self, removed: Sequence[str]) -> str:
        """What weights, directions and centring each add to the mean of `all` and `wmean` over the seven sets."""
        rows = []
        for where in self.fits:
            raw, weighted = (self.mean(where, weights, "none") for weights in ("plain", "sif"))
            cells = [f"{raw:.1f}", f"{weighted - raw:+.1f}"]
            for k in removed:
                kept, centred = (self.mean(where, "sif", f"{kind}:{k}") for kind in ("directions", "nullspace"))
                cells += [f"{gain:+.1f}" for gain in (kept - weighted, centred - kept, centred - weighted)]
            rows.append([where, *cells])
        heads = [name for k in removed for name in (f"then directions {k}", "then centred", f"both: nullspace {k}")]
        return table(["fitted on", "plain: none", "weights alone", *heads], rows)

    def blind(self) -> str:
        """The closed forms by STS12-14 alone: on the target, on the corpora, and the middle of the two, best first."""
        rows = []
        for weights, method in self.columns:
            own = self.mean(TARGET, weights, method, FIT)
            others = float(np.mean([self.mean(where, weights, method, FIT) for where in self.fits if where != TARGET]))
            name = f"{'plain' if weights == 'plain' else 'weights'}: {method.replace(':', ' ')}"
            rows.append([name, f"{own:.1f}", f"{others:.1f}", f"{(own + others) / 2:.1f}"])
        rows.sort(key=lambda row: -float(row[-1]))
        return table(["", "target", "mean of the corpora", "middle"], rows)

    def mean(self, where: str, weights: str, method: str, sets: Sequence[str] = SEVEN) -> float:
        """Of `all` and `wmean` over ``sets``."""
        return float(means(self(where, weights, method), sets).mean())

    def sets(self) -> str:
        """Gains over raw pooling set by set."""
        rows = []
        for where in self.fits:
            raw = self(where, "plain", "none")
            for method in ("none", "nullspace:3", "nullspace:10"):
                found = self(where, "sif", method)
                gains = [np.subtract(found[name], raw[name]) for name in SEVEN]
                rows.append([f"{where}, {method}", *(pair(gain, "+") for gain in gains), f"{np.min(gains):+.2f}"])
        return table(["fitted on, with weights", *SEVEN, "least"], rows)


def peers(result: dict[str, Any], where: str) -> list[NDArray[np.float64]]:
    """(2,) seven-set means of flows and whitening on plain pooling: of quality.json, else of this run."""
    found = [np.asarray(row["mean"]) for row in result["published"] if row["fitted_on"] == where]
    if found:
        return found
    runs = [row for row in result["plain_flow"] if row["fitted_on"] == where]
    return [means(row["spearman"]) for row in runs] + [means(Closed(result)(where, "plain", "whiten"))]


def defaults(result: dict[str, Any]) -> list[dict[str, Any]]:
    """For each of what was fitted on: what auto chose, the means over seeds, and the margins of every claim."""
    closed, out = Closed(result), []
    for where in closed.fits:
        raw = closed(where, "plain", "none")
        runs = [run for run in result["default"] if run["fitted_on"] == where]
        scores = np.array([means(run["spearman"]) for run in runs])
        gains = np.array([[np.subtract(run["spearman"][name], raw[name]) for name in SEVEN] for run in runs])
        better = np.max(peers(result, where), axis=0)
        alone, ten = (closed(where, "sif", method) for method in ("none", BEFORE))
        out.append(
            {
                "fitted_on": where,
                "seeds": [run["seed"] for run in runs],
                "chosen": dict(Counter(c["chosen"] for run in runs for c in run["choices"].values())),
                "mean": scores.mean(axis=0).tolist(),
                "deviation": scores.std(axis=0, ddof=1).tolist() if len(runs) > 1 else None,
                "least_gain_of_the_mean": float((scores - means(raw)).min()),
                "least_gain_on_a_set": float(gains.min()),
                "least_on": SEVEN[int(gains.min(axis=(0, 2)).argmin())],
                "over_weights_alone": (scores.mean(axis=0) - means(alone)).tolist(),
                "least_gain_on_a_set_with_ten": float(min(np.subtract(ten[n], raw[n]).min() for n in SEVEN)),
                "better_of_flow_and_whitening": better.tolist(),
                "lead": (scores.mean(axis=0) - better).tolist(),
            }
        )
    return out


def handicaps(result: dict[str, Any]) -> str:
    """The separability of what rescales against the rest, and whether Spearman follows it."""
    closed, rows = Closed(result), []
    removed = nullspace(result)
    for where in closed.fits:
        runs = [run for run in result["default"] if run["fitted_on"] == where]
        ratios = []
        for found in (found for run in runs for found in run["choices"].values()):
            rescaled = [found[name] for name in ("whiten", "flow") if found.get(name) is not None]
            others = [found[name] for name in ("none", "standardize", removed) if found.get(name) is not None]
            ratios.append(max(rescaled) / max(others) if rescaled else float("nan"))
        pairs = ((closed.mean(where, "sif", m, sets) for m in ("whiten", removed)) for sets in (FIT, CONFIRM))
        rows.append([where, f"{max(ratios):.2f}", *(f"{whiten - null:+.1f}" for whiten, null in pairs)])
    return table(["fitted on", "ratio of separability", "whiten's gain, STS12-14", "whiten's gain, the rest"], rows)


def nullspace(result: dict[str, Any]) -> str:
    """The nullspace that auto tries."""
    return next(str(name) for name in result["auto"]["candidates"] if name.startswith("nullspace"))


def claims(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each claim, the figure that decides it, and whether it holds."""
    low = min(rows, key=lambda row: row["least_gain_of_the_mean"])
    what = "no default run, whatever the corpus and the seed, is below raw pooling on the seven-set mean"
    gain = low["least_gain_of_the_mean"]
    out = [{"claim": what, "figure": f"least gain {gain:+.2f} ({low['fitted_on']})", "holds": gain >= 0}]
    for row in rows:
        what = f"{row['fitted_on']}: the default beats raw pooling on each of the seven sets"
        gain = row["least_gain_on_a_set"]
        out.append({"claim": what, "figure": f"least gain {gain:+.2f} ({row['least_on']})", "holds": gain > 0})
    for row in rows:
        what = f"{row['fitted_on']}: it leads the better of plain flow and whitening by {WANTED:g} or more"
        lead = " / ".join(f"{value:+.2f}" for value in row["lead"])
        out.append({"claim": what, "figure": f"lead {lead}", "holds": min(row["lead"]) >= WANTED})
    return out


def default_table(rows: Sequence[dict[str, Any]]) -> str:
    """The default over corpora."""
    out = []
    for row in rows:
        spread = [f"±{d:.1f}" for d in row["deviation"]] if row["deviation"] else ["", ""]
        cells = [
            row["fitted_on"],
            ", ".join(map(str, row["seeds"])),
            ", ".join(f"{name} ×{count}" for name, count in row["chosen"].items()),
            " / ".join(f"{mean:.1f}{d}" for mean, d in zip(row["mean"], spread, strict=True)),
            f"{row['least_gain_of_the_mean']:+.1f}",
            f"{row['least_gain_on_a_set']:+.1f} ({row['least_on']})",
            f"{row['least_gain_on_a_set_with_ten']:+.1f}",
            pair(row["over_weights_alone"], "+"),
            pair(row["better_of_flow_and_whitening"]),
            pair(row["lead"], "+"),
        ]
        out.append(cells)
    heads = ["fitted on", "seeds", "auto chose", "seven-set mean", "least gain of the mean over raw"]
    heads += ["least gain on a set", f"the same of {BEFORE.replace(':', ' ')}", "gain over weights alone"]
    return table([*heads, "better of plain flow and whitening", "lead"], out)


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    closed = Closed(result)
    told = [[c["claim"], c["figure"], "yes" if c["holds"] else "**NO**"] for c in result["claims"]]
    return TEMPLATE.read_text().format(
        command=result["command"],
        encoder=result["encoder"],
        a=result["a"],
        removed=nullspace(result).replace(":", " "),
        handicap=result["auto"]["handicap"],
        handicaps=handicaps(result),
        texts=", ".join(f"{name} {result['texts'][name]:,}" for name in closed.fits if name != TARGET),
        seven=closed.means(SEVEN),
        fit=closed.means(FIT),
        confirm=closed.means(CONFIRM),
        steps=closed.steps(("3", "10")),
        blind=closed.blind(),
        sets=closed.sets(),
        defaults=default_table(result["defaults"]),
        claims=table(["claim", "measured", "holds"], told),
    )
