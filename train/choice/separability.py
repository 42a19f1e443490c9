"""A rule for stopping and for refusing, without labels: whether the noise of the encoder's own dropout stays small.

Two passes of the encoder with its dropout on give two views of a text, equal in meaning by construction (the pairs
that SimCSE, Gao et al. 2021, trains on; here they only judge). The separability of a calibration is how far the mean
cosine of two views of one text lies above the mean cosine of different texts, in standard deviations of the latter. A
good calibration spreads texts apart, which lowers that deviation; one that is fitted too long amplifies directions in
which the encoder only has noise, which lowers the first mean. Likelihood sees neither. See bench/results/verdicts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.stages.vectors import cosine
from fastflow.train.data.embeddings import Embedder, FrozenEncoder
from fastflow.train.methods.flow import Flow

TEXTS = 1024
DROPOUT = 0.1  # BERT's own rate; set even if the encoder's configuration names none
MARGIN = 0.01  # relative: a gain smaller than this is none

Calibrate = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def separability(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Of two views (n, D) of the same n texts, n >= 2: (mean cosine of views - of texts) / deviation of the latter.

    Larger is better; 0 when the views of a text are no more similar than two texts, NaN when a value is not finite.
    """
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    similarity = cosine(first, second)
    others = similarity[~np.eye(len(similarity), dtype=bool)]
    return float((np.diag(similarity).mean() - others.mean()) / max(float(others.std()), 1e-12))


@dataclass(frozen=True)
class Views:
    """Two views, ``first`` and ``second`` (n, D) float64, of a sample of the corpus."""

    first: NDArray[np.float64]
    second: NDArray[np.float64]

    def judge(self, calibrate: Calibrate | None = None, centred: bool = False) -> float:
        """The separability after ``calibrate``, or of pooled embeddings as they are; ``centred``: about their mean."""
        first, second = (side if calibrate is None else calibrate(side) for side in (self.first, self.second))
        if centred:
            mean = (first.mean(axis=0) + second.mean(axis=0)) / 2
            first, second = first - mean, second - mean
        return separability(first, second)


def make_views(texts: Sequence[str], encoder: FrozenEncoder, device: str = "cpu", seed: int = 0) -> Views:
    """Embed up to TEXTS of ``texts``, evenly spaced, twice with dropout; the random state outside is left alone."""
    sample = texts[:: -(-len(texts) // TEXTS)]
    embedder = Embedder(encoder, device, dropout=True, rate=DROPOUT)
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        first, second = (embedder(sample).astype(np.float64) for _ in range(2))
    return Views(first, second)


def due(step: int, steps: int) -> bool:
    """Whether to look after ``step`` of ``steps``: at 0, 10, 14, 20, 28, 40, ... and at the last, so about 20 times."""
    if step in (0, steps):
        return True
    doublings, mark = 0, 10
    while mark <= step:
        if step in (mark, int(mark * 1.4)):
            return True
        doublings, mark = doublings + 1, 10 << (doublings + 1)
    return False


@dataclass
class Keeper:
    """Remembers the state of a flow where ``measure(flow)`` was largest, and every look: (step, value)."""

    measure: Callable[[Flow], float]
    what: str = "separability"  # that is measured
    history: list[tuple[int, float]] = field(default_factory=list)
    best: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The step that is kept; among equals the first, and NaN is never kept."""
        return self._top()[0]

    @property
    def value(self) -> float:
        """Its value."""
        return self._top()[1]

    def look(self, step: int, flow: Flow) -> float:
        """Measure ``flow`` after ``step``, keep it if it is the best yet, and return its value."""
        value = self.measure(flow)
        self.history.append((step, value))
        if self.step == step:
            self.best = {name: tensor.detach().clone() for name, tensor in flow.state_dict().items()}
        return value

    def record(self) -> dict[str, Any]:
        """The entry of the manifest: the step kept and its value, the step of the last look, and every look as
        [step, value], its value rounded to 4 decimals, None if it is not finite.
        """
        history = [[step, round(value, 4) if np.isfinite(value) else None] for step, value in self.history]
        return {"kept_step": self.step, "steps": self.history[-1][0], self.what: self.value, "history": history}

    def restore(self, flow: Flow) -> None:
        """Put the best state back."""
        flow.load_state_dict(self.best)

    def _top(self) -> tuple[int, float]:
        return max(self.history, key=lambda look: look[1] if np.isfinite(look[1]) else -np.inf)
