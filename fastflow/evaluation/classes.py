"""Labelled texts: how well clusters match the labels, and how well few labelled texts teach the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.evaluation.draws import Measured
from fastflow.evaluation.rows import check_fields, read_rows
from fastflow.stages.vectors import shorten

LABELLED_TEXTS = "split\tlabel\t[fine_label]\ttext"
SEEDS = 5
CLUSTERED = 3000  # texts at most that k-means clusters
SHOTS = 16  # texts of a class that a classifier is trained on
NEIGHBOURS = 5
C = 10.0  # of the logistic regression: 1 holds unit vectors of a narrow cone too tight, 13 points lost on banking77

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class LabelledTexts:
    """n texts with ``labels`` (n,) from 0: the rows to cluster, and for each seed the rows to train on and to test."""

    name: str
    texts: list[str]
    labels: NDArray[np.int64]
    clustered: Rows
    train: list[Rows]
    test: list[Rows]

    kind: ClassVar = "classes"
    needs: ClassVar = {"sklearn": "scikit-learn"}

    @property
    def size(self) -> dict[str, int]:
        """The texts that are embedded, and their labels."""
        return {"texts": len(self.texts), "labels": len(np.unique(self.labels))}

    def measures(self, vectors: NDArray[Any]) -> dict[str, Measured]:
        """``v_measure``, ``knn`` and ``logistic`` of ``vectors`` (n, D); a nearer neighbour's vote weighs more."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.neighbors import KNeighborsClassifier

        x = shorten(vectors, True, None)
        return {
            "v_measure": self.clusters(vectors),
            "knn": self._accuracy(x, lambda size: KNeighborsClassifier(min(NEIGHBOURS, size), weights="distance")),
            "logistic": self._accuracy(x, lambda _: LogisticRegression(C=C, max_iter=1000)),
        }

    def clusters(self, vectors: NDArray[Any]) -> Measured:
        """The V-measure of k-means on the clustered rows of ``vectors`` (n, D), the mean of SEEDS starts."""
        from sklearn.cluster import KMeans

        x = shorten(vectors, True, None)[self.clustered]
        labels = np.unique(self.labels[self.clustered], return_inverse=True)[1]
        found = [KMeans(labels.max() + 1, n_init=1, random_state=seed).fit_predict(x) for seed in range(SEEDS)]
        return Measured(len(labels), lambda counts: float(np.mean([v_measure(labels, each, counts) for each in found])))

    def _accuracy(self, x: NDArray[Any], make: Any) -> Measured:
        """The share of test texts that are classified rightly, over all seeds."""
        right, tested = np.zeros(len(x)), np.zeros(len(x))
        for train, test in zip(self.train, self.test, strict=True):
            fitted = make(len(train)).fit(x[train], self.labels[train])
            right[test] += fitted.predict(x[test]) == self.labels[test]
            tested[test] += 1
        right, tested = right[tested > 0], tested[tested > 0]
        return Measured(len(tested), lambda counts: float(100 * (counts @ right) / (counts @ tested)))


def read_labelled_texts(path: Path) -> LabelledTexts:
    """A TSV ``split label text`` or ``split label fine_label text``, of which ``label`` counts.

    With the splits train and test, training texts are drawn from train, and test is tested and clustered. Otherwise the
    splits do not count: the texts that a seed does not train on are tested, and all are clustered.
    """
    header, rows = read_rows(path, LABELLED_TEXTS)
    check_fields(path, header, rows, required=1)
    splits = np.array([row[0] for row in rows])
    names, labels = np.unique([row[1] for row in rows], return_inverse=True)
    if len(names) < 2:
        raise FastflowError(f"{path}: holds {len(names)} labels; classes need at least two")
    apart = {"train", "test"} <= set(splits)
    pool, tested = (np.flatnonzero((splits == name) | (not apart)) for name in ("train", "test"))
    train = [_few(path, names, labels, pool, apart, seed) for seed in range(SEEDS)]
    test = [tested if apart else np.setdiff1d(tested, drawn) for drawn in train]
    kept = np.unique(np.concatenate([tested, *train]))  # of a large train split the rest need no vector
    rng = np.random.default_rng(0)
    clustered = np.sort(rng.choice(tested, min(CLUSTERED, len(tested)), replace=False))

    def at(chosen: Rows) -> Rows:
        return np.searchsorted(kept, chosen)

    texts = [rows[i][-1] for i in kept]
    return LabelledTexts(path.stem, texts, labels[kept], at(clustered), [*map(at, train)], [*map(at, test)])


def _few(path: Path, names: Any, labels: NDArray[np.int64], pool: Rows, apart: bool, seed: int) -> Rows:
    """Rows of ``pool`` to train on: SHOTS of each label, or half of a label that has less than twice as many."""
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
    """x100 harmonic mean of homogeneity and completeness (Rosenberg & Hirschberg 2007) of texts that occur ``counts``
    times each; both partitions are numbered from 0."""
    width = int(clusters.max()) + 1
    cells = np.bincount(labels * width + clusters, counts, (int(labels.max()) + 1) * width) / counts.sum()
    table = cells.reshape(-1, width)
    whole = _entropy(table.sum(axis=1)) + _entropy(table.sum(axis=0))
    return 100.0 if not whole else 200 * (whole - _entropy(cells)) / whole


def _entropy(shares: NDArray[Any]) -> float:
    some = shares[shares > 0]
    return float(-(some @ np.log(some)))
