"""Rows of vectors whose directions differ."""

import numpy as np


def data(rows=300, dim=16, seed=0, dtype=np.float64):
    """Correlated, off-centre, with one outlier channel."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, dim)) @ rng.normal(size=(dim, dim)) + rng.normal(size=dim)
    x[:, 3] = 40 * x[:, 3] - 90
    return x.astype(dtype)
