"""The cost of reduced precision for one model, measured without labels; ``dtype="auto"`` later decides by it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastflow.backends.cpu import CpuBackend
from fastflow.model.kinds import Model
from fastflow.train.data.embeddings import who_runs

TEXTS = 256
REDUCED = ("bfloat16", "int8")


def least_cosines(model: Model, texts: Sequence[str]) -> dict[str, float]:
    """{dtype: least cosine} over some ``texts`` between calibrated embeddings in that dtype and in float32.

    Empty where the compiled kernels do not run this encoder: then nothing is known, and ``auto`` stays with float32.
    """
    if who_runs(model.encoder, "cpu") != "cpu":
        return {}
    some = texts[:: max(1, len(texts) // TEXTS)][:TEXTS]
    tokens = model.tokenizer().prompted(some, model.prompts.resolve(), model.prompts.pooled)
    found = {}
    for dtype in ("float32", *REDUCED):
        backend = CpuBackend(model, dtype, "cpu", None)
        found[dtype] = backend.calibrate(backend.pool(tokens), normalize=True).astype(np.float64)
    return {dtype: round(float((found[dtype] * found["float32"]).sum(axis=1).min()), 6) for dtype in REDUCED}
