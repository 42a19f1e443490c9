"""Search by vectors, words and both, on retrieval folders, from files made by ``fastflow embed``; and its times.

    python -m fastflow.bench.research.search --data DIR --tuned DIR --out bench/results/search

The share of the words of a kind of model is the best on the even queries whose nDCG is, on no set, over 0.5 below the
better part; the odd queries are reported beside all.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.measure.machine import describe
from fastflow.bench.research.study import make_table, write
from fastflow.evaluation.retrieval import DEPTH, Retrieval, ndcg, read_retrieval
from fastflow.files import EmbedConfig, Run
from fastflow.files.embed import embed_file
from fastflow.files.read import InputFormat
from fastflow.files.words import find_words, quote_query
from fastflow.runtime import Runtime
from fastflow.search import Index
from fastflow.search.scan import BY, SHARES, find_kind, fuse

SETS = ("scifact", "cranfield", "cisi", "npl", "quora-duplicates")
MODELS = ("static", "default")
GRID = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
MOST_BELOW = 0.5  # points of nDCG x 100
WAYS = (*BY[:2], *map(str, GRID))


def make_index(folder: Path, texts: Sequence[str], runtime: Runtime, hold: str = "vectors") -> Index:
    """Embed ``texts`` as the command does, and open the file."""
    source, target = folder / "in.jsonl", folder / "x.db"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    embed_file(runtime, str(source), target, EmbedConfig(InputFormat()), Run(quiet=True, overwrite=True))
    return Index(target, runtime, hold=hold)


def score(task: Retrieval, index: Index) -> dict[str, NDArray[np.float64]]:
    """Return nDCG@10 of each query by vectors, words, and each share of the words."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for query, relevant, own in zip(task.queries, task.relevant, task.own, strict=True):
        lists = []
        for by in BY[:2]:
            hits = index.search(query, DEPTH + len(own), by=by, distinct=False)
            lists.append([(hit.row, hit.score) for hit in hits if hit.row not in own][:DEPTH])
        ranked = dict(zip(BY[:2], lists, strict=True))
        ranked |= {str(share): fuse(*lists, share)[:DEPTH] for share in GRID}
        for way, rows in ranked.items():
            hits = np.isin([row for row, _ in rows], relevant)
            found[way].append(ndcg(hits, len(relevant)))
    return {way: 100 * np.array(each) for way, each in found.items()}


def choose_share(scores: dict[str, dict[str, NDArray[np.float64]]]) -> float:
    """Choose the share on the even queries."""
    half = {name: {way: each[::2].mean() for way, each in ways.items()} for name, ways in scores.items()}
    fine = [
        share for share in GRID
        if all(ways[str(share)] >= max(ways[by] for by in BY[:2]) - MOST_BELOW for ways in half.values())
    ]  # fmt: skip
    return max(fine or GRID, key=lambda share: np.mean([ways[str(share)] for ways in half.values()]))


def time_searches(texts: Sequence[str], queries: Sequence[str], runtime: Runtime) -> dict[str, float]:
    """Return the median ms of a query by vectors held as int8, words, both, and FTS5's best hundred alone, in turns."""
    times: dict[str, list[float]] = {by: [] for by in (*BY, "FTS5")}
    with tempfile.TemporaryDirectory() as folder, make_index(Path(folder), texts, runtime, "int8") as index:
        ways = {by: partial(index.search, by=by) for by in BY}
        with closing(sqlite3.connect(Path(folder) / "x.db")) as db:
            ways["FTS5"] = lambda query: find_words(db, quote_query(query, "porter"), DEPTH)
            for query in queries:
                for by, search in ways.items():
                    start = time.perf_counter()
                    search(query)
                    times[by].append(1000 * (time.perf_counter() - start))
    return {by: round(float(np.median(each)), 2) for by, each in times.items()}


def list_texts(data: Path, count: int) -> Iterator[str]:
    """Yield ``count`` texts of about 12 words, drawn from the sentences of the corpora."""
    lines = [line for path in sorted((data / "corpora").glob("*.txt")) for line in path.read_text("utf-8").split("\n")]
    words = " ".join(lines[:200_000]).split()
    rng = np.random.default_rng(0)
    for start, length in zip(rng.integers(0, len(words) - 20, count), rng.integers(6, 19, count), strict=True):
        yield " ".join(words[start : start + length])


def make_page(found: dict[str, Any]) -> str:
    """Return the page."""
    rows = []
    for model, each in found["models"].items():
        for way in WAYS:
            numbers = [f"{each['ndcg'][way][name]:.1f}" for name in SETS]
            mark = " (chosen)" * (way == str(each["share"]))
            rows.append([model, way + mark, *numbers, f"{each['mean'][way]:.2f}", f"{each['mean_odd'][way]:.2f}"])
    table = make_table(["model", "by, or share of the words", *SETS, "mean", "odd queries"], rows)
    times = make_table(["rows", *found["ms"]], [[f"{found['rows']:,}", *map(str, found["ms"].values())]])
    return f"# Search by words and vectors\n\nnDCG@10 x 100.\n\n{table}\n\nMedian ms of a query, `static`:\n\n{times}\n"


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option(
    "--tuned", type=click.Path(exists=True, path_type=Path), required=True, help="A directory of all-MiniLM-L6-v2."
)
@click.option("--rows", default=1_000_000, help="Texts of the timed file.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(data: Path, tuned: Path, rows: int, out: Path) -> None:
    """Write the figures and their page."""
    found: dict[str, Any] = {
        "command": "python -m fastflow.bench.research.search --data .../data --tuned .../all-MiniLM-L6-v2",
        "machine": describe(None),
    }
    found |= {"rows": rows, "models": {}}
    for name, model in (*zip(MODELS, MODELS, strict=True), ("all-MiniLM-L6-v2", tuned)):
        runtime, scores = Runtime(model), {}
        for task in (read_retrieval(data / "tasks" / "retrieval" / each) for each in SETS):
            with tempfile.TemporaryDirectory() as folder, make_index(Path(folder), task.documents, runtime) as index:
                scores[task.name] = score(task, index)
        share = choose_share(scores)
        if SHARES[find_kind(runtime.session)] != share:
            click.echo(f"{name}: the best share is {share}, and search.scan.SHARES has another")
        means = {way: [each[way].mean() for each in scores.values()] for way in WAYS}
        odd = {way: [each[way][1::2].mean() for each in scores.values()] for way in WAYS}
        found["models"][name] = {
            "share": share,
            "ndcg": {way: {task: round(ways[way].mean(), 2) for task, ways in scores.items()} for way in WAYS},
            "mean": {way: round(float(np.mean(each)), 2) for way, each in means.items()},
            "mean_odd": {way: round(float(np.mean(each)), 2) for way, each in odd.items()},
        }
    queries = read_retrieval(data / "tasks" / "retrieval" / "quora-duplicates").queries[:50]
    found["ms"] = time_searches(list(list_texts(data, rows)), queries, Runtime("static"))
    write(out, found, make_page)


if __name__ == "__main__":
    main()
