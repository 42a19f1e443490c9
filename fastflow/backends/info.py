"""The description that a Runtime gives of itself."""

from __future__ import annotations

from typing import Any

from fastflow.backends.base import Calibrator
from fastflow.model.kinds import Model, VectorModel
from fastflow.stages import calibration


def describe(model: Model | VectorModel, runs: Calibrator, default: bool) -> dict[str, Any]:
    """``Runtime.info()`` of ``model`` as ``runs`` has it; ``default``: it is the one in the package.

    A model without an encoder takes vectors, and has neither pooling nor max_length: both are None.
    """
    texts = model if isinstance(model, Model) else None
    return {
        "model": "default" if default else str(model.path),
        "fingerprint": model.fingerprint,
        "takes": "vectors" if texts is None else "texts",
        "backend": runs.name,
        "device": runs.device,
        "dtype": runs.dtype,
        "dim": model.truncate_dim or calibration.output_dim(model.calibration, runs.pooled_dim),
        "pooled_dim": runs.pooled_dim,
        "pooling": None if texts is None else texts.pooling.describe(),
        "max_length": None if texts is None else texts.max_length,
        "modules": None if model.modules is None else model.modules.names(),
        "prompts": dict(model.prompts.texts),
        "default_prompt": model.prompts.default,
        "similarity": model.similarity,
        "calibration": calibration.describe(model.calibration),
        "truncation": model.describe_truncation(),
        "notes": [*([model.note] if model.note else []), *runs.notes],
        "details": list(runs.details),
    }
