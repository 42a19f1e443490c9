"""Measure which limit of ``fastflow duplicates`` finds how many pairs of labelled duplicates, for each model.

    python -m fastflow.bench.research.duplicate_limits --data DIR --tuned DIR --out bench/results/duplicate-limits.json

Questions of Quora are duplicates if a query of the retrieval set has both. Two that no query has may be duplicates
without a label, so the precision of all pairs is a lower bound, and the precision of pairs with a labelled question is
the second figure. --tuned is all-MiniLM-L6-v2 as Sentence Transformers saved it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.measure.machine import describe
from fastflow.bench.report.table import write_json
from fastflow.bench.research.study import make_table
from fastflow.evaluation.labelled import read_labelled_pairs
from fastflow.evaluation.retrieval import compute_cosines, read_retrieval
from fastflow.runtime import Runtime
from fastflow.search.duplicates import LIMITS
from fastflow.transforms.vectors import compute_paired_cosine, shorten

FIGURES = ("precision", "precision_labelled", "recall")
PACKAGED, TUNED = ("default", "static", "multilingual"), "all-MiniLM-L6-v2"
QUESTIONS, PAIRS = "quora-duplicates", {"msrp": "MRPC", "pit2015-twitter": "PIT"}
Blocks = Iterator[tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]]


def compare_all(x: NDArray[Any], relevant: list[NDArray[np.int64]]) -> Blocks:
    """Yield blocks of all pairs of x (n, D): cosines, which are duplicates, and which have a labelled question."""
    at, places, groups, known = 0, np.arange(len(x)), np.arange(len(x)), np.zeros(len(x), bool)
    for of_query in relevant:
        known[of_query] = True
        groups[np.isin(groups, groups[of_query])] = groups[of_query].min()
    for cosines in compute_cosines(x, x):
        rows = places[at : at + len(cosines), None]
        at += len(cosines)
        later = places > rows
        yield cosines[later], (groups == groups[rows])[later], (known | known[rows])[later]


def count(blocks: Blocks) -> list[dict[str, Any]]:
    """Return precision, None if no pair passes, and recall at each limit."""
    totals = np.zeros((len(LIMITS), 3), np.int64)  # pairs that pass, right ones, and labelled ones
    positive = 0
    for cosines, right, known in blocks:
        positive += int(right.sum())
        for row, limit in zip(totals, LIMITS, strict=True):
            passed = cosines >= limit
            row += [passed.sum(), (passed & right).sum(), (passed & known).sum()]
    return [
        {"limit": limit, "pairs": int(passed), "precision": right / passed if passed else None,
         "precision_labelled": right / known if known else None, "recall": right / positive}
        for limit, (passed, right, known) in zip(LIMITS, totals.tolist(), strict=True)
    ]  # fmt: skip


def measure_model(model: Runtime, data: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each set."""
    task = read_retrieval(data / "tasks" / "retrieval" / QUESTIONS)
    x = shorten(np.asarray(model.encode(task.documents)), True, None)
    found = {QUESTIONS: count(compare_all(x, task.relevant))}
    for file, name in PAIRS.items():
        pairs = read_labelled_pairs(data / "tasks" / "pairs" / f"{file}.tsv")
        vectors = np.asarray(model.encode(pairs.texts))
        cosines = compute_paired_cosine(vectors[pairs.first], vectors[pairs.second])
        found[name] = count(iter([(cosines, pairs.positive, np.ones(len(cosines), bool))]))
    return found


def make_page(found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Return a Markdown table of each set: FIGURES x100; precision_labelled only of the questions."""
    out = []
    for name in next(iter(found.values())):
        figures = [figure for figure in FIGURES if name == QUESTIONS or figure != FIGURES[1]]
        rows = [
            [f"{limit:g}", *(" / ".join(_format(of[name][i][figure]) for figure in figures) for of in found.values())]
            for i, limit in enumerate(LIMITS)
        ]
        out.append(f"{name}: {', '.join(figures)}\n\n{make_table(['limit', *found], rows)}\n")
    return "\n".join(out)


def _format(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f}"


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="The folder shared/data.")
@click.option("--tuned", required=True, type=click.Path(exists=True), help=f"The directory of {TUNED}.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes this JSON.")
def main(data: Path, tuned: str, out: Path) -> None:
    """Measure limits for duplicates; print the tables."""
    models = {name: Runtime(name, device="cpu") for name in PACKAGED} | {TUNED: Runtime(tuned, device="cpu")}
    found = {name: measure_model(model, data) for name, model in models.items()}
    command = "python -m fastflow.bench.research.duplicate_limits --data .../shared/data --tuned .../all-MiniLM-L6-v2"
    prints = {name: model.fingerprint for name, model in models.items()}
    write_json({"command": f"{command} --out {out}", "machine": describe(), "models": prints, "rows": found}, out)
    click.echo(make_page(found))


if __name__ == "__main__":
    main()
