"""Compare ways to take the language out of vectors, and show what the method groups costs if groups are topics.

    python -m fastflow.bench.research.groups --data DIR --table DIR --out FILE.json

``--table``: ``multilingual`` as commit bf42663d made it. Directions are fitted to 3,000 sentences of each language of
data/langs. STSb-dev, the same sentences in four languages, chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow import Runtime
from fastflow.bench.measure.machine import describe
from fastflow.bench.report.table import write_json
from fastflow.evaluation.evaluate import find_tasks, measure
from fastflow.evaluation.labelled import LabelledTexts, read_labelled_texts, search_lines
from fastflow.train.data.corpus import read_texts
from fastflow.train.methods.closed_forms import fit_groups
from fastflow.transforms.calibration import apply_wide
from fastflow.transforms.vectors import shorten

HELD, FITTED = 200, 3000
DEV = {"en": "sts/STSb-dev.tsv", **{it: f"tasks/sts-multi/STSb-dev-{it}.tsv" for it in ("de", "ru", "zh")}}
Rows = NDArray[Any]
Change = Callable[[Rows, str], Rows]  # vectors (n, D) and their language


def list_ways(fitted: dict[str, Rows]) -> dict[str, Change]:
    """Return ways by name; LIR and the means need the language of a text."""
    rows, labels = np.concatenate(list(fitted.values())), [code for code, own in fitted.items() for _ in own]
    means = {code: own.mean(axis=0) for code, own in fitted.items()}
    every = np.mean(list(means.values()), axis=0)
    ways: dict[str, Change] = {"none": lambda x, code: x, "one mean of all": lambda x, code: x - every}
    ways["a mean of each language (Libovicky 2019)"] = lambda x, code: x - means[code]
    for count in (1, 7):
        own = {code: np.linalg.svd(each, full_matrices=False)[2][:count] for code, each in fitted.items()}
        ways[f"LIR, {count} directions (Yang 2021)"] = partial(
            lambda own, x, code: x - x @ own[code].T @ own[code], own
        )
    for count in (16, 29):
        stage = fit_groups(rows, labels, count)
        ways[f"LSAR, {count} directions (Xie 2022)"] = partial(lambda s, x, code: apply_wide([s], x), stage)
        ways[f"LSAR, {count}, centred"] = partial(lambda s, x, code: apply_wide([s], x - every), stage)
    return ways


def measure_way(change: Change, dev: dict[str, Any], vectors: dict[str, Rows]) -> dict[str, Any]:
    """Return Spearman of STSb-dev, and retrieval of its sentences from English."""
    sts = {code: measure(dev[code], change(vectors[code], code))["all"] for code in DEV}
    at: dict[str, int] = {}
    texts = list(zip(dev["en"].first + dev["en"].second, range(2 * len(dev["en"].first)), strict=True))
    lines = [number for text, number in texts if at.setdefault(text, number) == number]
    sides = {}
    for code, task in dev.items():
        place = {text: row for row, text in enumerate(task.texts)}
        sides[code] = np.array([place[(task.first + task.second)[number]] for number in lines])
    english = shorten(change(vectors["en"], "en"), True, None)[sides["en"]]
    n, found = len(lines), []
    for code in list(DEV)[1:]:
        x = np.concatenate([english, shorten(change(vectors[code], code), True, None)[sides[code]]])
        asked, wanted = np.arange(n), np.arange(n, 2 * n)
        found.append(
            [search_lines(x, asked, wanted)[0].mean(), *(s.mean() for s in search_lines(x, asked, wanted, True))]
        )
    apart, mixed, share = (100 * float(each) for each in np.mean(found, axis=0))
    return {**sts, "mean": fmean(sts.values()), "apart": apart, "mixed": mixed, "share": share}


def measure_topics(data: Path) -> dict[str, dict[str, list[float]]]:
    """Return V-measures before and after a fit whose groups are the classes, or of tickets the languages."""
    out: dict[str, dict[str, list[float]]] = {}
    for model in ("static", "multilingual"):
        with Runtime(model) as runtime:
            task = read_labelled_texts(data / "tasks/classes/agnews.tsv")
            x = runtime.encode(task.texts)
            z = apply_wide([fit_groups(x, [str(label) for label in task.labels], None)], x)
            out.setdefault("agnews", {})[model] = [task.measure_clusters(each).value for each in (x, z)]
    return out


@click.command(help=__doc__)
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--table", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.json")
def main(data: Path, table: Path, out: Path) -> None:
    """Measure and write."""
    dev: dict[str, Any] = {code: find_tasks([data / name])[0] for code, name in DEV.items()}
    tickets = Path("examples/tickets.tsv").read_text(encoding="utf-8").splitlines()[1:]
    _, topics, languages, texts = zip(*(line.split("\t") for line in tickets), strict=True)
    with Runtime(table) as runtime:
        fitted = {}
        for path in sorted((data / "langs").glob("*.txt.zst")):
            lines = list(read_texts([str(path)]))
            fitted[path.name[:2]] = runtime.encode(lines[:-HELD][:FITTED])
        vectors = {code: runtime.encode(task.texts) for code, task in dev.items()}
        before = runtime.encode(list(texts))
    rows = {name: measure_way(way, dev, vectors) for name, way in list_ways(fitted).items()}
    with Runtime("multilingual") as runtime:
        own = {"before": before, "own groups": apply_wide([fit_groups(before, languages, None)], before)}
        own["package"] = runtime.encode(list(texts))
    found = {}
    for name, x in own.items():
        for kind, labels in (("topics", topics), ("languages", languages)):
            task = LabelledTexts("", [], np.unique(labels, return_inverse=True)[1], np.arange(len(x)), [], [])
            found[f"{kind}, {name}"] = task.measure_clusters(x).value
    command = f"python -m fastflow.bench.research.groups --data .../data --table TABLE --out {out.name}"
    result = {"machine": describe(), "command": command, "ways": rows, "tickets": found, "topics": measure_topics(data)}
    write_json(result, out)


if __name__ == "__main__":
    main()
