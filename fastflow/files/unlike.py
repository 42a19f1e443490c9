"""Counting texts that are unlike the corpus a flow was fitted to, and when to warn (bench/results/unlike.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastflow.model.likelihood import Likelihood

FEWEST = 200  # texts that are judged: with fewer, chance alone can exceed the share
TIMES = 5  # as many as in the corpus itself are too many


class Unlike:
    """``look`` at texts with their log-densities; ``warning`` is one sentence if too many are unlike the corpus."""

    def __init__(self, usual: Likelihood) -> None:
        self._usual, self.seen, self.below = usual, 0, 0

    def look(self, texts: Sequence[str], log_probs: NDArray[np.float64]) -> None:
        """Count ``texts``, the empty ones aside, and those that are less likely than usual."""
        judged = log_probs[np.array([bool(text.strip()) for text in texts], bool)]
        self.seen += len(judged)
        self.below += int((judged < self._usual.log_prob).sum())

    def warning(self) -> str | None:
        """One sentence with the share, None if there is no need of one."""
        if self.seen < FEWEST or self.below < TIMES * self._usual.share * self.seen:
            return None
        return (
            f"{self.below / self.seen:.0%} of these texts are unlike the corpus the model was fitted on; consider --fit"
        )
