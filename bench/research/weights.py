"""Study token weights on all kinds of task, with every calibration.

    python -m fastflow.bench.research.weights --data DIR --out bench/results/weights

DIR holds sts/, tasks/ and corpora/. The rule of choice is in HEAD, written before the first run.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

import fastflow
from fastflow.bench.research.study import Found, make_table, write
from fastflow.evaluation.evaluate import Task, embed, measure, read_task
from fastflow.evaluation.labelled import LabelledTexts
from fastflow.train.data import token_weights
from fastflow.train.data.corpus import read_corpus

KINDS = {  # of each kind the sets that choose and the sets that confirm
    "similarity": (("STS12", "STS13", "STS14"), ("STS15", "STS16", "STSb-test", "SICK-R-test")),
    "clusters": (("banking77", "agnews-titles"), ("clinc150", "agnews", "trec", "stackoverflow")),
    "neighbours": (("banking77", "agnews-titles"), ("clinc150", "agnews", "trec", "stackoverflow")),
    "documents": (("cranfield", "cisi"), ("npl", "scifact")),
    "duplicates": (("msrp",), ("quora-duplicates",)),
    "posts": (("pit2015-dev",), ("pit2015-test",)),
}
MEASURES = {"similarity": "all", "clusters": "v_measure", "neighbours": "knn", "documents": "ndcg@10", "posts": "ap"}
COLOURS = {"spectrum": 0.5, "mean_share": 0.1, "demoted": 0}
WEIGHTS: dict[str, tuple[float | None, dict[str, Any]]] = {
    "0.0005": (0.0005, {}),
    "0.002": (0.002, {}),
    "0.01": (0.01, {}),
    "none": (None, {}),
    "none, recolour of weights": (None, COLOURS),
}
METHODS = ("none", "components:1", "whiten,recolour", "flow")
CORPORA = ("own texts", "300 own texts", "news")
RAW, TODAY = "raw pooling", "0.0005; flow"
NEWS, FEW = "leipzig-eng-news-2016-10k.txt", 300


class Job(NamedTuple):
    """A fit, and the sets that it is scored on."""

    data: Path
    weights: str
    method: str
    corpus: str
    sets: tuple[str, ...]
    seed: int = 0


@cache
def read_set(data: Path, name: str) -> Task:
    """Read the set ``name``; a split of the posts is a set."""
    if name.startswith("pit2015-"):
        split = name.partition("-")[2]
        header, *rows = (data / "tasks/pairs/pit2015-twitter.tsv").read_text(encoding="utf-8").split("\n")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{name}.tsv")
            path.write_text("\n".join([header, *(row for row in rows if row.startswith(split)), ""]), encoding="utf-8")
            return read_task(path)
    [path] = [*(data / "sts").glob(f"{name}.tsv"), *(data / "tasks").glob(f"*/{name}.tsv"),
              *(data / "tasks/retrieval").glob(name)]  # fmt: skip
    return read_task(path)


def list_texts(job: Job) -> list[str]:
    """Return the texts to fit to."""
    if job.corpus == "news":
        return read_corpus([str(job.data / "corpora" / NEWS)], sample=9000, cut=True)
    distinct = list(dict.fromkeys(text for text in read_set(job.data, job.sets[0]).texts if text.strip()))
    return random.Random(0).sample(distinct, min(FEW, len(distinct))) if job.corpus == "300 own texts" else distinct


def measure_set(task: Task, vectors: Any) -> dict[str, float]:
    """Return the measures of MEASURES that the set has."""
    if isinstance(task, LabelledTexts):
        return {"v_measure": task.measure_clusters(vectors).value, "knn": task.measure_neighbours(vectors).value}
    return measure(task, vectors)


def run_job(job: Job) -> list[list[Any]]:
    """Fit and score; return rows of (weights, method, corpus, seed, set, measure, value)."""
    a, options = WEIGHTS.get(job.weights, (None, {}))
    if a is not None:
        token_weights.A = a
    if job.weights == RAW:
        options = {"pooling": "first-last"}
    weigh, colour = "none" if a is None else "sif", options if "whiten" in job.method or job.method == "flow" else {}
    options = colour or {name: value for name, value in options.items() if name == "pooling"}
    fit = fastflow.fit(
        list_texts(job), encoder="default", method=job.method, token_weights=weigh, seed=job.seed,
        cache_folder=None, progress=False, **options,
    )  # fmt: skip
    rows = []
    with fit.runtime() as runtime:
        for name in job.sets:
            task = read_set(job.data, name)
            found = measure_set(task, embed(runtime, task))
            rows += [[job.weights, job.method, job.corpus, job.seed, name, key, value] for key, value in found.items()]
    return rows


def list_jobs(data: Path, seeds: Sequence[int]) -> Iterator[Job]:
    """Yield every fit, the one of raw pooling first."""
    sets = tuple(dict.fromkeys(name for halves in KINDS.values() for half in halves for name in half))
    yield Job(data, RAW, "none", "news", sets)
    for weights in WEIGHTS:
        for method in METHODS:
            if weights.startswith("none,") and method in ("none", "components:1"):
                continue  # these have no recolour
            for seed in seeds if method == "flow" else seeds[:1]:
                yield Job(data, weights, method, "news", sets, seed)
                for corpus in CORPORA[:2]:
                    yield from (Job(data, weights, method, corpus, (name,), seed) for name in sets)


def average(rows: Sequence[Sequence[Any]], kind: str, half: int) -> float:
    """Average a candidate's rows over the sets of a half of a kind; NaN without rows."""
    names = KINDS[kind][half]
    key = {"msrp": "ap", "quora-duplicates": "ndcg@10"}.get(names[0], MEASURES.get(kind, ""))
    values = [[row[-1] for row in rows if row[4] == name and row[5] == key] for name in names]
    return float(np.mean([np.mean(each) for each in values])) if all(values) else float("nan")


def make_page(result: Found) -> str:
    """Return the page: a table for each corpus and half."""
    parts = [HEAD.format(**result)]
    for half, name in enumerate(("choose", "confirm")):
        for corpus in ("all corpora", *CORPORA):
            rows: dict[str, list[list[Any]]] = {}
            for row in result["rows"]:
                if row[0] == RAW or corpus in ("all corpora", row[2]):
                    rows.setdefault(RAW if row[0] == RAW else f"{row[0]}; {row[1]}", []).append(row)
            cells = []
            for candidate, mine in rows.items():
                values = [average(mine, kind, half) for kind in KINDS]
                cells.append([candidate, *(f"{value:.1f}" for value in [*values, float(np.mean(values))])])
            parts += [f"\n## Sets that {name}: {corpus}\n", make_table(["candidate", *KINDS, "mean"], cells)]
    return "\n".join(parts) + "\n"


HEAD = """# Token weights on all kinds of task

Fits of the encoder in the package (mini-mlm-uncased), poolings `words`. A candidate is token weights (a of a / (a +
p), or none) and a method. Without weights recolour has other defaults (spectrum 0.75, mean share 0, two demoted
directions); *recolour of weights* has spectrum 0.5, mean share 0.1, none demoted. Measures x100: Spearman, V-measure,
accuracy of five neighbours from 16 texts a class, nDCG@10, average precision (msrp, posts) and nDCG@10 (quora).
Corpora: the set's own texts, 300 of them, 9,000 sentences of news.

**The rule, written before the first run.** A candidate's score is the mean over the six kinds, each the mean over the
sets that choose and the three corpora. The best candidate is chosen if its score is at least 0.5 above the default's
({today}), and no kind of it is more than 0.5 below the default's. A flow is chosen in place of whiten,recolour if it
is at most 0.5 below, because only a flow has a density. The candidate is shipped if, on the sets that confirm, its
mean over kinds is not below the default's, and no kind is more than 0.5 below. Otherwise the default stays.

    {command}
"""


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts, tasks, corpora.")
@click.option("--seeds", default=1, show_default=True, help="Seeds of a flow.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(data: Path, seeds: int, out: Path) -> None:
    """Fit every candidate on every corpus."""
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    with ProcessPoolExecutor(2) as pool:
        for number, found in enumerate(pool.map(run_job, list_jobs(data, range(seeds))), 1):
            rows += found
            click.echo(f"{number}: {' '.join(map(str, found[0][:5]))}", err=True)
    command = f"python -m fastflow.bench.research.weights --data .../data --seeds {seeds} --out {out}"
    write(out, {"command": command, "today": TODAY, "rows": rows}, make_page)


if __name__ == "__main__":
    main()
