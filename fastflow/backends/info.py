"""A Runtime's description of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastflow.model.kinds import Model
from fastflow.stages import calibration

if TYPE_CHECKING:
    from fastflow.session import Session
    from fastflow.types import Info


def describe(session: Session) -> Info:
    """Describe a session for ``Runtime.info()``; fields of the encoder are None without one."""
    model, runs = session.model, session.calibrator
    texts = model if isinstance(model, Model) else None
    seen = [] if texts is None else session.seen.notes(session.tokenizer)
    return {
        "model": session.packaged or str(model.path),
        "fingerprint": model.fingerprint,
        "takes": "vectors" if texts is None else "texts",
        "backend": runs.name,
        "device": runs.device,
        "dtype": runs.dtype,
        "dim": model.truncate_dim or calibration.output_dim(model.calibration, runs.pooled_dim),
        "pooled_dim": runs.pooled_dim,
        "pooling": None if texts is None else texts.pooling.describe(),
        "max_length": None if texts is None else session.max_length,
        "tokenizer": None if texts is None else session.tokenizer.runs,
        "modules": None if model.modules is None else model.modules.names(),
        "prompts": dict(model.prompts.texts),
        "default_prompt": model.prompts.default,
        "similarity": model.similarity,
        "calibration": calibration.describe(model.calibration),
        "truncation": model.describe_truncation(),
        "notes": [*([model.note] if model.note else []), *runs.notes, *seen],
        "details": list(runs.details),
    }
