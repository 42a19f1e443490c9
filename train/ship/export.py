"""Write a model directory under a temporary name, measure and prove it, and rename it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.atomic import growing
from fastflow.backends.cpu import CpuBackend
from fastflow.errors import UsageError
from fastflow.model import Model
from fastflow.model.artifact import open_model
from fastflow.model.encoder import is_static
from fastflow.model.encoder.int8 import FIELD as INT8
from fastflow.model.encoder.int8 import FILE as INT8_FILE
from fastflow.model.encoder.int8 import Int8
from fastflow.model.encoder.weights import encoder_hash, weight_files
from fastflow.model.hashing import MANIFEST, file_hash
from fastflow.model.manifest import (
    CALIBRATION,
    CARD,
    ENCODER,
    FORMAT_VERSION,
    MODULES_FOLDER,
    MODULES_POOLING,
    MODULES_VERSION,
    VECTORS_VERSION,
    WEIGHTS_ARRAY,
    fingerprint,
)
from fastflow.model.sentence.weights import files_of
from fastflow.model.tokenizer.files import load_tokenizer
from fastflow.model.tokenizer.settings import FILES
from fastflow.model.verify import verify
from fastflow.stages import calibration
from fastflow.stages.truncation import SPREAD, Rows, fit_spread, fit_truncation, write_truncation
from fastflow.train.data.embeddings import pick_backend
from fastflow.train.data.encoder import FrozenEncoder
from fastflow.train.methods.chain import Fitted
from fastflow.train.ship.proof import prove, prove_vectors
from fastflow.values import system_errors
from fastflow.version import __version__

PROOF_ROWS = 32
TEXTS = 256  # texts to measure reduced precision on
REDUCED = ("bfloat16", "int8")


def check_reference(encoder: FrozenEncoder) -> None:
    """Raise a UsageError unless the encoder can stay on the Hub."""
    if encoder.head is not None:
        raise UsageError(
            "--reference-encoder leaves an encoder on the Hub, and --pooling model needs its whole directory"
        )
    if encoder.hub_id is None:
        raise UsageError(
            f"--reference-encoder is for an encoder from the Hub, and {encoder.name} is a local one: leave it out, and "
            "the encoder is copied into the model"
        )


def export(
    out: Path,
    encoder: FrozenEncoder,
    fitted: Fitted,
    training: dict[str, Any],
    card: str,
    texts: Sequence[str],
    pooled: Rows | None = None,
    reference: bool = False,
) -> str:
    """Write the model and return its fingerprint; leave no file if the proof on some ``texts`` fails.

    ``reference`` stores the encoder's Hub id and revision. ``pooled`` (n, D) orders the directions of ``truncate_dim``
    and measures int8's range and a flow's log-density.
    """
    with growing(out) as partial:
        identity: dict[str, Any] = {"sha256": encoder.hash}
        if encoder.head is not None:
            assert encoder.modules is not None  # noqa: S101
            for path in files_of(encoder.modules):
                copy = partial / MODULES_FOLDER / path.relative_to(encoder.modules.path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        elif reference:
            identity |= {"hub_id": encoder.hub_id, "revision": encoder.revision}
        else:
            _copy_encoder(encoder.directory, partial / ENCODER)
            identity["sha256"] = encoder_hash(partial / ENCODER)
        arrays = _collect_arrays(fitted, pooled)
        if encoder.pooling.weights is not None and encoder.head is None:
            arrays[WEIGHTS_ARRAY] = encoder.pooling.weights
        cosines, int8 = measure_precision(replace(encoder.model, calibration=tuple(fitted.stages)), texts)
        entries: dict[str, Any] = {
            "format_version": FORMAT_VERSION if encoder.head is None else MODULES_VERSION,
            "encoder": identity,
            "pooling": encoder.pooling.as_dict() if encoder.head is None else MODULES_POOLING,
            "max_length": encoder.max_length,
            "least_cosine": cosines,
        }
        if int8 is not None:
            _save_arrays(partial / INT8_FILE, int8.arrays())
            entries[INT8] = int8.entry()
        _write(partial, fitted, arrays, card, entries, encoder.dim, training)
        prove(partial, encoder, fitted, texts[:PROOF_ROWS])
    return open_model(out).fingerprint


def export_vectors(out: Path, fitted: Fitted, training: dict[str, Any], card: str, vectors: Rows) -> str:
    """Write a model without an encoder, fitted to ``vectors`` (n, D), as ``export`` does."""
    with growing(out) as partial:
        arrays, dim = _collect_arrays(fitted, vectors), vectors.shape[1]
        entries = {"format_version": VECTORS_VERSION, "encoder": None, "input_dim": dim}
        _write(partial, fitted, arrays, card, entries, dim, training)
        prove_vectors(partial, fitted, vectors[:PROOF_ROWS])
    return open_model(out).fingerprint


def _collect_arrays(fitted: Fitted, pooled: Rows | None) -> dict[str, NDArray[Any]]:
    arrays = {
        f"{i}.{name}": np.ascontiguousarray(a)
        for i, stage in enumerate(fitted.stages)
        for name, a in stage.params.items()
    }
    if pooled is None:
        return arrays
    if (truncation := fit_truncation(fitted.stages, pooled)) is not None:
        arrays |= write_truncation(truncation)
    if (spread := fit_spread(fitted.stages, pooled)) is not None:
        arrays[SPREAD] = spread
    return arrays


def _save_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    from safetensors.numpy import save

    path.write_bytes(save(arrays))


def _write(
    directory: Path, fitted: Fitted, arrays: dict[str, NDArray[Any]], card: str, entries: dict[str, Any], dim: int,
    training: dict[str, Any],
) -> None:  # fmt: skip
    if arrays:
        _save_arrays(directory / CALIBRATION, arrays)
    (directory / CARD).write_text(card, encoding="utf-8")
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    manifest = entries | {
        "fastflow_version": __version__,
        "calibration": [{"kind": stage.kind, **stage.settings} for stage in fitted.stages],
        "dim": calibration.output_dim(fitted.stages, dim),
        "training": training,
        "files": {str(path.relative_to(directory)): file_hash(path) for path in files},
    }
    manifest["fingerprint"] = fingerprint(manifest)
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    verify(directory)


def _copy_encoder(source: Path, target: Path) -> None:
    target.mkdir()
    index = source / "model.safetensors.index.json"
    optional = [source / "config.json", *(source / name for name in FILES), index]
    for path in [*weight_files(source), *(p for p in optional if p.is_file())]:
        shutil.copyfile(path, target / path.name)
    tokenizer = load_tokenizer(source)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with system_errors():
        tokenizer.save(str(target / "tokenizer.json"), pretty=False)


class _Measured(CpuBackend):
    gated = False


def measure_precision(model: Model, texts: Sequence[str]) -> tuple[dict[str, float], Int8 | None]:
    """Measure dtypes' least cosines to float32 on some ``texts``, and int8's ranges; without kernels none."""
    if pick_backend(model.encoder, "cpu") != "cpu" or is_static(model.encoder):
        return {}, None
    some = texts[:: max(1, len(texts) // TEXTS)][:TEXTS]
    tokens = model.tokenizer().tokenize_prompted(some, model.prompts.resolve(), model.prompts.pooled)
    found, int8 = {}, None
    for dtype in ("float32", *REDUCED):
        backend = _Measured(model, dtype, "cpu", None)
        found[dtype] = backend.calibrate(backend.pool(tokens), normalize=True).astype(np.float64)
        int8 = backend.int8
    least = {dtype: round(float((found[dtype] * found["float32"]).sum(axis=1).min()), 6) for dtype in REDUCED}
    return least, int8
