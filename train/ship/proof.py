"""Prove a written model: its files in NumPy give PyTorch's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.backends import Calibrator
from fastflow.backends.choose import open_backend
from fastflow.backends.reference import ReferenceVectors
from fastflow.errors import FastflowError, UnsupportedArchitecture
from fastflow.model import VectorModel
from fastflow.model.artifact import load_model, open_model
from fastflow.stages import calibration
from fastflow.stages.vectors import shorten
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import FrozenEncoder
from fastflow.train.methods.chain import Fitted

AGREEMENT = 1e-5  # largest difference in an embedding of length 1, in float32
EXACT = 1e-9  # largest relative difference of a stage, in float64


def prove(directory: Path, encoder: FrozenEncoder, fitted: Fitted, texts: Sequence[str]) -> None:
    """Raise unless pooled vectors and stages of the saved model agree with PyTorch's on ``texts``."""
    model = load_model(directory)
    tokens = model.tokenizer().tokenize_prompted(texts, model.prompts.resolve(), model.prompts.pooled)
    try:
        saved = open_backend(model, "reference", "cpu", "float32", None)
    except UnsupportedArchitecture:  # PyTorch proves files, tokenizer and calibration
        saved = open_backend(model, "torch", "cpu", "float32", None)
    ours, theirs = saved.pool(tokens), Embedder(encoder, "cpu", backend="torch")(texts)
    _check_agree("the pooled embedding", shorten(ours, True, None), shorten(theirs, True, None), AGREEMENT)
    _prove_calibration(model.calibration, fitted, theirs, saved)


def prove_vectors(directory: Path, fitted: Fitted, vectors: NDArray[np.float32]) -> None:
    """Raise unless the saved model agrees with ``fitted`` on ``vectors`` (n, D)."""
    model = open_model(directory)
    assert isinstance(model, VectorModel)  # noqa: S101
    _prove_calibration(model.calibration, fitted, vectors, ReferenceVectors(model, "float32", "cpu", None))


def _prove_calibration(
    stages: Sequence[calibration.Stage], fitted: Fitted, pooled: NDArray[Any], saved: Calibrator
) -> None:
    exact = shorten(_prove_stages(stages, fitted, pooled.astype(np.float64)), True, None)
    unavoidable = float(np.abs(shorten(_run_torch(fitted, pooled), True, None) - exact).max(initial=0.0))
    _check_agree("the embedding", shorten(saved.calibrate(pooled), True, None), exact, AGREEMENT + 2 * unavoidable)


def _prove_stages(saved: Sequence[calibration.Stage], fitted: Fitted, x: NDArray[np.float64]) -> NDArray[np.float64]:
    for index, (stage, source) in enumerate(zip(saved, fitted.stages, strict=True)):
        wide = stage.astype(np.float64)
        if index in fitted.flows:
            with torch.no_grad():
                z, log_det = (t.numpy() for t in fitted.flows[index].double()(torch.from_numpy(x)))
            fitted.flows[index].float()
            ours, our_log_det = calibration.apply_with_log_det(wide, x)
            _check_agree(f"the log-determinant of stage {index}", our_log_det, log_det, EXACT * _find_largest(log_det))
        else:
            z, ours = (np.asarray(calibration.apply([s], x)) for s in (source.astype(np.float64), wide))
        _check_agree(f"the output of stage {index}", ours, z, EXACT * _find_largest(z))
        x = z
    return x


@torch.no_grad()
def _run_torch(fitted: Fitted, pooled: NDArray[Any]) -> NDArray[Any]:
    x = torch.from_numpy(np.ascontiguousarray(pooled, np.float32))
    for index, stage in enumerate(fitted.stages):
        if index in fitted.flows:
            x = fitted.flows[index](x)[0]
        else:
            tensors = {name: torch.from_numpy(np.array(a, np.float32)) for name, a in stage.params.items()}
            x = calibration.apply([calibration.Stage(stage.kind, stage.settings, tensors)], x)
    return np.asarray(x.numpy())


def _find_largest(x: NDArray[Any]) -> float:
    return max(1.0, float(np.abs(x).max(initial=0.0)))


def _check_agree(what: str, ours: NDArray[Any], theirs: NDArray[Any], tolerance: float) -> None:
    difference = float(np.abs(ours - theirs).max(initial=0.0))
    if not difference <= tolerance:  # NaN must fail
        raise FastflowError(
            f"export stopped: {what} of the saved model differs from PyTorch's by {difference:.2g}, "
            f"more than {tolerance:.2g}; nothing was written, please report it"
        )
