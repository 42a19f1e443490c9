"""Checks of directories without hashes: plain encoders, Sentence Transformers, model2vec."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from fastflow.errors import UnsupportedArchitecture
from fastflow.model.encoder.architecture import encoder_shape, is_static, read_config
from fastflow.model.encoder.weights import load_weights
from fastflow.model.kinds import Model
from fastflow.model.sentence.weights import files_of
from fastflow.model.static.table import check_rows


def verify_modules(model: Model) -> list[str]:
    """Check the encoder's weights and the tokenizer; returns a line for each check.

    Opening has checked settings and the modules' weights. Raises a FastflowError that names the file.
    """
    assert model.modules is not None  # noqa: S101 - for the type checker: the caller looked for modules.json
    _check_encoder(model)
    return [
        f"{len(files_of(model.modules))} files of Sentence Transformers: every setting is known",
        f"modules {', '.join(model.modules.names())}: weights are whole and finite",
        f"fingerprint {model.fingerprint}",
    ]


def verify_encoder(model: Model) -> list[str]:
    """Check the weights and tokenizer of a plain encoder, as ``verify_modules`` does."""
    _check_encoder(model)
    return ["a plain encoder: weights are whole and finite", f"fingerprint {model.fingerprint}"]


def _check_encoder(model: Model) -> None:
    model.tokenizer()
    if is_static(model.encoder):
        check_rows(model.encoder)
        return
    with suppress(UnsupportedArchitecture):  # PyTorch checks such weights when it opens them
        config = read_config(model.encoder)
        load_weights(model.encoder, config, encoder_shape(config, model.encoder), np.float32)


def verify_table(model: Model) -> list[str]:
    """Check a model2vec table and its tokenizer, as ``verify_modules`` does."""
    model.tokenizer()
    rows = check_rows(model.encoder)
    return [
        f"token table of {rows:,} rows: whole and finite, and every setting is known",
        f"fingerprint {model.fingerprint}",
    ]
