"""The page of the study: study.jsonl in the words of study.template.md; rules are ranked on STS12-14 alone.

python -m fastflow.bench.research.study_page --out bench/results/study
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow.bench.research.quality import write
from fastflow.bench.research.study import read
from fastflow.bench.research.study_data import CONFIRM, FIT
from fastflow.evaluation.evaluate import SEVEN

Line = dict[str, Any]
TEMPLATE = Path(__file__).with_name("study.template.md")
RULE = "drop.separability"
LAST = "(the last step)"
AUTO = ("none", "standardize", "nullspace:10", "whiten", "flow")  # what auto tried when the study was made
REFITTED = 1.2  # and the factor by which whitening and flows had to be better separated than the others


def score(line: Line, sets: Sequence[str]) -> float:
    """Mean of `all` and `wmean` over those of ``sets`` that the line has; NaN if none."""
    values = [np.mean(line["spearman"][name]) for name in sets if name in line["spearman"]]
    return float(np.mean(values)) if values else float("nan")


def pair(lines: Iterable[Line], sets: Sequence[str]) -> str:
    """``all / wmean`` over sets, mean and deviation over lines."""
    found = np.array([np.mean([line["spearman"][name] for name in sets], axis=0) for line in lines])
    mean = found.mean(axis=0)
    if len(found) == 1:
        return f"{mean[0]:.1f} / {mean[1]:.1f}"
    spread = found.std(axis=0, ddof=1)
    return f"{mean[0]:.1f}±{spread[0]:.1f} / {mean[1]:.1f}±{spread[1]:.1f}"


def trajectories(lines: Sequence[Line], group: str) -> dict[str, list[Line]]:
    """Lines of a group by run, in order of steps."""
    out: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line["group"] == group and "spearman" in line:
            out[line["key"]].append(line)
    return dict(out)


def stopped(run: Sequence[Line], signal: str) -> Line:
    """The line of a run that a rule stops at."""
    return run[-1] if signal == LAST else max(run, key=lambda line: line["signals"][signal])


def regrets(runs: Iterable[Sequence[Line]], signal: str, sets: Sequence[str]) -> list[float]:
    """For each run with a score on ``sets``: how far the rule's stop is below the best look of the run."""
    found = [(score(stopped(run, signal), sets), [score(line, sets) for line in run]) for run in runs]
    return [max(every) - kept for kept, every in found if np.isfinite(kept)]


def rules(runs: dict[str, list[Line]]) -> list[dict[str, Any]]:
    """Every signal as a stopping rule, ranked by its mean regret on STS12-14."""
    flows = [run for run in runs.values() if len(run) > 1]
    rows = []
    for signal in [LAST, *flows[0][0]["signals"]]:
        fit, confirm = (regrets(flows, signal, sets) for sets in (FIT, CONFIRM))
        rows.append(
            {
                "signal": signal,
                "fit": [round(float(f(fit)), 2) for f in (np.mean, np.max)],
                "confirm": [round(float(f(confirm)), 2) for f in (np.mean, np.max)],
                "runs": [len(fit), len(confirm)],
            }
        )
    return sorted(rows, key=lambda row: row["fit"][0])


def describe(line: Line) -> str:
    """A run's settings in a few words."""
    noise = ", dropout noise" if line["noise"] else ""
    shape = "".join(f", {name} {value}" for name, value in line["shape"].items())
    before = f"{line['before']} → " if line["before"] else ""
    before = f"token weights, {before}" if line["pooling"] == "@sif" else before
    return f"{before}{line['method']}" + (
        f", {line['init']} start, lr {line['lr']:g}{noise}{shape}" if line["method"] == "flow" else ""
    )


def collapse(lines: Sequence[Line]) -> list[str]:
    """One row a run: raw, start, best look, the rule's, the last; STS12-14 and the rest apart."""
    raw = {line["corpus"]: line for line in lines if line["group"] == "closed" and line["method"] == "none"}
    out = [
        "| fitted on | run | sets | raw | start | best look | rule (step) | last |",
        "| --- " * 2 + "| --- " + "| ---: " * 5 + "|",
    ]
    for run in trajectories(lines, "collapse").values():
        kept = stopped(run, RULE)
        for label, sets in (("12-14", FIT), ("rest", CONFIRM)):
            if not np.isfinite(score(kept, sets)):
                continue
            values = [score(line, sets) for line in run]
            corpus = run[0]["corpus"]
            out.append(
                f"| {corpus} | {describe(run[0])} | {corpus if corpus in SEVEN else label} | "
                f"{score(raw[corpus], sets):.1f} | {values[0]:.1f} | {max(values):.1f} | "
                f"{score(kept, sets):.1f} ({kept['step']}) | {values[-1]:.1f} |"
            )
    return out


def selection(lines: Sequence[Line]) -> tuple[list[str], dict[str, list[float]]]:
    """What ``--method auto`` would choose on each corpus, against every candidate; and its loss to the best one."""
    found: dict[str, dict[str, Line]] = defaultdict(dict)
    for line in lines:
        if line["group"] == "closed" and "spearman" in line:
            found[line["corpus"]][line["method"]] = line
    for run in trajectories(lines, "collapse").values():
        first = run[0]
        if first["lr"] == 1e-3 and first["init"] == "data" and not first["noise"] and not first["shape"]:
            found[first["corpus"]]["flow"] = stopped(run, RULE)
    out = [
        "| fitted on | sets | " + " | ".join(AUTO) + " | auto | its loss |",
        "| --- " * 2 + "| ---: " * len(AUTO) + "| --- | ---: |",
    ]
    losses: dict[str, list[float]] = {"12-14": [], "rest": []}
    for corpus, methods in found.items():
        if not set(AUTO) <= set(methods) | {"whiten"}:
            continue
        handicap = dict.fromkeys(("whiten", "flow"), REFITTED)
        chosen = max((m for m in AUTO if m in methods), key=lambda m: methods[m]["signals"][RULE] / handicap.get(m, 1))
        for label, sets in (("12-14", FIT), ("rest", CONFIRM)):
            values = {m: score(methods[m], sets) for m in AUTO if m in methods}
            if np.isfinite(values[chosen]):
                loss = max(values.values()) - values[chosen]
                losses[label].append(loss)
                cells = [f"{values[m]:.1f}" if m in values else "-" for m in AUTO]
                where = corpus if corpus in SEVEN else label
                out.append(f"| {corpus} | {where} | " + " | ".join(cells) + f" | {chosen} | {loss:.1f} |")
    return out, losses


def summary(lines: Sequence[Line]) -> tuple[list[str], dict[str, dict[str, float]]]:
    """Seven-set means by what was fitted on; *target* is each set on its own sentences. And the gains over raw."""
    found: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line["group"] == "closed" and "spearman" in line:
            found["target" if line["corpus"] in SEVEN else line["corpus"]][line["method"]].append(line)
    for run in trajectories(lines, "collapse").values():
        if (run[0]["lr"], run[0]["init"], run[0]["noise"], run[0]["shape"]) == (1e-3, "data", False, {}):
            where = found["target" if run[0]["corpus"] in SEVEN else run[0]["corpus"]]
            where["flow, rule"].append(stopped(run, RULE))
            where[f"flow, {run[-1]['step']} steps"].append(run[-1])
    columns = list(dict.fromkeys(name for methods in found.values() for name in methods))
    out = [f"| fitted on | {' | '.join(columns)} |", "| --- " + "| ---: " * len(columns) + "|"]
    gains: dict[str, dict[str, float]] = {}
    for corpus, methods in found.items():
        cells, gains[corpus] = [], {}
        for name in columns:
            scores = {key: value for line in methods[name] for key, value in line["spearman"].items()}
            if set(scores) != set(SEVEN):
                cells.append("-")
                continue
            means = np.mean(list(scores.values()), axis=0)
            cells.append(f"{means[0]:.1f} / {means[1]:.1f}")
            gains[corpus][name] = float(np.mean(means))
        raw = gains[corpus]["none"]
        gains[corpus] = {name: round(value - raw, 2) for name, value in gains[corpus].items()}
        out.append(f"| {corpus} | " + " | ".join(cells) + " |")
    return out, gains


def beyond(lines: Sequence[Line]) -> list[str]:
    """Variants: mean and deviation over seeds of what the rule keeps, each corpus a column pair."""
    table: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for run in trajectories(lines, "beyond").values():
        table[describe(run[0])][run[0]["corpus"]].append(stopped(run, RULE))
    columns = [
        ("snli", FIT),
        ("snli", CONFIRM),
        ("STS13", ("STS13",)),
        ("STSb-test", ("STSb-test",)),
    ]
    heads = ["snli: STS12-14", "snli: the rest", "STS13, target", "STSb, target"]
    out = ["| variant | " + " | ".join(heads) + " | seeds |", "| --- " + "| ---: " * (len(heads) + 1) + "|"]
    for name, by_corpus in table.items():
        cells = [pair(by_corpus[c], sets) if by_corpus.get(c) else "-" for c, sets in columns]
        counts = sorted({len(by_corpus[c]) for c, _ in columns})
        out.append(f"| {name} | " + " | ".join(cells) + f" | {'-'.join(map(str, counts))} |")
    return out


def poolings(lines: Sequence[Line], group: str) -> list[str]:
    """Layers or poolings, fitted on the target: separability on STS12-14 and Spearman of closed forms."""
    cell: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        if line["group"] == group and "spearman" in line:
            name = f"{line['pooling'].strip('@')} layers {','.join(map(str, line['layers']))}".strip()
            name += ", fitted on snli" if line["corpus"] == "snli" else ""
            cell[name, line["method"]].append(line)
    methods = ("none", "nullspace:10", "whiten")
    heads = [f"{method}: separability | STS12-14 | rest" for method in methods]
    out = [f"| | {' | '.join(heads)} |", "| --- " + "| ---: " * 9 + "|"]
    for name in dict.fromkeys(name for name, _ in cell):
        cells = []
        for method in methods:
            rows = cell[name, method]
            on_fit = [row["signals"][RULE] for row in rows if row["corpus"] in (*FIT, "snli")]
            cells.append(f"{np.mean(on_fit):.2f}" if on_fit else "-")
            for sets in (FIT, CONFIRM):
                values = [value for row in rows if np.isfinite(value := score(row, sets))]
                cells.append(f"{np.mean(values):.1f}" if values else "-")
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    return out


def build(lines: Sequence[Line]) -> tuple[str, dict[str, Any]]:
    """The page and its figures."""
    ranked = rules(trajectories(lines, "collapse"))
    chosen, losses = selection(lines)
    overview, gains = summary(lines)
    figures = {
        "rules": ranked,
        "auto_loss": {name: [round(float(f(v)), 2) for f in (np.mean, np.max)] for name, v in losses.items()},
        "gain_over_raw": gains,
    }
    table = ["| signal | STS12-14: mean | worst | the rest: mean | worst |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in ranked:
        name = f"**{row['signal']}**" if row["signal"] == RULE else row["signal"]
        cells = [f"{value:.2f}" for value in (*row["fit"], *row["confirm"])]
        table.append(f"| {name} | " + " | ".join(cells) + " |")
    tables = {
        "summary": overview,
        "rules": table,
        "collapse": collapse(lines),
        "auto": chosen,
        "beyond": beyond(lines),
        "layers": poolings(lines, "layers"),
        "pooling": poolings(lines, "pooling"),
    }
    fit, confirm = ranked[0]["runs"]
    words = {name: "\n".join(rows) for name, rows in tables.items()}
    return TEMPLATE.read_text().format(**words, fit_runs=fit, confirm_runs=confirm, handicap=REFITTED), figures


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="From OUT.jsonl, OUT.md and OUT.json.")
def main(out: Path) -> None:
    """Make the page."""
    markdown, figures = build(read(out.with_suffix(".jsonl")))
    write(out, figures, markdown)


if __name__ == "__main__":
    main()
