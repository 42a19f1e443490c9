"""Tasks that measure a model. Scored pairs give Spearman x100 of cosine and human score.

``all`` ranks the pairs of a set together (SBERT, SimCSE); ``wmean`` averages its subsets by size (BERT-flow).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, missing_extra
from fastflow.evaluation.analyses import ranks, spearman, spearman_draws
from fastflow.evaluation.labelled import (
    LABELLED_PAIRS,
    LABELLED_TEXTS,
    Bitext,
    LabelledPairs,
    LabelledTexts,
    format_ways,
    read_bitext,
    read_labelled_pairs,
    read_labelled_texts,
)
from fastflow.evaluation.retrieval import CORPUS, Retrieval, read_retrieval
from fastflow.evaluation.rows import find_packed, list_tables, matches, read_rows, without_suffix
from fastflow.progress import in_parts
from fastflow.transforms.vectors import compute_paired_cosine

HEADER = "subset\tscore\tsentence1\tsentence2"
LABELLED = "label\tsentence1\tsentence2"
SEVEN = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSb-test", "SICK-R-test")
WHOLE = ("STSb", "SICK-R")  # published scores are of the whole set

Encode = Callable[[Sequence[str]], NDArray[Any]]


class Pairs(NamedTuple):
    """A set of n pairs of sentences with human scores."""

    name: str
    subsets: list[str]
    scores: NDArray[np.float64]
    first: list[str]
    second: list[str]

    @property
    def texts(self) -> list[str]:
        return _distinct(self)


class Labelled(NamedTuple):
    """n labelled pairs, as of QNLI."""

    name: str
    labels: list[str]
    first: list[str]
    second: list[str]


OtherTask = LabelledPairs | LabelledTexts | Retrieval | Bitext
Task = Pairs | OtherTask


def read_pairs(path: Path) -> Pairs:
    """Read a TSV ``subset score sentence1 sentence2``."""
    _, rows = read_rows(path, HEADER)
    scores = np.empty(len(rows))
    for number, row in enumerate(rows, 2):
        try:
            scores[number - 2] = float(row[1])
            ok = len(row) == 4 and np.isfinite(scores[number - 2])
        except (IndexError, ValueError):
            ok = False
        if not ok:
            raise FastflowError(f"{path}, line {number}: must be subset, finite score, sentence1, sentence2")
    if len(rows) < 2:
        raise FastflowError(f"{path}: holds {len(rows)} pairs; a rank correlation needs at least two")
    return Pairs(without_suffix(path).stem, [r[0] for r in rows], scores, [r[2] for r in rows], [r[3] for r in rows])


def read_labelled(path: Path) -> Labelled:
    """Read a TSV ``label sentence1 sentence2``."""
    _, rows = read_rows(path, LABELLED)
    for number, row in enumerate(rows, 2):
        if len(row) != 3 or not row[0]:
            raise FastflowError(f"{path}, line {number}: must be label, sentence1, sentence2")
    return Labelled(without_suffix(path).stem, [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def read_task(path: Path) -> Task:
    """Read the task in a file, by its header, or in a retrieval folder."""
    if path.is_dir():
        return read_retrieval(path)
    header, _ = read_rows(path, HEADER, LABELLED_PAIRS, LABELLED_TEXTS)
    if header == HEADER:
        return read_pairs(path)
    return read_labelled_pairs(path) if matches(header, LABELLED_PAIRS) else read_labelled_texts(path)


def find_tasks(paths: Sequence[Path]) -> list[Task]:
    """Read tasks: TSV files, retrieval folders, and folders to search; all .txt files are one task."""
    sentences = list(
        dict.fromkeys(path for path in paths if without_suffix(path).suffix == ".txt" and not path.is_dir())
    )
    tasks: list[Task] = [read_bitext(sentences)] if sentences else []
    for path in (path for path in paths if path not in sentences):
        found = [read_task(place) for place in _places(path)]
        if not found:
            raise FastflowError(f"{path}: holds no .tsv file of scored pairs or of another task")
        tasks += found
    for task in tasks:
        if not isinstance(task, Pairs) and task.kind == "classes" and find_spec("sklearn") is None:
            raise missing_extra("eval", "scikit-learn", f"{task.name}, a task of the kind {task.kind},")
    return tasks


def _places(path: Path) -> list[Path]:
    if not path.is_dir() or find_packed(path / CORPUS).exists():
        return [path]
    entries = sorted(entry for entry in path.glob("*") if not entry.name.startswith("."))
    folders = (entry for entry in entries if entry.is_dir() and not entry.is_symlink())  # a link may lead back
    return [*list_tables(path), *(place for folder in folders for place in _places(folder))]


def measure(task: Task, vectors: NDArray[Any]) -> dict[str, float]:
    """Measure ``vectors`` (len(task.texts), D): {measure: value x100}, the main measure first."""
    if isinstance(task, Pairs):
        row = score(task, _cosines(task, vectors))
        return {key: row[key] for key in ("all", "wmean")}
    return {name: found.value for name, found in task.measures(vectors).items()}


class CountingEncoder:
    """Wraps an encoder; calls ``count(n)`` after each part of n texts."""

    def __init__(self, encoder: Any, count: Callable[[int], None]) -> None:
        self._encoder, self._count = encoder, count

    def __getattr__(self, name: str) -> Encode:
        return lambda texts: np.asarray(in_parts(getattr(self._encoder, name), texts, self._count))


def embed(encoder: Any, task: Task) -> NDArray[Any]:
    """Embed ``task.texts``."""
    if isinstance(task, Retrieval):
        return np.concatenate([encoder.encode_document(task.documents), encoder.encode_query(task.queries)])
    return np.asarray(encoder.encode(task.texts))


def find_sets(paths: Sequence[Path]) -> list[Pairs]:
    """Read the scored pairs of files, and of directories."""
    files: list[Path] = []
    for path in paths:
        found = list_tables(path) if path.is_dir() else [path]
        if not found:
            raise FastflowError(f"{path}: holds no .tsv file of scored pairs")
        files += found
    return [read_pairs(path) for path in files]


def score(pairs: Pairs, similarity: NDArray[Any]) -> dict[str, Any]:
    """Score the similarities (n,) of the pairs of one set: {set, pairs, all, wmean}, x100."""
    everything = 100 * spearman(similarity, pairs.scores)
    if pairs.name.startswith(WHOLE):
        weighted = everything
    else:
        names = np.asarray(pairs.subsets)
        weighted = 0.0
        for name in np.unique(names):
            rows = names == name
            weighted += rows.mean() * 100 * spearman(similarity[rows], pairs.scores[rows])
    return {"set": pairs.name, "pairs": len(pairs.scores), "all": round(everything, 2), "wmean": round(weighted, 2)}


def draws(pairs: Pairs, similarity: NDArray[Any], seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Return bootstrap draws of ``all`` and ``wmean``, (DRAWS,) each, by ``spearman_draws``."""
    names = np.asarray(pairs.subsets)
    rows = [names == name for name in np.unique(names)]
    every = [np.ones(len(names), bool)]
    out = {}
    for key, groups in (("all", every), ("wmean", every if pairs.name.startswith(WHOLE) else rows)):
        ranked = [(ranks(similarity[group]), ranks(pairs.scores[group])) for group in groups]
        out[key] = spearman_draws(ranked, seed=seed)
    return out


def similarities(encode: Encode, pairs: Pairs | Labelled) -> NDArray[Any]:
    """Compute the cosine (n,) of each pair."""
    return _cosines(pairs, encode(_distinct(pairs)))


def _distinct(pairs: Pairs | Labelled) -> list[str]:
    return list(dict.fromkeys([*pairs.first, *pairs.second]))


def _cosines(pairs: Pairs | Labelled, vectors: NDArray[Any]) -> NDArray[Any]:
    where = {text: i for i, text in enumerate(_distinct(pairs))}
    first, second = (vectors[[where[t] for t in side]] for side in (pairs.first, pairs.second))
    return compute_paired_cosine(first, second)


def evaluate(encode: Encode, sets: Sequence[Pairs]) -> dict[str, Any]:
    """Score every set: {"rows": [...], "average": {"sets", "all", "wmean"}}; SEVEN are averaged if all are given."""
    rows = [score(pairs, similarities(encode, pairs)) for pairs in sets]
    names = [row["set"] for row in rows]
    averaged = list(SEVEN) if set(SEVEN) <= set(names) else names
    chosen = [row for row in rows if row["set"] in averaged]
    means = {key: round(float(np.mean([row[key] for row in chosen])), 2) for key in ("all", "wmean")}
    return {"rows": rows, "average": {"sets": averaged, **means}}


def format_scores(result: dict[str, Any]) -> str:
    """Format the result of ``evaluate`` as a table."""
    lines = [f"{'set':14}{'pairs':>7}{'all':>8}{'wmean':>8}"]
    lines += [f"{r['set']:14}{r['pairs']:>7}{r['all']:>8.2f}{r['wmean']:>8.2f}" for r in result["rows"]]
    average = result["average"]
    if len(result["rows"]) == 1:
        return "\n".join(lines)
    lines.append(f"{'average of ' + str(len(average['sets'])):14}{'':7}{average['all']:>8.2f}{average['wmean']:>8.2f}")
    return "\n".join(lines)


def evaluate_tasks(encoder: Any, tasks: Sequence[OtherTask]) -> list[dict[str, Any]]:
    """Measure tasks but scored pairs: sizes, values, intervals, and BM25."""
    rows = []
    for task in tasks:
        measures: dict[str, dict[str, Any]] = {}
        vectors = embed(encoder, task)
        for name, found in task.measures(vectors).items():
            low, high = found.interval()
            measures[name] = {"value": round(found.value, 2), "interval": [round(low, 2), round(high, 2)]}
        if isinstance(task, Retrieval):
            for name, found in task.bm25().items():
                measures[name]["bm25"] = round(found.value, 2)
        rows.append({"set": task.name, "kind": task.kind, **task.size, "measures": measures})
        if isinstance(task, Bitext):
            rows[-1]["ways"] = task.compare_all(vectors)
    return rows


def format_tasks(rows: Sequence[dict[str, Any]]) -> str:
    """Format a line for each measure, and a table of all ways of three languages or more."""
    width = max(13, *(len(row["set"]) for row in rows)) + 1
    wide = max(10, *(len(name) for row in rows for name in row["measures"])) + 1
    lines = [f"{'set':{width}}{'measure':{wide}}{'value':>7}{'95 % interval':>18}{'BM25':>8}"]
    for row in rows:
        for name, found in row["measures"].items():
            low, high = found["interval"]
            bm25 = f"{found['bm25']:8.2f}" if "bm25" in found else ""
            lines.append(
                f"{row['set']:{width}}{name:{wide}}{found['value']:7.2f}{f'{low:.2f} to {high:.2f}':>18}{bm25}"
            )
    ways = (row["ways"] for row in rows if row.get("languages", 0) > 2)
    return "\n\n".join(["\n".join(lines), *map(format_ways, ways)])
