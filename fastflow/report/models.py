"""The subjects of a report: models, one column each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.texts import read_records
from fastflow.model import Model
from fastflow.model.artifact import load_model
from fastflow.model.encoder import size_of
from fastflow.progress import in_parts
from fastflow.runtime import Runtime
from fastflow.transforms.calibration import Stage, apply_wide, describe
from fastflow.transforms.pooling import Pooling, make_raw

Matrix = NDArray[Any]
Fit = Callable[[str, Matrix, int], list[Stage]]  # method, pooled embeddings (n, D), seed -> stages
Open = Callable[[str | Model], Runtime]
MODEL = "model"
PACKAGE, STATIC = "package", "static"
UNCALIBRATED = ("raw", "weights")


class EmbeddingCache:
    """A cache of pooled embeddings by prompt and text."""

    def __init__(self, runtime: Runtime, count: Callable[[int], None] = lambda texts: None) -> None:
        self.runtime, self._count = runtime, count
        self._rows_of: dict[tuple[str, str], int] = {}
        self._rows = runtime.pool([])

    def __call__(self, texts: Sequence[str], task: str | None = None) -> Matrix:
        prompts = self.runtime.session.model.prompts
        prompt = prompts.resolve() if task is None else prompts.of_task(task)
        new = [text for text in dict.fromkeys(texts) if (prompt, text) not in self._rows_of]
        if new:
            self._rows_of |= {(prompt, text): len(self._rows_of) + i for i, text in enumerate(new)}
            pooled = in_parts(lambda part: self.runtime.pool(part, prompt=prompt), new, self._count)
            self._rows = np.concatenate([self._rows, pooled])
        return np.asarray(self._rows[np.array([self._rows_of[prompt, text] for text in texts], np.int64)])


@dataclass(frozen=True)
class ReportColumn:
    """One column of the report: name, description, and embeddings (n, D') of texts."""

    name: str
    about: str
    pool: EmbeddingCache
    calibrate: Callable[[Matrix], Matrix]

    def __call__(self, texts: Sequence[str]) -> Matrix:
        return self.calibrate(self.pool(texts))

    encode = __call__

    def encode_query(self, texts: Sequence[str]) -> Matrix:
        return self.calibrate(self.pool(texts, "query"))

    def encode_document(self, texts: Sequence[str]) -> Matrix:
        return self.calibrate(self.pool(texts, "document"))


def make_subjects(
    runtime: Runtime, model: Model, against: Sequence[str], texts: Sequence[str], fit: Fit, open_model: Open, seed: int,
    count: Callable[[int], None] = lambda texts: None,
) -> list[ReportColumn]:  # fmt: skip
    """Make the columns: ``model``, then ``against``; raises a UsageError for a wrong name.

    A name is ``raw`` (``find_raw``); ``weights``, without calibration; a method of ``fit``, fitted on ``texts``;
    or a model's directory.
    """
    pool, out, plain = EmbeddingCache(runtime, count), [], find_raw(model)
    for name in dict.fromkeys(against):
        if name == MODEL:
            raise UsageError("--against names the other columns, not the model itself")
        if name == "weights" and model.pooling.weights is None:
            raise UsageError("--against weights: this model has no token weights; name raw")
        if name in UNCALIBRATED:
            own = pool
            if name == "raw" and plain is not None:
                own = EmbeddingCache(open_model(replace(model, pooling=plain)), count)
            out.append(ReportColumn(name, _describe(own.runtime, "none"), own, lambda x: x))
        elif Path(name).is_dir():
            out.append(_make_subject(name_path(name), EmbeddingCache(open_model(name), count)))
        else:
            if not texts:
                raise UsageError(f"--against {name} has to be fitted on text: give --corpus FILE, or --sts")
            stages = fit(name, pool(texts), seed)
            about = f"{_describe(runtime, describe(stages))} fitted on {len(texts):,} texts"
            out.append(ReportColumn(name, about, pool, partial(apply_wide, stages)))
    if is_of_package(model):
        out += [_make_subject(PACKAGE, EmbeddingCache(open_model("untuned"), count))]
        out += [_make_subject(STATIC, EmbeddingCache(open_model(STATIC), count))]
    names = [subject.name for subject in out]
    paths = [name_path(name) for name in against if name not in UNCALIBRATED]
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if clash := [name for name in paths if name in (MODEL, *UNCALIBRATED)] or twice:
        raise UsageError(
            f"--against: two columns would be called {clash[0]!r}; give one by a link of another name, ln -s"
        )
    return [_make_subject(MODEL, pool), *out]


def count_encoders(model: Model, against: Sequence[str]) -> int:
    """Count how often ``make_subjects`` pools each text."""
    others = [name for name in dict.fromkeys(against) if name not in UNCALIBRATED and Path(name).is_dir()]
    return 1 + len(others) + ("raw" in against and find_raw(model) is not None) + 2 * is_of_package(model)


def find_raw(model: Model) -> Pooling | None:
    """Return the raw pooling, or None if ``model`` keeps its own."""
    raw = make_raw(model.pooling, size_of(model.encoder).layers)
    same = model.pooling.weights is None and model.pooling == raw
    return None if same or model.modules is not None else raw


def is_of_package(model: Model) -> bool:
    """Return whether ``model`` has the packaged encoder with another calibration."""
    packaged = load_model("untuned")
    same = model.manifest.get("encoder", {}).get("sha256") == packaged.manifest["encoder"]["sha256"]
    return same and model.fingerprint != packaged.fingerprint


def find_baseline(names: Sequence[str]) -> str | None:
    """Find the subject to compare with: raw, else the first."""
    others = [name for name in names if name != MODEL]
    return "raw" if "raw" in others else others[0] if others else None


def name_path(path: str | Path) -> str:
    """Return the last part of a path."""
    return os.path.basename(os.path.abspath(path))


def _make_subject(name: str, pool: EmbeddingCache) -> ReportColumn:
    return ReportColumn(name, _describe(pool.runtime, pool.runtime.info()["calibration"]), pool, pool.runtime.transform)


def _describe(runtime: Runtime, calibration: str) -> str:
    return f"{runtime.info()['pooling']}, {'uncalibrated' if calibration == 'none' else f'then {calibration}'}"


def read_texts(paths: Sequence[Path], most: int, seed: int) -> list[str]:
    """Read the distinct texts of files, thinned to ``most``."""
    found = (text.strip() for path in paths for record in read_records(str(path)) for text in record.texts)
    texts = list(dict.fromkeys(text for text in found if text))
    if paths and len(texts) < 2:
        raise FastflowError(f"{', '.join(map(str, paths))}: {len(texts)} distinct texts; a report needs at least two")
    return thin(texts, most, seed)


def thin(texts: Sequence[str], most: int, seed: int) -> list[str]:
    """Draw at most ``most`` of ``texts``, in their order."""
    if len(texts) <= most:
        return list(texts)
    return [texts[i] for i in np.sort(np.random.default_rng(seed).choice(len(texts), most, replace=False))]
