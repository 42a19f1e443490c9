"""The self-test of a GPU backend at opening."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastflow.backends import Backend, Calibrator, Floats
from fastflow.backends.reference import ReferenceBackend, ReferenceTable, ReferenceVectors
from fastflow.errors import FastflowError, UnsupportedArchitecture, WrongOnGpu
from fastflow.model import Model, VectorModel
from fastflow.model.encoder import is_static, read_config, whole_number
from fastflow.model.static.table import open_table
from fastflow.model.tokenizer import Tokens
from fastflow.values import reason

# token counts of the texts in three batches: one text, two texts, and more than a CUDA graph takes
LENGTHS: Sequence[Sequence[int]] = ((5,), (2, 17), (*(1 for _ in range(32)), 65))
COPIES = 43  # of the last batch at once, which are tokens enough for every kernel
SPECIAL = 4
ROWS: Sequence[int] = (1, 2, 1025)
# largest error over a vector's length: above rounding, even of TF32, below a wrong kernel's error
LIMITS = {"float64": 0.01, "float32": 0.01, "float16": 0.1, "bfloat16": 0.25}


class Check(NamedTuple):
    """A computation, its results from GPU and NumPy, and the relative error allowed."""

    what: str
    found: Any
    wanted: Any
    limit: float


def self_test(opened: Calibrator, model: Model | VectorModel) -> None:
    """Raise WrongOnGpu if ``opened`` fails or differs from NumPy."""
    where = f"the {opened.name} backend cannot be trusted on this GPU"
    wider = " or dtype float32" * (opened.dtype in ("float16", "bfloat16"))  # float16 may overflow
    remedy = f"use device='cpu' (--device cpu){wider}, and have the GPU, its driver, torch and triton checked"
    try:
        for check in _compute_checks(opened, model):
            error = _largest_error(check.found, check.wanted)
            if not error <= check.limit:  # false for NaN
                raise WrongOnGpu(f"{where}: {check.what} differ from NumPy's by {error:.2g}, relative; {remedy}")
    except FastflowError:
        raise
    except Exception as error:
        raise WrongOnGpu(f"{where}: {type(error).__name__}: {reason(error)}; {remedy}") from error


def _compute_checks(opened: Calibrator, model: Model | VectorModel) -> Iterator[Check]:
    reference = _open_reference(model)
    if isinstance(opened, Backend) and isinstance(reference, Backend) and isinstance(model, Model):
        parts = []
        for lengths in LENGTHS:
            tokens, rows = _draw_tokens(model, lengths), [np.arange(len(lengths))]
            parts.append(reference.pool(tokens))
            pooled = opened.pool(tokens)
            yield Check(f"pooled vectors, {len(lengths)} at once,", pooled, parts[-1], LIMITS[opened.dtype])
            unit = reference.calibrate(pooled.astype(reference.floats), True)
            found = opened.embed(tokens, rows, True)
            yield Check(f"embeddings, {len(lengths)} at once,", found, unit, LIMITS["float32"])
        numbers = np.arange(COPIES * len(lengths)) % len(lengths)
        found, wanted = opened.pool(tokens.select(numbers)), parts[-1][numbers]
        yield Check(f"pooled vectors, {len(numbers)} at once,", found, wanted, LIMITS[opened.dtype])
        few = np.concatenate(parts)
    else:
        few = np.random.default_rng(0).standard_normal((16, opened.pooled_dim)).astype(reference.floats)
    yield from _check_vectors(opened, reference, few.astype(opened.floats))


def _check_vectors(opened: Calibrator, reference: Calibrator, few: Floats) -> Iterator[Check]:
    wanted = reference.calibrate(few.astype(reference.floats))
    for count in ROWS:
        numbers = np.arange(count) % len(few)
        found = opened.calibrate(few[numbers])
        yield Check(f"calibrated vectors, {count} at once,", found, wanted[numbers], LIMITS["float32"])


def _open_reference(model: Model | VectorModel) -> Calibrator:
    if isinstance(model, VectorModel):
        return ReferenceVectors(model, "float32", "cpu", None)
    if is_static(model.encoder):
        return ReferenceTable(model, "float32", "cpu", None)
    try:
        return ReferenceBackend(model, "float32", "cpu", None)
    except UnsupportedArchitecture:
        from fastflow.backends.torch import TorchBackend

        return TorchBackend(model, "float32", "cpu", None)


def _draw_tokens(model: Model, lengths: Sequence[int]) -> Tokens:
    kept = np.minimum(lengths, model.max_length)
    table = open_table(model.encoder).vocabulary if is_static(model.encoder) else 0
    size = table or whole_number(read_config(model.encoder), "vocab_size", model.encoder)
    ids = np.random.default_rng(len(lengths)).integers(min(SPECIAL, size - 1), size, kept.sum(), np.int32)
    return Tokens(ids, np.concatenate([[0], np.cumsum(kept)]).astype(np.int64), np.empty(0, np.int64))


def _largest_error(found: Any, wanted: Any) -> float:
    rows = np.isfinite(wanted).all(axis=1)
    error = np.linalg.norm(np.asarray(found[rows], np.float64) - wanted[rows], axis=1)
    return float((error / np.maximum(np.linalg.norm(wanted[rows], axis=1), 1e-6)).max(initial=0))
