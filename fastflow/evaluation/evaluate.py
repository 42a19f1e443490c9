"""The map of the tasks that a model is measured on, and the first: pairs that people scored for similarity.

A task is of a kind: scored pairs (below), labelled pairs (pairs.py), labelled texts (classes.py) or retrieval
(retrieval.py). ``measure(task, vectors)`` takes the vectors of ``task.texts`` and gives its figures, x100.

Scored pairs have Spearman x100 of cosine against gold scores, aggregated in both ways in use: ``all`` pools a set's
pairs and ranks them once (SBERT, SimCSE); ``wmean`` averages the subsets' Spearman by size (BERT-flow, BERT-whitening).
They differ by over 20 points at worst, so both are always reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, missing_extra
from fastflow.evaluation.classes import LABELLED_TEXTS, LabelledTexts, read_labelled_texts
from fastflow.evaluation.draws import spearman_draws
from fastflow.evaluation.pairs import LABELLED_PAIRS, LabelledPairs, read_labelled_pairs
from fastflow.evaluation.retrieval import CORPUS, Retrieval, read_retrieval
from fastflow.evaluation.rows import matches, read_rows
from fastflow.progress import in_parts
from fastflow.stages.vectors import paired_cosine

HEADER = "subset\tscore\tsentence1\tsentence2"
LABELLED = "label\tsentence1\tsentence2"
SEVEN = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSb-test", "SICK-R-test")  # the paper's test sets
WHOLE = ("STSb", "SICK-R")  # published as one set: their subset column is only the origin of a pair

Encode = Callable[[Sequence[str]], NDArray[Any]]


class Pairs(NamedTuple):
    """A set of n scored pairs."""

    name: str
    subsets: list[str]
    scores: NDArray[np.float64]
    first: list[str]
    second: list[str]

    @property
    def texts(self) -> list[str]:
        """The distinct texts of both sides."""
        return _distinct(self)


class Labelled(NamedTuple):
    """A set of n pairs with a label each, such as QNLI: question and sentence, entailment or not."""

    name: str
    labels: list[str]
    first: list[str]
    second: list[str]


OtherTask = LabelledPairs | LabelledTexts | Retrieval
Task = Pairs | OtherTask


def read_pairs(path: Path) -> Pairs:
    """A TSV with the header ``subset score sentence1 sentence2`` and no quoting; errors name file and line."""
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
    return Pairs(path.stem, [r[0] for r in rows], scores, [r[2] for r in rows], [r[3] for r in rows])


def read_labelled(path: Path) -> Labelled:
    """A TSV with the header ``label sentence1 sentence2`` and no quoting; errors name file and line."""
    _, rows = read_rows(path, LABELLED)
    for number, row in enumerate(rows, 2):
        if len(row) != 3 or not row[0]:
            raise FastflowError(f"{path}, line {number}: must be label, sentence1, sentence2")
    return Labelled(path.stem, [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def read_task(path: Path) -> Task:
    """The task of a file, whose header shows its kind, or of a folder of documents, queries and judgements."""
    if path.is_dir():
        return read_retrieval(path)
    header, _ = read_rows(path, HEADER, LABELLED_PAIRS, LABELLED_TEXTS)
    if header == HEADER:
        return read_pairs(path)
    return read_labelled_pairs(path) if matches(header, LABELLED_PAIRS) else read_labelled_texts(path)


def find_tasks(paths: Sequence[Path]) -> list[Task]:
    """The tasks of every path: a file, a retrieval folder, or a folder that is searched for both at any depth.

    Raises a FastflowError that names a library if a task needs one that is not installed.
    """
    tasks: list[Task] = []
    for path in paths:
        found = [read_task(place) for place in _places(path)]
        if not found:
            raise FastflowError(f"{path}: holds no .tsv file of scored pairs or of another task")
        tasks += found
    for task in (task for task in tasks if not isinstance(task, Pairs)):
        for module, name in task.needs.items():
            if find_spec(module) is None:
                raise missing_extra("eval", name, f"{task.name}, a task of the kind {task.kind},")
    return tasks


def _places(path: Path) -> list[Path]:
    if not path.is_dir() or (path / CORPUS).exists():
        return [path]
    entries = sorted(entry for entry in path.glob("*") if not entry.name.startswith("."))
    folders = (entry for entry in entries if entry.is_dir() and not entry.is_symlink())  # a link may lead back
    return [*sorted(path.glob("*.tsv")), *(place for folder in folders for place in _places(folder))]


def measure(task: Task, vectors: NDArray[Any]) -> dict[str, float]:
    """{measure: value x100}, the main one first, of the vectors (len(task.texts), D) of ``task.texts``."""
    if isinstance(task, Pairs):
        row = score(task, _cosines(task, vectors))
        return {key: row[key] for key in ("all", "wmean")}
    return {name: found.value for name, found in task.measures(vectors).items()}


class Counted:
    """``encoder`` with the methods that tasks call; after each part of the texts ``count`` is told how many it had."""

    def __init__(self, encoder: Any, count: Callable[[int], None]) -> None:
        self._encoder, self._count = encoder, count

    def encode(self, texts: Sequence[str]) -> NDArray[Any]:
        """(n, D) vectors."""
        return np.asarray(in_parts(self._encoder.encode, texts, self._count))

    def encode_query(self, texts: Sequence[str]) -> NDArray[Any]:
        """(n, D) vectors with the prompt for queries."""
        return np.asarray(in_parts(self._encoder.encode_query, texts, self._count))

    def encode_document(self, texts: Sequence[str]) -> NDArray[Any]:
        """(n, D) vectors with the prompt for documents."""
        return np.asarray(in_parts(self._encoder.encode_document, texts, self._count))


def embed(encoder: Any, task: Task) -> NDArray[Any]:
    """The vectors of ``task.texts``; of documents and queries with their prompts if the model has any."""
    if isinstance(task, Retrieval):
        return np.concatenate([encoder.encode_document(task.documents), encoder.encode_query(task.queries)])
    return np.asarray(encoder.encode(task.texts))


def find_sets(paths: Sequence[Path]) -> list[Pairs]:
    """The pairs of every file given, and of every .tsv in every directory given."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.tsv")) if path.is_dir() else [path]
        if not found:
            raise FastflowError(f"{path}: holds no .tsv file of scored pairs")
        files += found
    return [read_pairs(path) for path in files]


def ranks(x: NDArray[Any]) -> NDArray[np.float64]:
    """1-based ranks; ties share the mean of theirs."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])


def spearman(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's rank correlation; NaN when one side is constant."""
    x, y = (r - r.mean() for r in (ranks(a), ranks(b)))
    norm = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / norm) if norm else float("nan")


def auc(positive: NDArray[np.bool_], similarity: NDArray[Any]) -> float:
    """P(s+ > s-) + P(s+ = s-)/2 over all positive and negative pairs, from ranks; NaN when one kind is absent."""
    n = int(positive.sum())
    others = len(positive) - n
    if not n or not others:
        return float("nan")
    return float((ranks(similarity)[positive].sum() - n * (n + 1) / 2) / (n * others))


def score(pairs: Pairs, similarity: NDArray[Any]) -> dict[str, Any]:
    """The row of one set: its name, pairs, ``all`` and ``wmean``, x100, from a similarity for each pair (n,)."""
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
    """Draws of ``all`` and ``wmean`` of ``score`` with other pairs of the same kind; ``seed`` as ``spearman_draws``."""
    names = np.asarray(pairs.subsets)
    rows = [names == name for name in np.unique(names)]
    every = [np.ones(len(names), bool)]
    out = {}
    for key, groups in (("all", every), ("wmean", every if pairs.name.startswith(WHOLE) else rows)):
        ranked = [(ranks(similarity[group]), ranks(pairs.scores[group])) for group in groups]
        out[key] = spearman_draws(ranked, seed=seed)
    return out


def similarities(encode: Encode, pairs: Pairs | Labelled) -> NDArray[Any]:
    """(n,) cosine of each pair; every distinct text is embedded once, in one call."""
    return _cosines(pairs, encode(_distinct(pairs)))


def _distinct(pairs: Pairs | Labelled) -> list[str]:
    return list(dict.fromkeys([*pairs.first, *pairs.second]))


def _cosines(pairs: Pairs | Labelled, vectors: NDArray[Any]) -> NDArray[Any]:
    """(n,) cosine of each pair, from the vectors of its distinct texts."""
    where = {text: i for i, text in enumerate(_distinct(pairs))}
    first, second = (vectors[[where[t] for t in side]] for side in (pairs.first, pairs.second))
    return paired_cosine(first, second)


def evaluate(encode: Encode, sets: Sequence[Pairs]) -> dict[str, Any]:
    """{"rows": [...], "average": {"sets", "all", "wmean"}}: every set, and the mean over the paper's seven when all of
    them are there (train and dev splits are not averaged with test sets), else over every set given."""
    rows = []
    for pairs in sets:
        rows.append(score(pairs, similarities(encode, pairs)))
    names = [row["set"] for row in rows]
    averaged = list(SEVEN) if set(SEVEN) <= set(names) else names
    chosen = [row for row in rows if row["set"] in averaged]
    means = {key: round(float(np.mean([row[key] for row in chosen])), 2) for key in ("all", "wmean")}
    return {"rows": rows, "average": {"sets": averaged, **means}}


def table(result: dict[str, Any]) -> str:
    """The result as aligned text; one set has no average."""
    lines = [f"{'set':14}{'pairs':>7}{'all':>8}{'wmean':>8}"]
    lines += [f"{r['set']:14}{r['pairs']:>7}{r['all']:>8.2f}{r['wmean']:>8.2f}" for r in result["rows"]]
    average = result["average"]
    if len(result["rows"]) == 1:
        return "\n".join(lines)
    lines.append(f"{'average of ' + str(len(average['sets'])):14}{'':7}{average['all']:>8.2f}{average['wmean']:>8.2f}")
    return "\n".join(lines)
