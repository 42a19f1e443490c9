"""Measure the cost of reduced precision without labels.

The least cosine of bfloat16 decides ``dtype="auto"``, and int8 opens without another trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastflow.backends.cpu import CpuBackend
from fastflow.model.encoder.architecture import is_static
from fastflow.model.encoder.int8 import Int8
from fastflow.model.kinds import Model
from fastflow.train.data.embeddings import pick_backend

TEXTS = 256
REDUCED = ("bfloat16", "int8")


class Measured(CpuBackend):
    """The backend that opens int8 even if the trial refuses it."""

    gated = False


class Precision(NamedTuple):
    """The least cosine of each dtype to float32, and the trial of int8.

    Empty and None for a token table, or an encoder without compiled kernels: ``auto`` is float32.
    """

    least_cosines: dict[str, float]
    int8: Int8 | None


def measure_precision(model: Model, texts: Sequence[str]) -> Precision:
    """Measure each reduced dtype of ``model`` on some of ``texts``."""
    if pick_backend(model.encoder, "cpu") != "cpu" or is_static(model.encoder):
        return Precision({}, None)
    some = texts[:: max(1, len(texts) // TEXTS)][:TEXTS]
    tokens = model.tokenizer().tokenize_prompted(some, model.prompts.resolve(), model.prompts.pooled)
    found, int8 = {}, None
    for dtype in ("float32", *REDUCED):
        backend = Measured(model, dtype, "cpu", None)
        found[dtype] = backend.calibrate(backend.pool(tokens), normalize=True).astype(np.float64)
        int8 = backend.int8
    least = {dtype: round(float((found[dtype] * found["float32"]).sum(axis=1).min()), 6) for dtype in REDUCED}
    return Precision(least, int8)
