"""Encoders that were tuned for similarity: recognised without labels, and left as they are.

An untuned masked language model crowds its embeddings into a narrow cone, whatever the texts; tuning for similarity
spreads unrelated texts out. The mean cosine of unrelated sentences therefore separates the two kinds. It is taken
over fixed sentences of many subjects (probe.txt): the texts of a narrow corpus are close to each other in any encoder.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from fastflow.stages.vectors import cosine
from fastflow.train.data.embeddings import Embedder, open_encoder

CONE = 0.3  # one untuned encoder: 0.48; one tuned encoder: 0.04 (bench/results/verdicts.md)


def probe() -> list[str]:
    """Sentences of which no two have a subject in common."""
    return files("fastflow.train.choice").joinpath("probe.txt").read_text(encoding="utf-8").split("\n")[:-1]


def crowding(encoder: str | Path, pooling: str = "last") -> float:
    """Mean cosine of two sentences of ``probe``, mean-pooled from the last layer of ``encoder`` or as named."""
    embeddings = Embedder(open_encoder(str(encoder), pooling, None), "cpu")(probe()).astype(np.float64)
    similarity = cosine(embeddings, embeddings)
    return float(similarity[~np.eye(len(similarity), dtype=bool)].mean())


def caution(encoder: str | Path) -> str | None:
    """The warning for who calibrates ``encoder`` all the same, None for one that was not tuned for similarity."""
    found = crowding(encoder)
    if abs(found) >= CONE:
        return None
    return (
        "a calibration without labels was never found to help an encoder that was tuned for similarity, as this one "
        f"was (mean cosine of unrelated sentences {found:.2f}): whiten,recolour and flow cost all-MiniLM-L6-v2 1.0 to "
        "2.7 points of Spearman (bench/results/verdicts.md); compare with --method auto, which keeps it as it is, on "
        "pairs of your own"
    )


def why_tuned(encoder: str | Path) -> str | None:
    """The reason to leave ``encoder`` as it is, None for an encoder that was not tuned for similarity."""
    found = crowding(encoder)
    if abs(found) >= CONE:
        return None
    return (
        "this encoder was tuned for similarity: its embeddings of unrelated sentences have a mean cosine of "
        f"{found:.2f}, where an untuned one has {CONE} and more. Token weights and a calibration would harm it, so it "
        "is kept as it is; name a --method, or --token-weights sif, to calibrate it all the same"
    )
