"""The rows of a .npy, and the texts of the file that was embedded."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.errors import FastflowError, UsageError
from fastflow.search import matrix as module
from fastflow.search.matrix import MatrixSource
from fastflow.search.source import Hit

from support.rows import data


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "x.npy", data(10))
    (tmp_path / "x.txt").write_text("".join(f"line {i}\n" for i in range(10)))
    return tmp_path / "x.npy"


def test_blocks_and_rows(path, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 4)
    source = MatrixSource(path)
    assert (source.dim, source.precision, source.fingerprint) == (16, "float32", None)
    rows, vectors = zip(*source.blocks(), strict=True)
    assert [each.tolist() for each in rows] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert np.array_equal(np.concatenate(vectors), data(10).astype(np.float32))
    assert np.array_equal(source.vectors(np.array([7, 2])), data(10)[[7, 2]].astype(np.float32))
    assert source.hits([(7, 0.5)]) == [Hit(7, 0.5)]
    source.close()


def test_texts_of_the_input(path):
    source = MatrixSource(path, path.with_suffix(".txt"))
    assert source.hits([(7, 0.5), (0, 0.1)]) == [Hit(7, 0.5, "line 7"), Hit(0, 0.1, "line 0")]
    for text in ("one\n" * 9, "one\n" * 11):
        path.with_suffix(".txt").write_text(text)
        with pytest.raises(FastflowError, match=r"x\.txt has (9|11) texts, and .*x\.npy has 10 vectors"):
            source.hits([(7, 0.5)])
    source.close()


def test_no_conditions(path):
    source = MatrixSource(path)
    for read in (lambda: list(source.blocks("1")), lambda: source.numbers("1")):
        with pytest.raises(UsageError, match=r"x\.npy has no columns, so no condition can choose its rows"):
            read()
    source.close()
