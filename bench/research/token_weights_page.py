"""The page of token_weights: what STS12-14 choose, the tables, and each claim as a computed figure and a yes or no."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.study_data import CONFIRM, FIT
from fastflow.evaluation.evaluate import SEVEN

TARGET = "target"
TEMPLATE = Path(__file__).with_name("token_weights.template.md")
NEAR = 0.1  # points of Spearman within which two methods do equally well
SHOWN = ("none", "components:1", "nullspace:3")
WANTED = 1.0  # points by which the default is to lead the better of flow and whitening on plain pooling
Scores = dict[str, list[float]]
SETS = {"seven": SEVEN, "fit": FIT, "confirm": CONFIRM}


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


class Candidates:
    """The candidates of ``result`` by what they are fitted on."""

    def __init__(self, result: dict[str, Any]) -> None:
        self._scores = {(r["fitted_on"], r["weights"], r["method"]): r["spearman"] for r in result["candidates"]}
        self.fits = list(dict.fromkeys(where for where, *_ in self._scores))
        self.methods = list(dict.fromkeys(method for *_, method in self._scores))

    def __call__(self, where: str, weights: str, method: str) -> Scores:
        return self._scores[where, weights, method]

    def means(self, weights: str, sets: Sequence[str]) -> str:
        """Every method over ``sets``."""
        rows = [[where, *(pair(means(self(where, weights, m), sets)) for m in self.methods)] for where in self.fits]
        return table(["fitted on", *(m.replace(":", " ") for m in self.methods)], rows)

    def steps(self, removed: Sequence[str]) -> str:
        """What weights, components and centring each add to the mean of `all` and `wmean` over the seven sets."""
        rows = []
        for where in self.fits:
            raw, weighted = (self.mean(where, weights, "none") for weights in ("plain", "sif"))
            cells = [f"{raw:.1f}", f"{weighted - raw:+.1f}"]
            for k in removed:
                kept, centred = (self.mean(where, "sif", f"{kind}:{k}") for kind in ("components", "nullspace"))
                cells += [f"{gain:+.1f}" for gain in (kept - weighted, centred - kept, centred - weighted)]
            rows.append([where, *cells])
        heads = [name for k in removed for name in (f"then components {k}", "then centred", f"both: nullspace {k}")]
        return table(["fitted on", "plain: none", "weights alone", *heads], rows)

    def middles(self, weights: str) -> dict[str, tuple[float, float, float]]:
        """By STS12-14 alone, for each method: on the target, on the corpora, and the middle of the two."""
        out = {}
        for method in self.methods:
            own = self.mean(TARGET, weights, method, FIT)
            others = float(np.mean([self.mean(where, weights, method, FIT) for where in self.fits if where != TARGET]))
            out[method] = (own, others, (own + others) / 2)
        return out

    def mean(self, where: str, weights: str, method: str, sets: Sequence[str] = SEVEN) -> float:
        """Of `all` and `wmean` over ``sets``."""
        return float(means(self(where, weights, method), sets).mean())

    def sets(self) -> str:
        """Gains over raw pooling set by set."""
        rows = []
        for where in self.fits:
            raw = self(where, "plain", "none")
            for method in SHOWN:
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
    return [means(row["spearman"]) for row in runs] + [means(Candidates(result)(where, "plain", "whiten"))]


def defaults(result: dict[str, Any]) -> list[dict[str, Any]]:
    """For each of what was fitted on: what auto chose, the means over seeds, and the margins of every claim."""
    found, out = Candidates(result), []
    for where in found.fits:
        raw = found(where, "plain", "none")
        runs = [run for run in result["default"] if run["fitted_on"] == where]
        scores = np.array([means(run["spearman"]) for run in runs])
        gains = np.array([[np.subtract(run["spearman"][name], raw[name]) for name in SEVEN] for run in runs])
        better = np.max(peers(result, where), axis=0)
        alone = found(where, "sif", "none")
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
                "better_of_flow_and_whitening": better.tolist(),
                "lead": (scores.mean(axis=0) - better).tolist(),
            }
        )
    return out


def blind_choice(result: dict[str, Any]) -> dict[str, Any]:
    """What STS12-14 alone choose for each pooling: of the methods within NEAR of the best middle, the simplest."""
    found, out = Candidates(result), {}
    for weights in ("plain", "sif"):
        middles = found.middles(weights)
        best = max(middle for *_, middle in middles.values())
        method = next(name for name, (*_, middle) in middles.items() if middle >= best - NEAR)
        out[weights] = {"method": method, "middle": middles[method][2], "best": best}
    return out


def blind_table(result: dict[str, Any]) -> str:
    """Both poolings by STS12-14 alone, best first."""
    found, rows = Candidates(result), []
    for weights, words in (("plain", "plain"), ("sif", "weights")):
        for method, values in found.middles(weights).items():
            name = f"{words}: {method.replace(':', ' ')}"
            rows.append((values, f"**{name}**" if method == result["choice"][weights]["method"] else name))
    rows.sort(key=lambda row: -row[0][2])
    cells = [[name, *(f"{value:.2f}" for value in values)] for values, name in rows]
    return table(["", "target", "mean of the corpora", "middle"], cells)


def claims(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Each claim, the figure that decides it, and whether it holds."""
    rows, choice = result["defaults"], result["choice"]
    shipped = [name for row in rows for name in row["chosen"]]
    taken, alike = choice["sif"], choice["plain"]["best"]
    figure = f"{taken['method']} {taken['middle']:.2f}, tokens alike {alike:.2f} at best"
    what = "every default run ships what STS12-14 alone choose, token weights included"
    out = [{"claim": what, "figure": figure, "holds": set(shipped) == {taken["method"]} and taken["middle"] > alike}]
    low = min(rows, key=lambda row: row["least_gain_of_the_mean"])
    runs = f"none of the {sum(len(row['seeds']) for row in rows)} default runs on these {len(rows)} fits"
    what = f"{runs} is below raw pooling on the seven-set mean"
    gain = low["least_gain_of_the_mean"]
    out.append({"claim": what, "figure": f"least gain {gain:+.2f} ({low['fitted_on']})", "holds": gain >= 0})
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
            pair(row["over_weights_alone"], "+"),
            pair(row["better_of_flow_and_whitening"]),
            pair(row["lead"], "+"),
        ]
        out.append(cells)
    heads = ["fitted on", "seeds", "auto chose", "seven-set mean", "least gain of the mean over raw"]
    heads += ["least gain on a set", "gain over weights alone"]
    return table([*heads, "better of plain flow and whitening", "lead"], out)


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    found = Candidates(result)
    told = [[c["claim"], c["figure"], "yes" if c["holds"] else "**NO**"] for c in result["claims"]]
    return TEMPLATE.read_text().format(
        command=result["command"],
        encoder=result["encoder"],
        a=result["a"],
        texts=", ".join(f"{name} {result['texts'][name]:,}" for name in found.fits if name != TARGET),
        near=NEAR,
        chosen=result["choice"]["sif"]["method"].replace(":", " "),
        **{f"{w}_{name}": found.means(w, sets) for w in ("plain", "sif") for name, sets in SETS.items()},
        steps=found.steps(("1", "3", "10")),
        blind=blind_table(result),
        sets=found.sets(),
        defaults=default_table(result["defaults"]),
        claims=table(["claim", "measured", "holds"], told),
    )
