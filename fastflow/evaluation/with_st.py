"""Comparison with Sentence Transformers."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, missing_extra
from fastflow.evaluation.agreement import Agreement, allow_difference, compare_vectors, probe_texts, quiet
from fastflow.exports.record import read_record
from fastflow.model.encoder.architecture import is_static
from fastflow.model.sentence.directory import read_modules
from fastflow.runtime import Runtime
from fastflow.values import reason


def check_installed() -> None:
    """Raise a FastflowError that names the missing Sentence Transformers."""
    if find_spec("sentence_transformers") is None:
        raise missing_extra("st", "sentence_transformers", "vectors were not compared: --with st")


def compare(path: Path, exported: Path | None = None) -> Agreement:
    """Compare every prompt of the model at ``path`` with ``exported``; None: Sentence Transformers opens ``path``."""
    asked = _check_saved(path) if exported is None else read_record(exported, "st").options()
    check_installed()
    from sentence_transformers import SentenceTransformer

    where = exported or path
    options: dict[str, Any] = {"device": "cpu", "local_files_only": True, "model_kwargs": {"dtype": "float32"}}
    try:
        with quiet():  # transformers warns of a missing pooler, which is not used
            theirs = SentenceTransformer(str(where), **options)
    except Exception as error:  # the library raises many kinds
        raise FastflowError(f"{where}: Sentence Transformers cannot open it: {reason(error)}") from error
    texts = probe_texts()
    with Runtime(path, device="cpu", dtype="float32") as ours, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if exported is not None:
            read_record(exported, "st").check(exported, ours.fingerprint)
        names = (None, *(name for name, prompt in ours.prompts.items() if prompt))
        found = [ours.encode(texts, prompt_name=name, **asked) for name in names]

    def encode_theirs() -> list[NDArray[Any]]:
        return [np.asarray(theirs.encode(texts, show_progress_bar=False, prompt_name=name)) for name in names]

    def encode_exactly() -> list[NDArray[Any]]:
        theirs.double()
        return encode_theirs()

    single = encode_theirs()
    differences, cosines = zip(*map(compare_vectors, found, single), strict=True)
    allowed = allow_difference(max(differences), single, encode_exactly)
    return Agreement(len(texts) * len(names), max(differences), min(cosines), allowed)


def _check_saved(path: Path) -> dict[str, Any]:
    """Raise if Sentence Transformers did not save the model; return no options of ``encode``."""
    if read_modules(path) is None:
        why = "it is a table of model2vec" if is_static(path) else "it has no modules.json"
        raise FastflowError(f"{path} was not saved by Sentence Transformers: {why}")
    return {}
