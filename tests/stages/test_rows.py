"""Rows and similarities: what is taken, in its order."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from fastflow.errors import FastflowError
from fastflow.stages import similarity
from fastflow.stages.rows import Joined
from fastflow.stages.similarity import SIMILARITIES

FIRST = np.arange(20, dtype=np.float32).reshape(5, 4)
SECOND = -np.arange(12, dtype=np.float32).reshape(3, 4)
WHOLE = np.concatenate([FIRST, SECOND])


@pytest.mark.parametrize(
    "rows",
    [slice(None), slice(0, 1), slice(3, 7), slice(5, 8), slice(6, 99), slice(8, 9), slice(None, None, 3),
     np.array([7, 0, 5, 4, 7]), np.array([], np.int64), np.array([4, 3]), np.array([5])],
)  # fmt: skip
def test_rows_are_those_of_the_two_in_order(rows):
    joined = Joined(FIRST, SECOND)
    assert (len(joined), joined.shape) == (8, (8, 4))
    found = joined[rows]
    assert found.dtype == np.float32
    assert np.array_equal(found, WHOLE[rows])


def test_the_wider_type_is_kept():
    assert Joined(FIRST, SECOND.astype(np.float64))[:].dtype == np.float64


A, B = (np.random.default_rng(seed).normal(size=(n, 7)) for seed, n in ((0, 5), (1, 11)))
WANTED = {
    "cosine": 1 - cdist(A, B, "cosine"),
    "dot": A @ B.T,
    "euclidean": -cdist(A, B),
    "manhattan": -cdist(A, B, "cityblock"),
}


@pytest.mark.parametrize("block", [1, 100, 1 << 22])
@pytest.mark.parametrize("name", WANTED)
def test_similarities(name, block, monkeypatch):
    assert set(WANTED) == set(SIMILARITIES)
    monkeypatch.setattr(similarity, "BLOCK", block)
    np.testing.assert_allclose(SIMILARITIES[name](A, B), WANTED[name], atol=1e-12)
    assert SIMILARITIES[name](A.astype(np.float32), B.astype(np.float32)).dtype == np.float32
    assert SIMILARITIES[name](A[:0], B).shape == (0, 11)


@pytest.mark.parametrize("name", WANTED)
def test_two_widths(name):
    with pytest.raises(FastflowError, match="similarity takes vectors of one width, not 7 and 3"):
        SIMILARITIES[name](A, B[:, :3])
