"""The trial (quality check) of int8: the largest operands, which int8 needs, and its error against float32.

A trial that the model does not record is in the user's cache:

    KEY.int8     TRIAL; sha256 of the rest; safetensors with the trial's arrays and its JSON entry

KEY is the sha256 of path, arithmetic, versions and what the model gives: embeddings, or scores of pairs. The entry has
the fingerprint of the files. Weights are packed with the cached trial while the files are hashed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.atomic import replace_bytes
from fastflow.backends import Backend, Calibrator, Floats
from fastflow.backends.reference import ReferenceBackend
from fastflow.cache_folder import OWN, TRIAL, cache_directory
from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.stored import widen
from fastflow.model import Model
from fastflow.model.encoder.int8 import Int8, build_record
from fastflow.model.encoder.weights import MappedWeights
from fastflow.model.tokenizer import Tokens
from fastflow.transforms.vectors import compute_paired_cosine
from fastflow.values import open_regular, short
from fastflow.version import __version__

VERSION = 2  # raised if the texts or results of int8's kernels change
LEAST_INT8 = 0.99  # least cosine to float32 allowed over TEXTS and special tokens
SENTENCES = (
    "A man is playing a guitar on the street.",
    "WHY ARE YOU SHOUTING?!",
    "Shares fell sharply.",
)
# short or odd texts have the largest hidden states; one is long
HARD = (
    "",
    "x",
    "?",
    "thank you",
    "y" * 60,
    "." * 40,
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    " ".join(SENTENCES[i % 3] for i in range(16)),
)
TEXTS = (*SENTENCES, *HARD)
NORMALISED = (".qkv", ".up")
UNEVEN = (*NORMALISED, ".down")
ENTRY = "entry"
NAMES = ("model", "fingerprint")
DIGEST = hashlib.sha256().digest_size
LARGEST = 1 << 26


class Trial(NamedTuple):
    """The float32 side of a trial: tokens, pooled vectors ``exact`` (n, P), and magnitudes by matrix product.

    Texts from ``alone`` on are special tokens. ``largest``: largest operand by column; ``terms``: times the column's
    largest weight.
    """

    texts: tuple[str, ...]
    alone: int
    tokens: Tokens
    exact: Floats
    largest: dict[str, Floats]
    terms: dict[str, Floats]


def magnitudes(matrix: Floats) -> Floats:
    """Return the largest magnitude of each column of (n, k), without a copy."""
    return np.asarray(np.maximum(matrix.max(axis=0), -matrix.min(axis=0)))


def trial(model: Model) -> Trial:
    """Encode TEXTS and special tokens in float32; ``largest`` is of SENTENCES, ``terms`` of all but single tokens."""
    tokenize = model.tokenizer()
    together = (*TEXTS, " ".join(tokenize.special))
    texts = (*together, *tokenize.special)
    tokens = tokenize(texts)
    rows, odd = tokens.offsets[[len(SENTENCES), len(together)]]
    largest: dict[str, Floats] = {}
    terms: dict[str, Floats] = {}
    backend = StreamedBackend(model, "float32", "cpu", None)

    def watch(name: str, operand: Floats) -> None:
        if name.endswith(NORMALISED):
            largest[name] = magnitudes(operand[:rows])
        if name.endswith(UNEVEN):
            terms[name] = magnitudes(operand[:odd]) * magnitudes(backend.weight(name))

    backend.watch = watch
    return Trial(texts, len(together), tokens, backend.pool(tokens), largest, terms)


def get_recorded(model: Model) -> Int8 | None:
    """Return the model's recorded trial if it is current."""
    return model.int8 if model.int8 is not None and model.int8.version == VERSION else None


def conclude(tried: Trial, opened: Calibrator, pooled: Floats) -> Int8:
    """Compare float32 vectors of ``tried`` with int8 vectors ``pooled`` (n, P).

    A special token that int8 would spoil keeps its float32 vector.
    """
    cosines = compute_paired_cosine(*(opened.calibrate(np.asarray(x, np.float32)) for x in (pooled, tried.exact)))
    exact = {}
    for i in range(tried.alone, len(cosines)):
        if not cosines[i] >= LEAST_INT8 and np.isfinite(tried.exact[i]).all():
            ids = tried.tokens.ids[tried.tokens.offsets[i] : tried.tokens.offsets[i + 1]]
            exact[tuple(map(int, ids))], cosines[i] = np.asarray(tried.exact[i], np.float32), 1.0
    worst = int(np.argmin(cosines))
    return Int8(VERSION, round(float(cosines[worst]), 6), tried.texts[worst], tried.largest, tried.terms, exact)


def int8_cost(model: Model, found: Int8, when: str) -> str:
    """Describe the cost of int8; raises a UsageError below LEAST_INT8."""
    cosine, text = f"{found.least_cosine:.4f}", short(found.text)
    if not found.least_cosine >= LEAST_INT8:
        raise UsageError(
            f"{model.path}: dtype int8 changes {model.gives} too much, to a cosine of {cosine} to float32 for the "
            f"text {text}, and {LEAST_INT8} is the least allowed; use bfloat16"
        )
    said = f"int8: least cosine to float32 {cosine} over {len(TEXTS) + 1} texts and each special token alone, {when}"
    kept = "" if not found.exact else (
        f"; {len(found.exact)} of these tokens would lose more: alone they have float32's vectors, in a text with "
        "words they may still lose it"
    )  # fmt: skip
    return f"{said}; the worst is {text}{kept}"


class StreamedBackend(ReferenceBackend):
    """The reference backend with its weights in the mapped file."""

    def load(self, model: Model, config: dict[str, Any]) -> Mapping[str, Any]:
        return _Stream(MappedWeights(model.encoder, config, self._shape, model.pairs))

    def weight(self, product: str) -> Floats:
        found: Floats = self._weights[f"{product}.weight"]
        return found


class _Rows:
    def __init__(self, stored: NDArray[Any], scales: NDArray[Any] | None) -> None:
        self._stored, self._scales = stored, scales

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, ids: NDArray[Any]) -> NDArray[Any]:
        rows = widen(self._stored[ids])
        return rows if self._scales is None else rows * self._scales[ids, None]


class _Stream(Mapping[str, Any]):
    def __init__(self, mapped: MappedWeights) -> None:
        self._mapped = mapped

    def __getitem__(self, name: str) -> Any:
        stored = self._mapped.stored[name]
        self._mapped.release()
        if isinstance(stored, tuple):
            return np.concatenate([widen(part) for part in stored], dtype=np.float32, casting="same_kind")
        if name == "word":
            scales = self._mapped.stored.get("word.scales")
            return _Rows(stored, None if scales is None else np.asarray(scales))
        return widen(stored).astype(np.float32, copy=False)

    def __contains__(self, name: object) -> bool:
        return name in self._mapped.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapped.stored)

    def __len__(self) -> int:
        return len(self._mapped.stored)


class CachedTrial:
    """The trial of ``model``: recorded, cached or new. Raises a FastflowError if the recorded trial does not fit."""

    found: Int8 | Trial

    def __init__(self, model: Model, weights: MappedWeights, arithmetic: str) -> None:
        self._model, self._when, self._of = model, "recorded with the model", ""
        self._path: Path | None = None
        if (of_model := get_recorded(model)) is not None:
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
        """Wait for the files' hashes; return whether the trial is of these files, else run a new one."""
        if not self._of or self._model.awaited is None or self._model.awaited() == self._of:
            return True
        self._try()
        return False

    def _try(self) -> None:
        from fastflow.kernels._cpu import trim

        self.found, self._when, self._of = trial(self._model), "measured at opening", ""
        trim()

    def conclude(self, opened: Backend) -> Int8:
        """Return the trial's results; cache a new trial."""
        if not isinstance(self.found, Trial):
            return self.found
        found = conclude(self.found, opened, opened.pool(self.found.tokens))
        if self._path is not None and self._model.awaited is not None:
            _keep(self._path, self._model.path, self._model.awaited(), found)
        return found

    def cost(self, found: Int8) -> str:
        return int8_cost(self._model, found, self._when)


def _misfit(found: Int8, weights: MappedWeights, model: Model) -> str:
    for name, values in [*found.largest.items(), *found.terms.items()]:
        if (columns := weights.columns(f"{name}.weight")) != len(values):
            return f"{len(values)} columns for the product {name}, and the encoder has {columns}"
    for ids, vector in found.exact.items():
        if len(vector) != model.pooled_dim:
            return f"{len(vector)} numbers for the text of ids {ids}, and the model pools {model.pooled_dim}"
    return ""


def _path(model: Model, arithmetic: str) -> Path | None:
    key = json.dumps([os.path.realpath(model.path), model.gives, arithmetic, VERSION, __version__, np.__version__])
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
    """Read a cached trial and its entry, or None."""
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
