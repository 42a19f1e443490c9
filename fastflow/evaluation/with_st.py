"""The embeddings of a directory of Sentence Transformers compared with those of Sentence Transformers itself."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, missing_extra
from fastflow.model.architecture import is_static
from fastflow.model.sentence_transformers import read_modules
from fastflow.runtime import Runtime
from fastflow.stages.vectors import paired_cosine

TOLERANCE = 2e-6  # of a difference, relative to the longest vector if that is longer than 1
# A module may shorten vectors and not their rounding: WordWeights and max make them long, tanh of a Dense ends at 1.
# Then this many times the distance of Sentence Transformers' own float32 from its float64 is allowed; 3.8 was measured.
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


@dataclass(frozen=True)
class Agreement:
    """How far float32 vectors of ``texts`` texts lie apart: the largest difference, the least cosine, and the largest
    difference that rounding explains.
    """

    texts: int
    difference: float
    cosine: float
    allowed: float = TOLERANCE

    def __str__(self) -> str:
        wide = f"; {self.allowed:.1e} is allowed, for its own float32 rounds as much" * (self.allowed > TOLERANCE)
        return (
            f"{self.texts} texts in float32: largest difference to Sentence Transformers {self.difference:.1e}, least "
            f"cosine {self.cosine:.7f}{wide}"
        )

    def check(self, path: Path) -> None:
        """Raise a FastflowError for vectors that are further apart than rounding explains."""
        if not self.difference <= self.allowed:
            raise FastflowError(
                f"{path}: fastflow and Sentence Transformers give different vectors, {self.difference:.1e} apart where "
                f"{self.allowed:.2g} is allowed; open it with Sentence Transformers, and please report it"
            )


def probe_texts() -> list[str]:
    """A few dozen texts: empty, short, of several scripts, and longer than most limits."""
    words = " ".join(SENTENCES).split()
    return [*SENTENCES, *(" ".join(words[i % len(words)] for i in range(count)) for count in WORDS), "  ", "\tx\n"]


def compare(path: Path) -> Agreement:
    """The agreement of every prompt that the directory stores; raises if it or Sentence Transformers is missing."""
    if (modules := read_modules(path)) is None:
        why = "it is a table of model2vec" if is_static(path) else "it has no modules.json"
        raise FastflowError(f"{path} was not saved by Sentence Transformers: {why}")
    if find_spec("sentence_transformers") is None:
        raise missing_extra("st", "sentence_transformers", "vectors were not compared: --with st")
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(path), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
    texts, names = probe_texts(), (None, *modules.prompts)

    def wanted() -> list[NDArray[Any]]:
        return [np.asarray(theirs.encode(texts, show_progress_bar=False, prompt_name=name)) for name in names]

    with Runtime(path, device="cpu", dtype="float32") as ours, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # texts that are cut
        found = [ours.encode(texts, prompt_name=name) for name in names]
    single = wanted()
    differences, cosines = zip(*map(_apart, found, single), strict=True)
    allowed = TOLERANCE
    if TOLERANCE < max(differences) < math.inf:
        theirs.double()
        allowed = max(TOLERANCE, ROUNDINGS * max(_apart(a, b)[0] for a, b in zip(single, wanted(), strict=True)))
    return Agreement(len(texts) * len(names), max(differences), min(cosines), allowed)


def _apart(found: NDArray[Any], wanted: NDArray[Any]) -> tuple[float, float]:
    if found.shape != wanted.shape:
        return float("inf"), -1.0
    length = max(1.0, float(np.linalg.norm(wanted, axis=1).max()))
    return float(np.abs(found - wanted).max()) / length, float(paired_cosine(found, wanted).min())
