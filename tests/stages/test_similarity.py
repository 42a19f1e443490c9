"""The similarities, against SciPy's distances."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from fastflow.errors import FastflowError
from fastflow.stages import similarity
from fastflow.stages.similarity import SIMILARITIES

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
