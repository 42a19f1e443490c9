"""Write a model directory under a temporary name, measure and prove it, and rename it.

The proof: its files in NumPy give PyTorch's vectors.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.atomic import growing
from fastflow.backends import Calibrator
from fastflow.backends.choose import open_backend
from fastflow.backends.cpu import CpuBackend
from fastflow.backends.reference import ReferenceVectors
from fastflow.errors import FastflowError, UnsupportedArchitecture
from fastflow.model import Model, VectorModel
from fastflow.model.artifact import load_model, open_model
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
from fastflow.model.static.table import open_table, read_rules
from fastflow.model.static.write import write_static
from fastflow.model.tokenizer.files import load_tokenizer
from fastflow.model.tokenizer.settings import FILES
from fastflow.model.verify import verify
from fastflow.train.data.embeddings import Embedder, pick_backend
from fastflow.train.data.encoder import FrozenEncoder, open_encoder
from fastflow.train.methods.chain import Fitted
from fastflow.train.reporter import refuse
from fastflow.transforms import calibration
from fastflow.transforms.truncation import SPREAD, Rows, fit_spread, fit_truncation, write_truncation
from fastflow.transforms.vectors import shorten
from fastflow.values import system_errors
from fastflow.version import __version__

PROOF_ROWS = 32
TEXTS = 256  # texts to measure reduced precision on
REDUCED = ("bfloat16", "int8")


def check_reference(encoder: FrozenEncoder) -> None:
    """Raise a UsageError unless the encoder can stay on the Hub."""
    if encoder.head is not None:
        raise refuse("{reference_encoder} leaves an encoder on the Hub, and {pooling:model} needs its whole directory")
    if encoder.hub_id is None:
        raise refuse(
            "{reference_encoder} is for an encoder from the Hub, and {name} is a local one: leave it out, and the "
            "encoder is copied into the model",
            name=encoder.name,
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


def fold_into_table(encoder: FrozenEncoder, stages: Sequence[calibration.Stage], folder: Path) -> FrozenEncoder | None:
    """Write a table of model2vec after linear ``stages``, which commute with its mean, to ``folder``, else None."""
    table = is_static(encoder.directory) and read_rules(encoder.directory).model2vec
    if not table or encoder.head is not None or not calibration.is_linear(stages):
        return None
    rows, tokenizer = open_table(encoder.directory), load_tokenizer(encoder.directory)
    vectors = calibration.apply_wide(stages, rows.vectors(np.arange(rows.vocabulary), np.float32))
    write_static(folder, tokenizer, vectors, dtype=str(rows.rows.dtype), max_length=encoder.max_length)
    return replace(open_encoder(str(folder), "words", encoder.max_length), pooling=encoder.pooling)


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
