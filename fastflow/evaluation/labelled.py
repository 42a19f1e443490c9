"""Labelled texts, to cluster and classify, and labelled pairs, paraphrases or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.evaluation.analyses import Measure, mean_of
from fastflow.evaluation.retrieval import compute_cosines
from fastflow.evaluation.rows import check_fields, read_lines, read_rows, without_suffix
from fastflow.transforms.vectors import compute_paired_cosine, shorten


@dataclass(frozen=True)
class Bitext:
    """L languages of n lines, line i the same sentence in each; ``rows`` (L, n): the row of each line in ``texts``."""

    languages: list[str]
    texts: list[str]
    rows: NDArray[np.int64]

    name: ClassVar = "bitext"
    kind: ClassVar = "bitext"

    @property
    def size(self) -> dict[str, int]:
        return {"languages": len(self.languages), "lines": self.rows.shape[1]}

    def measures(self, vectors: NDArray[Any]) -> dict[str, Measure]:
        """Measure the first language with each other, apart and mixed; a neutral ``share`` is 50."""
        x, (first, *others) = shorten(vectors, True, None), self.rows
        pairs = [pair for it in others for pair in ((first, it), (it, first))]
        rows = [(search_lines(x, *pair)[0], *search_lines(x, *pair, mixed=True)) for pair in pairs]
        shaped = (np.array(each).reshape(len(others), 2, -1) for each in zip(*rows, strict=True))
        means = dict(zip(("accuracy", "mixed", "share"), shaped, strict=True))
        found = {name: mean_of(ways.mean(axis=(0, 1)), wilson=True) for name, ways in means.items()}
        if find_spec("sklearn") is not None:
            found["languages"] = self._cluster(vectors)
        pivot, *names = self.languages
        named = [f"{pivot} and {it}" for it in names]
        if len(names) == 1:
            named = [f"{pivot} to {names[0]}", f"{names[0]} to {pivot}"]
        for kind, ways in (("", means["accuracy"]), (", mixed", means["mixed"])):
            values = ways[0] if len(names) == 1 else ways.mean(axis=1)
            found |= {name + kind: mean_of(each, wilson=True) for name, each in zip(named, values, strict=True)}
        return found

    def _cluster(self, vectors: NDArray[Any]) -> Measure:
        rows = self.rows.ravel()
        drawn = np.sort(np.random.default_rng(0).choice(len(rows), min(CLUSTERED, len(rows)), replace=False))
        labels = np.arange(len(rows)) // self.rows.shape[1]
        return LabelledTexts(self.name, [], labels, drawn, [], []).measure_clusters(vectors[rows])

    def compare_all(self, vectors: NDArray[Any]) -> dict[str, dict[str, float]]:
        """Return {from: {to: accuracy x100}} of every ordered pair of languages."""
        x, pairs = shorten(vectors, True, None), list(zip(self.languages, self.rows, strict=True))
        return {
            name: {to: round(100 * float(search_lines(x, rows, own)[0].mean()), 2) for to, own in pairs if to != name}
            for name, rows in pairs
        }


def search_lines(
    x: NDArray[Any], queries: NDArray[np.int64], documents: NDArray[np.int64], mixed: bool = False
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Mark each line (n,) if its nearest line, the first of equal cosines, has the same line's text.

    ``x`` (T, D): vectors of length 1; ``queries``, ``documents`` (n,): the row of each line, searched among documents,
    or ``mixed``, among the other queries too. Returns also the share (n,) of documents in the NEXT lines after the
    nearest one.
    """
    own = np.unique(queries) if mixed else queries[:0]
    first = np.unique(x[documents], axis=0, return_index=True)[1]  # products of equal vectors may differ by a rounding
    kept = documents[np.sort(first)]
    pool, right, share = np.concatenate([own, kept]), list[NDArray[Any]](), list[NDArray[Any]]()
    for block in compute_cosines(x[queries], x[pool]):
        asked = slice(start := sum(map(len, right)), start + len(block))
        block[:, : len(own)][own == queries[asked, None]] = -np.inf
        count, nearest = min(NEXT + 1, len(pool) - mixed), block.argmax(axis=1)
        best = np.argpartition(-block, count - 1, axis=1)[:, :count]
        right.append(pool[nearest] == documents[asked])
        share.append(((best >= len(own)).sum(axis=1) - (nearest >= len(own))) / max(1, count - 1))
    return np.concatenate(right), np.concatenate(share)


def read_bitext(paths: Sequence[Path]) -> Bitext:
    """Read text files; a language is the name of its file without suffix."""
    if len(paths) < 2:
        raise FastflowError(
            f"{paths[0]}: is one .txt file of sentences; name another with the same sentences in another language, or "
            "end the name of a task with .tsv"
        )
    places: dict[str, int] = {}
    languages: dict[str, list[int]] = {}
    for path in paths:
        name = without_suffix(path).stem
        if name in languages:
            raise FastflowError(f"{path}: another file is called {name} as well; rename one of them")
        lines = read_lines(path)
        for number, line in enumerate(lines, 1):
            if not line.strip():
                raise FastflowError(f"{path}, line {number}: is empty; fill it, or remove this line from every file")
        languages[name] = [places.setdefault(line, len(places)) for line in lines]
        if len(lines) != len(first := next(iter(languages.values()))):
            longer, shorter = (path, paths[0]) if len(lines) > len(first) else (paths[0], path)
            raise FastflowError(
                f"{longer}, line {min(len(lines), len(first)) + 1}: {shorter} has no such line; give files with the "
                "same sentence on the same line"
            )
    if len(first) < 2:
        raise FastflowError(f"{paths[0]}: holds one line; accuracy needs at least two")
    return Bitext(list(languages), list(places), np.array(list(languages.values())))


def format_ways(found: dict[str, dict[str, float]]) -> str:
    """Format the result of ``compare_all`` as a table."""
    first, width = max(map(len, ["from\\to", *found])), max(5, *map(len, found)) + 1
    lines = ["from\\to".ljust(first) + "".join(f"{to:>{width}}" for to in found)]
    for name, row in found.items():
        cells = (f"{row[to]:.1f}" if to in row else "-" for to in found)
        lines.append(name.ljust(first) + "".join(f"{cell:>{width}}" for cell in cells))
    return "\n".join(lines)


LABELLED_PAIRS = "split\tlabel\t[votes]\tsentence1\tsentence2"
LABELLED_TEXTS = "split\tlabel\t[fine_label]\ttext"
SEEDS = 5
CLUSTERED = 3000  # the most texts that k-means clusters
SHOTS = 16  # training texts of a class
NEIGHBOURS = 5
NEXT = 10  # neighbours after the nearest whose languages are counted
C = 10.0  # of the logistic regression: 1 loses 13 points on banking77

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class LabelledTexts:
    """n texts with ``labels`` (n,), rows to cluster, and each seed's rows to train on and test."""

    name: str
    texts: list[str]
    labels: NDArray[np.int64]
    clustered: Rows
    train: list[Rows]
    test: list[Rows]

    kind: ClassVar = "classes"

    @property
    def size(self) -> dict[str, int]:
        return {"texts": len(self.texts), "labels": len(np.unique(self.labels))}

    def measures(self, vectors: NDArray[Any]) -> dict[str, Measure]:
        from sklearn.linear_model import LogisticRegression
        from sklearn.neighbors import KNeighborsClassifier

        x = shorten(vectors, True, None)
        return {
            "v_measure": self.measure_clusters(vectors),
            "knn": self._classify(x, lambda size: KNeighborsClassifier(min(NEIGHBOURS, size), weights="distance")),
            "logistic": self._classify(x, lambda _: LogisticRegression(C=C, max_iter=1000)),
        }

    def measure_clusters(self, vectors: NDArray[Any]) -> Measure:
        from sklearn.cluster import KMeans

        x = shorten(vectors, True, None)[self.clustered]
        labels = np.unique(self.labels[self.clustered], return_inverse=True)[1]
        found = [KMeans(labels.max() + 1, n_init=1, random_state=seed).fit_predict(x) for seed in range(SEEDS)]
        return Measure(len(labels), lambda counts: float(np.mean([v_measure(labels, each, counts) for each in found])))

    def _classify(self, x: NDArray[Any], make: Any) -> Measure:
        right, tested = np.zeros(len(x)), np.zeros(len(x))
        for train, test in zip(self.train, self.test, strict=True):
            fitted = make(len(train)).fit(x[train], self.labels[train])
            right[test] += fitted.predict(x[test]) == self.labels[test]
            tested[test] += 1
        right, tested = right[tested > 0], tested[tested > 0]
        return Measure(len(tested), lambda counts: float(100 * (counts @ right) / (counts @ tested)), shares=True)


def read_labelled_texts(path: Path) -> LabelledTexts:
    """Read a TSV ``split label [fine_label] text``.

    With splits train and test, test texts are tested and clustered. Else each seed tests the texts that it does not
    train on, and all texts are clustered.
    """
    header, rows = read_rows(path, LABELLED_TEXTS)
    check_fields(path, header, rows, required=1)
    splits = np.array([row[0] for row in rows])
    names, labels = np.unique([row[1] for row in rows], return_inverse=True)
    if len(names) < 2:
        raise FastflowError(f"{path}: holds {len(names)} labels; classes need at least two")
    apart = {"train", "test"} <= set(splits)
    pool, tested = (np.flatnonzero((splits == name) | (not apart)) for name in ("train", "test"))
    train = [_draw_few(path, names, labels, pool, apart, seed) for seed in range(SEEDS)]
    test = [tested if apart else np.setdiff1d(tested, drawn) for drawn in train]
    kept = np.unique(np.concatenate([tested, *train]))  # others need no vector
    rng = np.random.default_rng(0)
    clustered = np.sort(rng.choice(tested, min(CLUSTERED, len(tested)), replace=False))

    def at(chosen: Rows) -> Rows:
        return np.searchsorted(kept, chosen)

    texts = [rows[i][-1] for i in kept]
    return LabelledTexts(
        without_suffix(path).stem, texts, labels[kept], at(clustered), [*map(at, train)], [*map(at, test)]
    )


def _draw_few(path: Path, names: Any, labels: NDArray[np.int64], pool: Rows, apart: bool, seed: int) -> Rows:
    rng, drawn = np.random.default_rng(seed), []
    for label, name in enumerate(names):
        of_label = pool[labels[pool] == label]
        count = min(SHOTS, len(of_label) if apart else len(of_label) // 2)
        if not count:
            place = "no text in the split train" if apart else "one text, and training and test need one each"
            raise FastflowError(f"{path}: label {str(name)!r} has {place}")
        drawn.append(rng.choice(of_label, count, replace=False))
    return np.sort(np.concatenate(drawn))


def v_measure(labels: NDArray[Any], clusters: NDArray[Any], counts: NDArray[Any]) -> float:
    """Compute the V-measure x100 (Rosenberg & Hirschberg 2007) of texts that occur ``counts`` (n,) times."""
    width = int(clusters.max()) + 1
    cells = np.bincount(labels * width + clusters, counts, (int(labels.max()) + 1) * width) / counts.sum()
    table = cells.reshape(-1, width)
    whole = _entropy(table.sum(axis=1)) + _entropy(table.sum(axis=0))
    return 100.0 if not whole else 200 * (whole - _entropy(cells)) / whole


def _entropy(shares: NDArray[Any]) -> float:
    some = shares[shares > 0]
    return float(-(some @ np.log(some)))


@dataclass(frozen=True)
class LabelledPairs:
    """n pairs of the distinct ``texts``; ``positive`` (n,) marks paraphrases."""

    name: str
    positive: NDArray[np.bool_]
    texts: list[str]
    first: NDArray[np.int64]
    second: NDArray[np.int64]

    kind: ClassVar = "pairs"

    @property
    def size(self) -> dict[str, int]:
        return {"pairs": len(self.positive)}

    def measures(self, vectors: NDArray[Any]) -> dict[str, Measure]:
        return {
            "ap": average_precision(self.positive, compute_paired_cosine(vectors[self.first], vectors[self.second]))
        }


def read_labelled_pairs(path: Path) -> LabelledPairs:
    """Read a TSV ``split label [votes] sentence1 sentence2``; label 1 for a paraphrase, else 0."""
    header, rows = read_rows(path, LABELLED_PAIRS)
    for number, row in enumerate(rows, 2):
        if len(row) != header.count("\t") + 1 or row[1] not in ("0", "1"):
            raise FastflowError(f"{path}, line {number}: must be {', '.join(header.split())}, with label 0 or 1")
    positive = np.array([row[1] == "1" for row in rows], bool)
    if positive.all() or not positive.any():
        raise FastflowError(
            f"{path}: holds {positive.sum()} pairs of label 1 and {(~positive).sum()} of label 0; average precision "
            "needs both"
        )
    where: dict[str, int] = {}
    sides = [np.array([where.setdefault(row[at], len(where)) for row in rows]) for at in (-2, -1)]
    return LabelledPairs(without_suffix(path).stem, positive, list(where), *sides)


def average_precision(positive: NDArray[np.bool_], similarity: NDArray[Any]) -> Measure:
    """Make the Measure of average precision x100; pairs of equal similarity share a rank."""
    order = np.argsort(-similarity, kind="stable")
    hits = positive[order].astype(float)
    ends = np.flatnonzero(np.append(np.diff(similarity[order]) != 0, True))

    def at(counts: NDArray[Any]) -> float:
        found, seen = np.cumsum(counts[order] * hits)[ends], np.cumsum(counts[order])[ends]
        if not found[-1]:
            return float("nan")
        return float(100 * np.sum(np.diff(found, prepend=0) * found / np.maximum(seen, 1)) / found[-1])

    return Measure(len(positive), at)
