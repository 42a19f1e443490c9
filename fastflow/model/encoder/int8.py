"""The trial (quality check) of int8 in a saved model, which opens in int8 without a float32 run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.model.hashing import MANIFEST
from fastflow.model.tensors import read_tensors
from fastflow.model.tokenizer import Tokens
from fastflow.values import is_whole, short

FIELD = "int8"
FILE = "int8.safetensors"
LARGEST, TERMS = "largest.", "terms."
EXACT = "exact."
IDS = re.compile(r"exact\.\d{1,9}(,\d{1,9})*")


class Int8(NamedTuple):
    """Results of a trial: the least cosine of int8 to float32 embeddings, and its text.

    ``version``: version of kernels and trial texts. ``largest``: by product, the largest magnitude of each operand
    column; ``terms``: over more texts, times the column's largest weight. ``exact``: token ids -> float32 vector (P,).
    """

    version: int
    least_cosine: float
    text: str
    largest: dict[str, NDArray[np.float32]]
    terms: dict[str, NDArray[np.float32]]
    exact: dict[tuple[int, ...], NDArray[np.float32]]

    def entry(self) -> dict[str, Any]:
        return {"version": self.version, "least_cosine": self.least_cosine, "text": self.text}

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        largest = {LARGEST + name: array for name, array in self.largest.items()}
        terms = {TERMS + name: array for name, array in self.terms.items()}
        return largest | terms | {EXACT + ",".join(map(str, ids)): array for ids, array in self.exact.items()}

    def restore(self, tokens: Tokens, pooled: NDArray[Any]) -> None:
        """Replace rows of ``pooled`` (B, P) by ``exact`` for texts that int8 would spoil."""
        if not self.exact or tokens.skip:
            return
        lengths = np.diff(tokens.offsets)
        for ids, vector in self.exact.items():
            rows = np.flatnonzero(lengths == len(ids))
            same = (tokens.ids[tokens.offsets[rows, None] + np.arange(len(ids))] == ids).all(axis=1)
            pooled[rows[same]] = vector


def read_int8(directory: Path, manifest: dict[str, Any]) -> Int8:
    """Read the recorded trial of a model; the caller compares its version."""
    where = f"{directory / MANIFEST}, field {FIELD}"
    if FILE not in manifest["files"]:
        _check_entry(manifest[FIELD], where)
        raise FastflowError(f"{where}: {FILE} is not listed with the model's files; train or copy the model again")
    return build_record(manifest[FIELD], read_tensors(directory / FILE), where, directory / FILE)


def build_record(entry: Any, arrays: dict[str, NDArray[Any]], where: str, file: Path) -> Int8:
    """Check a trial's ``entry`` and ``arrays``, and build an Int8."""
    _check_entry(entry, where)
    found: dict[str, dict[str, NDArray[np.float32]]] = {LARGEST: {}, TERMS: {}}
    exact = {}
    for name, array in arrays.items():
        prefix = name.partition(".")[0] + "."
        row = array.ndim == 1 and array.dtype == np.float32 and np.isfinite(array).all()
        if prefix == EXACT:
            if not row or not IDS.fullmatch(name):
                said = "must be one row of finite float32, named by the ids of a text"
                raise FastflowError(f"{file}, array {name}: {said}")
            exact[tuple(map(int, name.removeprefix(EXACT).split(",")))] = array
        elif prefix in found:
            if not row or not (array >= 0).all():
                raise FastflowError(f"{file}, array {name}: must be one row of finite float32 from 0 up")
            found[prefix][name.removeprefix(prefix)] = array
    return Int8(entry["version"], float(entry["least_cosine"]), entry["text"], found[LARGEST], found[TERMS], exact)


def _check_entry(entry: Any, where: str) -> None:
    names = [name for name in Int8._fields if name not in ("largest", "terms", "exact")]
    if not isinstance(entry, dict) or set(entry) != set(names):
        raise FastflowError(f"{where}: must hold {', '.join(names)}, not {short(entry)}")
    cosine = entry["least_cosine"]
    if not is_whole(entry["version"], 1):
        raise FastflowError(f"{where}, version: must be a whole number of at least 1, not {short(entry['version'])}")
    if type(cosine) not in (int, float) or not -1 <= cosine <= 1:
        raise FastflowError(f"{where}, least_cosine: must be a number from -1 to 1, not {short(cosine)}")
    if not isinstance(entry["text"], str):
        raise FastflowError(f"{where}, text: must be a text, not {short(entry['text'])}")
