"""What can be measured without labels while a calibration is fitted: candidates for a rule that predicts Spearman."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.study_data import FIRST_LAST, VIEWS, Map, Matrix, Store
from fastflow.evaluation import isotropy
from fastflow.evaluation.evaluate import spearman
from fastflow.stages.vectors import cosine
from fastflow.train.choice.separability import separability

TEXTS = 800
PAIRS = 20_000
NEIGHBOURS = 10


def quick(store: Store, corpus: str, calibrate: Map, layers: tuple[int, ...] = FIRST_LAST) -> dict[str, float]:
    """The rule's signal alone."""
    sides = [calibrate(store.layers(f"{corpus}.v.drop{i}", layers)[:TEXTS]) for i in (0, 1)]
    return {"drop.separability": round(separability(*sides), 5)}


def measure(store: Store, corpus: str, calibrate: Map, layers: tuple[int, ...] = FIRST_LAST) -> dict[str, float]:
    """Every signal of ``calibrate`` on the corpus it was fitted on."""
    out: dict[str, float] = {}
    for kind in VIEWS:
        sides = [store.layers(f"{corpus}.v.{kind}{i}", layers)[:TEXTS] for i in (0, 1)]
        out |= {f"{kind}.{name}": value for name, value in views(*(calibrate(side) for side in sides)).items()}
    raw = store.layers(corpus, layers)
    x = raw[:: -(-len(raw) // 4000)]
    z = calibrate(x)
    out |= {"mean_cosine": -isotropy.mean_cosine(z), "isoscore": isotropy.isoscore(z)}
    standard = (z - z.mean(axis=0)) / z.std(axis=0)
    out["gaussian"] = -float(np.abs((standard**4).mean(axis=0) - 3).mean())
    rng = np.random.default_rng(0)
    i = rng.integers(0, len(x), PAIRS)
    j = (i + rng.integers(1, len(x), PAIRS)) % len(x)
    out["agrees_with_raw"] = spearman(_paired(z, i, j), _paired(x, i, j))
    centred = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(x))
    kept = values > 1e-10 * values[-1]
    out["agrees_with_whitening"] = spearman(
        _paired(z, i, j), _paired(centred @ (vectors[:, kept] / np.sqrt(values[kept])), i, j)
    )
    return {name: round(float(value), 5) for name, value in out.items()}


def views(first: Matrix, second: Matrix) -> dict[str, float]:
    """Signals from two views (n, D) of the same texts; each is oriented so that more should be better."""
    similarity = cosine(first, second)
    n = len(similarity)
    same, others = np.diag(similarity).copy(), similarity[~np.eye(n, dtype=bool)]
    gap, spread = same.mean() - others.mean(), others.std()
    within = [cosine(side, side) - 2 * np.eye(n) for side in (first, second)]
    nearest = [np.argpartition(-s, NEIGHBOURS, axis=1)[:, :NEIGHBOURS] for s in within]
    shared = np.mean([len(set(a) & set(b)) for a, b in zip(*nearest, strict=True)]) / NEIGHBOURS
    upper = np.triu_indices(n, 1)
    some = np.random.default_rng(0).permutation(len(upper[0]))[:PAIRS]
    pairs = upper[0][some], upper[1][some]
    return {
        "separability": gap / spread,
        "separability_pooled": gap / np.sqrt((same.var() + others.var()) / 2),
        "gap": gap,
        "alignment": same.mean(),
        "uniformity": -np.log(np.exp(2 * within[0][~np.eye(n, dtype=bool)] - 2).mean()),
        "top1": float((similarity.argmax(axis=1) == np.arange(n)).mean()),
        "stability": spearman(within[0][pairs], within[1][pairs]),
        "neighbours": float(shared),
    }


def _paired(x: Matrix, i: NDArray[np.int64], j: NDArray[np.int64]) -> Matrix:
    a, b = x[i], x[j]
    return np.asarray((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)))
