"""Checks of a model's files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from fastflow.errors import FastflowError, UnsupportedArchitecture
from fastflow.model import Model
from fastflow.model.artifact import load_model, open_model
from fastflow.model.encoder import encoder_shape, is_static, read_config
from fastflow.model.encoder.weights import load_weights
from fastflow.model.hashing import HUB_RECORD, MANIFEST, MODULES, check_hashes, is_file
from fastflow.model.manifest import read_manifest
from fastflow.model.sentence.weights import files_of
from fastflow.model.static.table import check_rows
from fastflow.transforms import calibration as calibrations


def _verify_unsaved(model: Model) -> list[str]:
    model.tokenizer()
    fingerprint = f"fingerprint {model.fingerprint}"
    rows = None
    if is_static(model.encoder):
        rows = check_rows(model.encoder)
    else:
        with suppress(UnsupportedArchitecture):  # PyTorch checks such weights when it opens them
            config = read_config(model.encoder)
            load_weights(model.encoder, config, encoder_shape(config, model.encoder), np.float32)
    if model.modules is not None:
        return [
            f"{len(files_of(model.modules))} files of Sentence Transformers: every setting is known",
            f"modules {', '.join(model.modules.names())}: weights are whole and finite",
            fingerprint,
        ]
    if rows is not None:
        return [f"token table of {rows:,} rows: whole and finite, and every setting is known", fingerprint]
    return ["a plain encoder: weights are whole and finite", fingerprint]


def verify(path: Path) -> list[str]:
    """Check every file by hash or, without a manifest, by settings and weights; returns a line for each check."""
    if not is_file(path / MANIFEST) and any(is_file(path / name) for name in (MODULES, "config.json")):
        return _verify_unsaved(load_model(path))
    manifest = read_manifest(path)
    check_hashes(path, manifest, list(manifest["files"]))
    known = {MANIFEST, HUB_RECORD, *manifest["files"]}
    if extra := sorted(
        str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and str(p.relative_to(path)) not in known
    ):
        raise FastflowError(f"{path} holds files that {MANIFEST} does not list: {', '.join(extra)}")
    saved = open_model(path)
    if isinstance(saved, Model) and is_static(saved.encoder):
        check_rows(saved.encoder)
    return [
        f"{len(manifest['files'])} files match their sha256",
        f"calibration {calibrations.describe(saved.calibration)}: shapes, dtypes and values are sound",
        f"fingerprint {saved.fingerprint}",
    ]
