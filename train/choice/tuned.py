"""Recognise encoders that were tuned for similarity.

An untuned encoder crowds unrelated sentences (probe.txt) into a cone. So do E5 models, but these have Normalize.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from fastflow.stages.vectors import cosine
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import has_normalize, open_encoder

CONE = 0.3  # an untuned encoder has a mean cosine of 0.48, a tuned one 0.04 (bench/results/verdicts.md)


def read_probe() -> list[str]:
    """Read the probe sentences."""
    return files("fastflow.train.choice").joinpath("probe.txt").read_text(encoding="utf-8").split("\n")[:-1]


def measure_crowding(encoder: str | Path) -> float:
    """Measure the mean cosine of two probe sentences."""
    texts = read_probe()
    embeddings = Embedder(open_encoder(str(encoder), "last", None), "cpu")(texts).astype(np.float64)
    similarity = cosine(embeddings, embeddings)
    return float(similarity[~np.eye(len(similarity), dtype=bool)].mean())


def find_tuning(encoder: str | Path) -> str | None:
    """Return how ``encoder`` shows that it was tuned for similarity, or None."""
    found = measure_crowding(encoder)
    if abs(found) < CONE:
        return f"unrelated sentences have a mean cosine of {found:.2f}, where an untuned one has {CONE} and more"
    return "its modules have Normalize" if has_normalize(str(encoder)) else None


def warn_of_tuning(encoder: str | Path) -> str | None:
    """Return a warning against calibrating ``encoder`` if it was tuned."""
    if (shown := find_tuning(encoder)) is None:
        return None
    return (
        "a calibration without labels was never found to help an encoder that was tuned for similarity, as this one "
        f"was ({shown}): whiten,recolour and flow cost all-MiniLM-L6-v2 1.0 to 2.7 points of Spearman "
        "(bench/results/verdicts.md); compare with --method auto, which keeps it as it is, on pairs of your own"
    )


def explain_tuning(encoder: str | Path) -> str | None:
    """Return the reason to keep ``encoder`` if it was tuned."""
    if (shown := find_tuning(encoder)) is None:
        return None
    return (
        f"this encoder was tuned for similarity: {shown}. Token weights and a calibration would harm it, so it is kept "
        "as it is; name a --method, or --token-weights sif, to calibrate it all the same"
    )
