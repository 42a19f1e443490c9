"""Find the int8 trial of a model: the recorded one, a cached one, or a new one.

A new trial is cached for the user, and checked when read:

    KEY.int8     TRIAL; sha256 of the rest; safetensors with the trial's arrays and its JSON entry

KEY is the sha256 of path, arithmetic and versions; the entry has the fingerprint of the files. Weights are packed with
the cached trial while they are hashed, and again if the hash differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from fastflow.atomic import replace_bytes
from fastflow.backends import precision
from fastflow.backends.base import Backend
from fastflow.cache_folder import OWN, TRIAL, cache_directory
from fastflow.errors import FastflowError
from fastflow.model.encoder.int8 import Int8, build_record
from fastflow.model.encoder.weights import MappedWeights
from fastflow.model.kinds import Model
from fastflow.values import open_regular
from fastflow.version import __version__

ENTRY = "entry"
NAMES = ("model", "fingerprint")
DIGEST = hashlib.sha256().digest_size
LARGEST = 1 << 26


class Tried:
    """The trial ``found`` of ``model`` and its ``weights``; ``arithmetic``: how int8 runs here.

    Raises a FastflowError for a recorded trial of other weights.
    """

    found: Int8 | precision.Trial

    def __init__(self, model: Model, weights: MappedWeights, arithmetic: str) -> None:
        self._model, self._when, self._of = model, "recorded with the model", ""
        self._path: Path | None = None
        if (of_model := precision.get_recorded(model)) is not None:
            self.found = of_model
            if misfit := _misfit(of_model, weights, model):
                raise FastflowError(f"{model.path}: the recorded trial of int8 has {misfit}; train the model again")
            return
        self._path = None if model.awaited is None else _path(model, arithmetic)
        kept = None if self._path is None else read_trial(self._path)
        if kept is None or _misfit(kept[1], weights, model):
            self._try()
        else:
            self._of, self.found, self._when = kept[0]["fingerprint"], kept[1], "measured at an earlier opening"

    def holds(self) -> bool:
        """Return whether weights packed with ``found`` may stay; otherwise ``found`` becomes a new trial.

        Waits for the file hashes if the trial was cached.
        """
        if not self._of or self._model.awaited is None or self._model.awaited() == self._of:
            return True
        self._try()
        return False

    def _try(self) -> None:
        from fastflow.kernels._cpu import trim

        self.found, self._when, self._of = precision.trial(self._model), "measured at opening", ""
        trim()

    def conclude(self, opened: Backend) -> Int8:
        """Return the trial with its cosines; a new one is computed with ``opened`` and cached."""
        if not isinstance(self.found, precision.Trial):
            return self.found
        found = precision.conclude(self.found, opened, opened.pool(self.found.tokens))
        if self._path is not None and self._model.awaited is not None:
            _keep(self._path, self._model.path, self._model.awaited(), found)
        return found

    def cost(self, found: Int8) -> str:
        return precision.int8_cost(self._model, found, self._when)


def _misfit(found: Int8, weights: MappedWeights, model: Model) -> str:
    for name, values in [*found.largest.items(), *found.terms.items()]:
        if (columns := weights.columns(f"{name}.weight")) != len(values):
            return f"{len(values)} columns for the product {name}, and the encoder has {columns}"
    for ids, vector in found.exact.items():
        if len(vector) != model.pooled_dim:
            return f"{len(vector)} numbers for the text of ids {ids}, and the model pools {model.pooled_dim}"
    return ""


def _path(model: Model, arithmetic: str) -> Path | None:
    key = json.dumps([os.path.realpath(model.path), arithmetic, precision.VERSION, __version__, np.__version__])
    try:
        return cache_directory() / f"{hashlib.sha256(key.encode()).hexdigest()}.int8"
    except RuntimeError:
        return None


def _keep(path: Path, model: Path, fingerprint: str, found: Int8) -> None:
    from safetensors.numpy import save

    entry = {"model": str(model), "fingerprint": fingerprint, "int8": found.entry()}
    data = save({**found.arrays(), ENTRY: np.frombuffer(json.dumps(entry).encode(), np.uint8)})
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, TRIAL + hashlib.sha256(data).digest() + data, OWN)


def read_trial(path: Path) -> tuple[dict[str, Any], Int8] | None:
    """Read a cached trial and its entry; None if absent, damaged or of another format."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        with open_regular(path) as handle:
            data = handle.read(LARGEST).removeprefix(TRIAL)
        if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
            return None
        arrays = load(data[DIGEST:])
        entry = json.loads(arrays.pop(ENTRY).tobytes())
        if not all(isinstance(entry[name], str) for name in NAMES):
            return None
        return entry, build_record(entry["int8"], arrays, str(path), path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError, FastflowError):
        return None
