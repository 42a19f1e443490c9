"""The cost of reduced precision for one model, measured without labels and saved with it.

``dtype="auto"`` decides by the least cosine of bfloat16; int8 opens without a trial of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastflow.backends.cpu import CpuBackend
from fastflow.model.encoder.architecture import is_static
from fastflow.model.encoder.int8 import Int8
from fastflow.model.kinds import Model
from fastflow.train.data.embeddings import who_runs

TEXTS = 256
REDUCED = ("bfloat16", "int8")


class Measured(CpuBackend):
    """The backend, in int8 too where opening it would be refused: what is measured is what a model records."""

    gated = False


class Precision(NamedTuple):
    """{dtype: least cosine} of embeddings in that dtype to those in float32, and the trial of int8.

    Empty and None if the compiled kernels do not run the encoder, or without products: ``auto`` is float32 then.
    """

    least_cosines: dict[str, float]
    int8: Int8 | None


def measure_precision(model: Model, texts: Sequence[str]) -> Precision:
    """The cost of each reduced dtype for ``model`` on some of ``texts``, and on the texts of int8's trial."""
    if who_runs(model.encoder, "cpu") != "cpu" or is_static(model.encoder):
        return Precision({}, None)
    some = texts[:: max(1, len(texts) // TEXTS)][:TEXTS]
    tokens = model.tokenizer().prompted(some, model.prompts.resolve(), model.prompts.pooled)
    found, int8 = {}, None
    for dtype in ("float32", *REDUCED):
        backend = Measured(model, dtype, "cpu", None)
        found[dtype] = backend.calibrate(backend.pool(tokens), normalize=True).astype(np.float64)
        int8 = backend.int8
    least = {dtype: round(float((found[dtype] * found["float32"]).sum(axis=1).min()), 6) for dtype in REDUCED}
    return Precision(least, int8)
