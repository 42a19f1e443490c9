"""Measure the separability of dropout views, which judges a flow or another calibration without labels.

Two passes with dropout give two views of a text (SimCSE, Gao et al. 2021). The separability is the mean cosine of two
views of one text, less the mean cosine of different texts, in standard deviations of the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import FrozenEncoder
from fastflow.train.methods.flow import Flow
from fastflow.transforms.vectors import cosine

TEXTS = 1024
DROPOUT = 0.1  # BERT's rate, not the configuration's
MARGIN = 0.01  # the least relative gain over the pooling

Calibrate = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def measure_separability(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Measure the separability of two views (n, D) of n >= 2 texts; NaN if a value is not finite."""
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    similarity = cosine(first, second)
    others = similarity[~np.eye(len(similarity), dtype=bool)]
    return float((np.diag(similarity).mean() - others.mean()) / max(float(others.std()), 1e-12))


@dataclass(frozen=True)
class Views:
    """Two views (n, D) float64 of a sample of the corpus."""

    first: NDArray[np.float64]
    second: NDArray[np.float64]

    def measure(self, calibrate: Calibrate | None = None, centred: bool = False) -> float:
        """Measure the separability after ``calibrate``; ``centred``: about the mean."""
        first, second = (side if calibrate is None else calibrate(side) for side in (self.first, self.second))
        if centred:
            mean = (first.mean(axis=0) + second.mean(axis=0)) / 2
            first, second = first - mean, second - mean
        return measure_separability(first, second)


def make_views(texts: Sequence[str], encoder: FrozenEncoder, device: str = "cpu", seed: int = 0) -> Views:
    """Embed up to TEXTS of ``texts`` twice with dropout."""
    sample = texts[:: -(-len(texts) // TEXTS)]
    embedder = Embedder(encoder, device, dropout=True, rate=DROPOUT)
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        first, second = (embedder(sample).astype(np.float64) for _ in range(2))
    return Views(first, second)


def is_due(step: int, steps: int) -> bool:
    """Whether to measure after ``step``: 0, 10, 14, 20, 28, 40, ... and the last."""
    marks = [10 << doublings for doublings in range(step.bit_length())]
    return step in (0, steps, *marks, *(int(1.4 * mark) for mark in marks))


@dataclass
class Keeper:
    """The best state of a flow by ``measure(flow)``, and the history of (step, value)."""

    measure: Callable[[Flow], float]
    history: list[tuple[int, float]] = field(default_factory=list)
    best: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return self._find_best()[0]

    @property
    def value(self) -> float:
        return self._find_best()[1]

    @torch.no_grad()
    def look(self, step: int, flow: Flow) -> float:
        value = self.measure(flow)
        self.history.append((step, value))
        if self.step == step:
            self.best = {name: tensor.detach().clone() for name, tensor in flow.state_dict().items()}
        return value

    def record(self) -> dict[str, Any]:
        history = [[step, round(value, 4) if np.isfinite(value) else None] for step, value in self.history]
        return {"kept_step": self.step, "steps": self.history[-1][0], "separability": self.value, "history": history}

    def _find_best(self) -> tuple[int, float]:
        return max(self.history, key=lambda look: look[1] if np.isfinite(look[1]) else -np.inf)
