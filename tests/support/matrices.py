"""Matrices of vectors, and models that calibrate them, for the tests."""

from pathlib import Path
from typing import Any

import numpy as np

from fastflow.train.export.export import export_vectors
from fastflow.train.methods.chain import fit_chain
from fastflow.train.methods.loop import Schedule, Training
from fastflow.train.options import TrainOptions


def make_vectors(count: int = 400, dim: int = 32, seed: int = 0) -> np.ndarray[Any, Any]:
    """(count, dim) float32 in a cone, as an encoder's: a mean, and directions of unequal spread."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(count, dim)) * np.geomspace(3, 0.3, dim) @ rng.normal(size=(dim, dim))
    return (mixed + 2 * rng.normal(size=dim) * dim**0.5).astype(np.float32)


def make_vector_model(directory: Path, method: str = "whiten:8", dim: int = 32, **options: Any) -> Path:
    """A saved model without an encoder, fitted to ``make_vectors``; also a flow, which ``fastflow.fit`` refuses."""
    x, asked = make_vectors(dim=dim), TrainOptions(method=method, token_weights="none", **options)
    fitted = fit_chain(asked.links, x, asked.shape(), Training(Schedule.of(asked)), asked.colour)
    export_vectors(directory, fitted, {"vectors": len(x)}, "# A model for tests\n", x)
    return directory
