"""The difference of two programs' vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.stages.vectors import compute_paired_cosine

TOLERANCE = 2e-6  # of a difference, relative to the longest vector if that is longer than 1
# Modules may shorten vectors but not their rounding: WordWeights and max lengthen them, tanh of a Dense ends at 1.
# So ROUNDINGS times the library's own float32 rounding is allowed; 3.8 times was measured.
ROUNDINGS = 10.0
SENTENCES = (
    "A man is playing a guitar on the street.",
    "Shares fell sharply after the central bank raised interest rates by 0.25%.",
    "Die Würde des Menschen ist unantastbar, sagte Frau Müller-Lüdenscheidt.",
    "El río crecía lentamente bajo la lluvia de abril.",
    "東京の夜は静かだった。",
    "def f(x): return x ** 2  # a comment",
    "WHY ARE YOU SHOUTING?!",
    "e-mail: someone@example.org, telephone (0) 123-4567",
)
WORDS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and remarks of transformers."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()


@dataclass(frozen=True)
class Agreement:
    """The largest difference and least cosine of two programs' vectors, with the limits of both.

    ``allowed``: largest difference that rounding explains. ``library`` computes in ``dtype``.
    """

    texts: int
    difference: float
    cosine: float
    allowed: float = TOLERANCE
    library: str = "Sentence Transformers"
    dtype: str = "float32"
    least: float = -1.0

    def report(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("texts", "difference", "cosine", "allowed")}

    def __str__(self) -> str:
        wide = f"; {self.allowed:.1e} is allowed, for its own float32 rounds as much"
        wide *= TOLERANCE < self.allowed < math.inf
        return (
            f"{self.texts} texts in {self.dtype}: largest difference to {self.library} {self.difference:.1e}, least "
            f"cosine {self.cosine:.7f}{wide}"
        )

    def _advice(self) -> str:
        return f"open it with {self.library}" if self.library == "Sentence Transformers" else "do not use it"

    def check(self, path: Path) -> None:
        if not self.cosine >= self.least:
            raise FastflowError(
                f"{path}: {self.dtype} gives a vector at cosine {self.cosine:.3f} of float32's, below {self.least:g}; "
                "export the model in float32"
            )
        if not self.difference <= self.allowed:
            raise FastflowError(
                f"{path}: fastflow and {self.library} give different vectors, {self.difference:.1e} apart where "
                f"{self.allowed:.2g} is allowed; {self._advice()}, and please report it"
            )


def probe_texts() -> list[str]:
    """Return texts: empty, short, of several scripts, and longer than most limits."""
    words = " ".join(SENTENCES).split()
    return [*SENTENCES, *(" ".join(words[i % len(words)] for i in range(count)) for count in WORDS), "  ", "\tx\n"]


def compare_vectors(found: NDArray[Any], wanted: NDArray[Any]) -> tuple[float, float]:
    """Compute the largest difference of (B, D), over the longest vector above 1, and the least cosine."""
    if found.shape != wanted.shape:
        return float("inf"), -1.0
    length = max(1.0, float(np.linalg.norm(wanted, axis=1).max()))
    both_zero = ~(found.any(axis=1) | wanted.any(axis=1))  # a text without tokens
    cosines = np.where(both_zero, 1.0, compute_paired_cosine(found, wanted))
    return float(np.abs(found - wanted).max()) / length, float(cosines.min())


def allow_difference(
    difference: float, single: Sequence[NDArray[Any]], exact: Callable[[], Sequence[NDArray[Any]]]
) -> float:
    """Return TOLERANCE, or more if ``single`` in float32 rounds more from ``exact()``."""
    if not TOLERANCE < difference < math.inf:
        return TOLERANCE
    rounding = max(compare_vectors(a, b)[0] for a, b in zip(single, exact(), strict=True))
    return max(TOLERANCE, ROUNDINGS * rounding)
