"""Recognise encoders that were tuned for similarity, by the mean cosine of fixed, unrelated sentences (probe.txt).

An untuned encoder crowds all embeddings into a cone; tuning spreads them.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from fastflow.stages.vectors import cosine
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder

CONE = 0.3  # an untuned encoder has a mean cosine of 0.48, a tuned one 0.04 (bench/results/verdicts.md)


def read_probe() -> list[str]:
    """Read the probe sentences."""
    return files("fastflow.train.choice").joinpath("probe.txt").read_text(encoding="utf-8").split("\n")[:-1]


def measure_crowding(encoder: str | Path, pooling: str = "last") -> float:
    """Measure the mean cosine of two probe sentences."""
    texts = read_probe()
    embeddings = Embedder(open_encoder(str(encoder), pooling, None), "cpu")(texts).astype(np.float64)
    similarity = cosine(embeddings, embeddings)
    return float(similarity[~np.eye(len(similarity), dtype=bool)].mean())


def warn_of_tuning(encoder: str | Path) -> str | None:
    """Return a warning against calibrating ``encoder`` if it was tuned."""
    found = measure_crowding(encoder)
    if abs(found) >= CONE:
        return None
    return (
        "a calibration without labels was never found to help an encoder that was tuned for similarity, as this one "
        f"was (mean cosine of unrelated sentences {found:.2f}): whiten,recolour and flow cost all-MiniLM-L6-v2 1.0 to "
        "2.7 points of Spearman (bench/results/verdicts.md); compare with --method auto, which keeps it as it is, on "
        "pairs of your own"
    )


def explain_tuning(encoder: str | Path) -> str | None:
    """Return the reason to keep ``encoder`` if it was tuned."""
    found = measure_crowding(encoder)
    if abs(found) >= CONE:
        return None
    return (
        "this encoder was tuned for similarity: its embeddings of unrelated sentences have a mean cosine of "
        f"{found:.2f}, where an untuned one has {CONE} and more. Token weights and a calibration would harm it, so it "
        "is kept as it is; name a --method, or --token-weights sif, to calibrate it all the same"
    )
