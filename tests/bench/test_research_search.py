"""The study of search: the true best rows, recall, and rows that are enlarged."""

from __future__ import annotations

import numpy as np
from rows import data

from fastflow.bench.research.search import K, enlarged, page, recall, truth, without_walls


def test_the_best_rows_and_recall():
    x = data(200).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    want = np.argsort(-(x[:20].astype(np.float64) @ x.T.astype(np.float64)), axis=1)[:, :K]
    found = truth(x, x[:20])
    assert np.array_equal(found, want)
    assert recall(found[:, ::-1], want) == 1
    found[0] = -1
    assert recall(found, want) == 0.95


def test_rows_are_real_ones_first_and_then_near_them():
    real = data(100).astype(np.float32)
    rows = enlarged(real, 350)
    assert rows.shape == (350, 16)
    assert np.array_equal(rows[:100], real)
    away = (rows[100:, None] - real[None]) / real.std(axis=0)
    assert 0.2 < np.sqrt(np.square(away).mean(axis=2).min(axis=1)).mean() < 0.35
    assert np.array_equal(enlarged(real, 350), rows)


def test_the_page():
    result = {
        "rows": 10, "dim": 2, "real": 4, "made": 6, "threads": 2,
        "engines": [{"engine": "e", "recall": 1.0, "p50_ms": 1.0, "p99_ms": 2.0, "processor_ms": 4.0, "queries": 3}],
        "recalls": [{"codes": "bits", "factor": 8, "used": True, "recall": 0.5}],
        "commands": [{"file": "x.db", "median_s": 1.0, "worst_s": 2.0}],
    }  # fmt: skip
    text = page(result)
    assert "| e | 1.000 | 1.0 | 2.0 | 4.0 | 3 |" in text
    assert "| bits | **8** | 0.5000 |" in text
    assert "| x.db | 1.00 | 2.00 |" in text
    text = page(without_walls(result))
    assert "| e | 1.000 | 4.0 | 3 |" in text
    assert "x.db" not in text
    assert "other work used the machine" in text
