"""The trained calibration -> a model directory, written under a temporary name, proved, and only then renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow import __version__
from fastflow.backends.reference import ReferenceBackend
from fastflow.backends.torch import TorchBackend
from fastflow.errors import FastflowError, UnsupportedArchitecture, UsageError
from fastflow.model.artifact import load_model, verify
from fastflow.model.hashing import MANIFEST, encoder_hash, file_hash
from fastflow.model.kinds import Model
from fastflow.model.manifest import CALIBRATION, CARD, ENCODER, FORMAT_VERSION, WEIGHTS_ARRAY, fingerprint
from fastflow.model.tokens import Tokenizer, load_tokenizer
from fastflow.model.weights import weight_files
from fastflow.stages import calibration
from fastflow.stages.spread import SPREAD, fit_spread
from fastflow.stages.truncation import fit_truncation, write_truncation
from fastflow.train.data.embeddings import Embedder, FrozenEncoder
from fastflow.train.methods.chain import Fitted
from fastflow.train.ship.precision import least_cosines

AGREEMENT = 1e-5  # of a unit-normalised embedding: NumPy and PyTorch in float32
EXACT = 1e-9  # relative, the flow alone in float64
PROOF_TEXTS = 32


def check_out(out: Path) -> None:
    """Raise before hours are spent if ``out`` is there already or cannot be made."""
    if out.exists():
        raise UsageError(f"{out} exists already; remove it or choose another --out")
    parent = next(p for p in out.absolute().parents if p.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise FastflowError(f"{out} cannot be written: {parent} is not a writable directory; choose another --out")


def check_reference(encoder: FrozenEncoder) -> None:
    """Raise if ``encoder`` cannot be referenced."""
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
    pooled: NDArray[Any] | None = None,
    reference: bool = False,
) -> str:
    """Write the model to ``out`` and return its fingerprint; raises and leaves nothing if it does not prove itself.

    The model holds a copy of the encoder. With ``reference`` it holds the Hub id and the revision instead, of an
    encoder from the Hub.

    ``pooled`` (n, D), the embeddings that the calibration was fitted on, give ``truncate_dim`` its order of directions
    and int8 outputs their range where the calibration does not; without them ``truncate_dim`` keeps the first
    dimensions, and such a calibration has no int8 outputs. The proof re-runs the saved files through the NumPy
    reference on some ``texts`` and compares with PyTorch.
    """
    partial = out.with_name(out.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write(partial, encoder, fitted, training, card, texts, pooled, reference)
        verify(partial)
        prove(partial, encoder, fitted, texts[:PROOF_TEXTS])
        partial.rename(out)
    except OSError as error:
        raise FastflowError(
            f"{out} cannot be written: {error.strerror}; free some space or choose another --out"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return load_model(out).fingerprint


def _write(
    directory: Path,
    encoder: FrozenEncoder,
    fitted: Fitted,
    training: dict[str, Any],
    card: str,
    texts: Sequence[str],
    pooled: NDArray[Any] | None,
    reference: bool,
) -> None:
    from safetensors.numpy import save

    identity: dict[str, Any] = {"sha256": encoder.hash}
    if reference:
        identity |= {"hub_id": encoder.hub_id, "revision": encoder.revision}
    else:
        _copy_encoder(encoder.directory, directory / ENCODER)
        identity["sha256"] = encoder_hash(directory / ENCODER)
    arrays = {
        f"{i}.{name}": np.ascontiguousarray(a)
        for i, stage in enumerate(fitted.stages)
        for name, a in stage.params.items()
    }
    truncation = None if pooled is None else fit_truncation(fitted.stages, pooled)
    if truncation is not None:
        arrays |= write_truncation(truncation)
    spread = None if pooled is None else fit_spread(fitted.stages, pooled)
    if spread is not None:
        arrays[SPREAD] = spread
    if encoder.pooling.weights is not None:
        arrays[WEIGHTS_ARRAY] = encoder.pooling.weights
    if arrays:
        (directory / CALIBRATION).write_bytes(save(arrays))
    (directory / CARD).write_text(card, encoding="utf-8")
    model = Model(directory, encoder.directory, encoder.pooling, encoder.max_length, tuple(fitted.stages), "")
    manifest: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "fastflow_version": __version__,
        "encoder": identity,
        "pooling": encoder.pooling.as_dict(),
        "max_length": encoder.max_length,
        "calibration": [{"kind": stage.kind, **stage.settings} for stage in fitted.stages],
        "dim": calibration.output_dim(fitted.stages, encoder.dim),
        "least_cosine": least_cosines(model, texts),
        "training": training,
        "files": {str(p.relative_to(directory)): file_hash(p) for p in sorted(directory.rglob("*")) if p.is_file()},
    }
    manifest["fingerprint"] = fingerprint(manifest)
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _copy_encoder(source: Path, target: Path) -> None:
    """Config, weights and tokenizer; a vocab.txt becomes the tokenizer.json it stands for."""
    target.mkdir()
    index = source / "model.safetensors.index.json"
    optional = [source / "tokenizer_config.json", index]
    for path in [source / "config.json", *weight_files(source), *(p for p in optional if p.is_file())]:
        shutil.copyfile(path, target / path.name)
    tokenizer = load_tokenizer(source)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(target / "tokenizer.json"), pretty=False)


def prove(directory: Path, encoder: FrozenEncoder, fitted: Fitted, texts: Sequence[str]) -> None:
    """Compare the saved model in NumPy with what it was made of in PyTorch: tokenizer, encoder, and every stage."""
    model = load_model(directory)
    tokens = Tokenizer(model.encoder, model.max_length)(texts)
    try:
        saved: Any = ReferenceBackend(model, "float32", "cpu", None)
    except UnsupportedArchitecture:  # only PyTorch runs this encoder: what is proved is files, tokenizer, calibration
        saved = TorchBackend(model, "float32", "cpu", None)
    ours, theirs = saved.pool(tokens), Embedder(encoder, "cpu", backend="torch")(texts)
    _agree("the pooled embedding", _unit(ours), _unit(theirs), AGREEMENT)
    exact = _unit(_prove_stages(model.calibration, fitted, theirs.astype(np.float64)))
    # a calibration that amplifies small deviations is as inexact in PyTorch's float32
    unavoidable = float(np.abs(_unit(_torch_chain(fitted, theirs)) - exact).max(initial=0.0))
    _agree("the embedding", _unit(saved.calibrate(theirs)), exact, AGREEMENT + 2 * unavoidable)


def _prove_stages(saved: Sequence[calibration.Stage], fitted: Fitted, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Run pooled (B, D) through every stage as fitted, in float64, each saved one beside it; returns the result."""
    for index, (stage, source) in enumerate(zip(saved, fitted.stages, strict=True)):
        wide = stage.astype(np.float64)
        if index in fitted.flows:
            with torch.no_grad():
                z, log_det = (t.numpy() for t in fitted.flows[index].double()(torch.from_numpy(x)))
            fitted.flows[index].float()
            ours, our_log_det = calibration.apply_with_log_det(wide, x)
            _agree(f"the log-determinant of stage {index}", our_log_det, log_det, EXACT * _size(log_det))
        else:
            z, ours = (np.asarray(calibration.apply([s], x)) for s in (source.astype(np.float64), wide))
        _agree(f"the output of stage {index}", ours, z, EXACT * _size(z))
        x = z
    return x


@torch.no_grad()
def _torch_chain(fitted: Fitted, pooled: NDArray[Any]) -> NDArray[Any]:
    """The chain in PyTorch float32, flows by their own modules."""
    x = torch.from_numpy(np.ascontiguousarray(pooled, np.float32))
    for index, stage in enumerate(fitted.stages):
        if index in fitted.flows:
            x = fitted.flows[index](x)[0]
        else:
            tensors = {name: torch.from_numpy(np.array(a, np.float32)) for name, a in stage.params.items()}
            x = calibration.apply([calibration.Stage(stage.kind, stage.settings, tensors)], x)
    return np.asarray(x.numpy())


def _size(x: NDArray[Any]) -> float:
    return max(1.0, float(np.abs(x).max(initial=0.0)))


def _unit(x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))


def _agree(what: str, ours: NDArray[Any], theirs: NDArray[Any], tolerance: float) -> None:
    difference = float(np.abs(ours - theirs).max(initial=0.0))
    if not difference <= tolerance:  # NaN must fail too
        raise FastflowError(
            f"export stopped: {what} of the saved model differs from PyTorch's by {difference:.2g}, "
            f"more than {tolerance:.2g}; nothing was written, please report it"
        )
