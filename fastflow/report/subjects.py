"""The subjects of a report: pooled embeddings, uncalibrated or calibrated by the model or by a baseline."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.texts import read_records
from fastflow.model.artifact import load_model
from fastflow.model.kinds import Model
from fastflow.progress import in_parts
from fastflow.runtime import Runtime
from fastflow.stages.calibration import Stage, apply, describe

Matrix = NDArray[Any]
Fit = Callable[[str, Matrix, int], list[Stage]]  # method, pooled embeddings (n, D), seed -> stages
Open = Callable[[str | Model], Runtime]
MODEL = "model"
PACKAGE, STATIC = "package", "static"
OF_PACKAGE = "the model in the package, which is a calibration of the same encoder"
UNCALIBRATED = ("raw", "weights")


class Pool:
    """Pooled embeddings by prompt and text; no text is encoded twice."""

    def __init__(self, runtime: Runtime, count: Callable[[int], None] = lambda texts: None) -> None:
        self.runtime, self._count = runtime, count
        self._where: dict[tuple[str, str], int] = {}
        self._rows = runtime.pool([])

    def __call__(self, texts: Sequence[str], task: str | None = None) -> Matrix:
        """(n, D), in the runtime's dtype and the order of ``texts``; ``task`` (query or document) names a prompt."""
        prompts = self.runtime.session.model.prompts
        prompt = prompts.resolve() if task is None else prompts.of_task(task)
        new = [text for text in dict.fromkeys(texts) if (prompt, text) not in self._where]
        if new:
            self._where |= {(prompt, text): len(self._where) + i for i, text in enumerate(new)}
            pooled = in_parts(lambda part: self.runtime.pool(part, prompt=prompt), new, self._count)
            self._rows = np.concatenate([self._rows, pooled])
        return np.asarray(self._rows[np.array([self._where[prompt, text] for text in texts], np.int64)])


@dataclass(frozen=True)
class Subject:
    """One column of the report: its name, a description for authors, its embeddings, and a description for all."""

    name: str
    what: str
    pool: Pool
    calibrate: Callable[[Matrix], Matrix]
    plain: str = ""

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """(n, D') embeddings of ``texts``."""
        return self.calibrate(self.pool(texts))

    encode = __call__

    def encode_query(self, texts: Sequence[str]) -> Matrix:
        """(n, D') embeddings with the model's prompt for queries."""
        return self.calibrate(self.pool(texts, "query"))

    def encode_document(self, texts: Sequence[str]) -> Matrix:
        """(n, D') embeddings with the model's prompt for documents."""
        return self.calibrate(self.pool(texts, "document"))


def subjects(
    runtime: Runtime, model: Model, against: Sequence[str], texts: Sequence[str], fit: Fit, open_model: Open, seed: int,
    count: Callable[[int], None] = lambda texts: None,
) -> list[Subject]:  # fmt: skip
    """The columns: ``model`` itself, which ``runtime`` runs, then the others in the order of ``against``.

    ``count`` takes the number of texts after each part that an encoder has pooled.

    A name is ``raw``, the encoder's pooling without token weights, as in the paper; ``weights``, the same with the
    model's token weights; a method of ``fit``, fitted on ``texts``; or a directory with another model.
    """
    pool, out = Pool(runtime, count), []
    unweighted = replace(model.pooling, weights=None)
    plain = pool if model.pooling.weights is None else Pool(open_model(replace(model, pooling=unweighted)), count)
    for name in dict.fromkeys(against):
        if name == MODEL:
            raise UsageError("--against names the other columns, not the model itself")
        if name == "raw":
            out.append(_uncalibrated(name, plain, "the encoder alone, each token counting 1"))
        elif name == "weights":
            if plain is pool:
                raise UsageError("--against weights: this model has no token weights; name raw")
            out.append(_uncalibrated(name, pool, "the encoder alone, with the model's token weights"))
        elif Path(name).is_dir():
            out.append(_other(shown_name(name), open_model(name), count, "another model"))
        else:
            if not texts:
                raise UsageError(f"--against {name} has to be fitted on text: give --corpus FILE, or --sts")
            stages = [stage.astype(np.float64) for stage in fit(name, pool(texts), seed)]
            what = f"{runtime.info()['pooling']}, {_then(describe(stages))} fitted on {len(texts):,} texts"
            told = f"the encoder calibrated by {name} on {len(texts):,} texts"
            out.append(Subject(name, what, pool, _through(stages), told))
    if of_package(model):
        out.append(_other(PACKAGE, open_model("default"), count, OF_PACKAGE))
        out.append(_other(STATIC, open_model(STATIC), count, "the table in the package"))
    paths = [shown_name(name) for name in against if name not in UNCALIBRATED]
    if clash := [name for name in paths if name in (MODEL, *UNCALIBRATED)] or _repeated([s.name for s in out]):
        raise UsageError(
            f"--against: two columns would be called {clash[0]!r}; give one by a link of another name, ln -s"
        )
    return [Subject(MODEL, _what(runtime), pool, runtime.transform, "the model of this page"), *out]


def encoders(model: Model, against: Sequence[str]) -> int:
    """How many times ``subjects`` has each text pooled."""
    others = [name for name in dict.fromkeys(against) if name not in UNCALIBRATED and Path(name).is_dir()]
    return 1 + len(others) + ("raw" in against and model.pooling.weights is not None) + 2 * of_package(model)


def of_package(model: Model) -> bool:
    """Whether ``model`` is another calibration of the encoder in the package than the one in the package."""
    packaged = load_model(None)
    same = model.manifest.get("encoder", {}).get("sha256") == packaged.manifest["encoder"]["sha256"]
    return same and model.fingerprint != packaged.fingerprint


def baseline(names: Sequence[str]) -> str | None:
    """The subject that the model is judged against: raw, else the first that is not the model, None without any."""
    others = [name for name in names if name != MODEL]
    return "raw" if "raw" in others else others[0] if others else None


def shown_name(path: str | Path) -> str:
    """The last part of a path, also of ``.`` and ``..``: a page that is passed on holds no local path."""
    return os.path.basename(os.path.abspath(path))


def _what(runtime: Runtime) -> str:
    """A model's pooling and calibration in words."""
    info = runtime.info()
    return f"{info['pooling']}, {_then(info['calibration'])}"


def _then(calibration: str) -> str:
    return "uncalibrated" if calibration == "none" else f"then {calibration}"


def _other(name: str, runtime: Runtime, count: Callable[[int], None], plain: str) -> Subject:
    return Subject(name, _what(runtime), Pool(runtime, count), runtime.transform, plain)


def _uncalibrated(name: str, pool: Pool, plain: str) -> Subject:
    return Subject(name, f"{pool.runtime.info()['pooling']}, {_then('none')}", pool, lambda x: x, plain)


def _through(stages: Sequence[Stage]) -> Callable[[Matrix], Matrix]:
    return lambda x: np.asarray(apply(stages, x.astype(np.float64)))


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for i, name in enumerate(names) if name in names[:i]]


def read_texts(paths: Sequence[Path], most: int, seed: int) -> list[str]:
    """The distinct non-empty texts of the files, at most ``most``, drawn at random but kept in order."""
    texts = list(
        dict.fromkeys(
            text.strip()
            for path in paths
            for record in read_records(str(path))
            for text in record.texts
            if text.strip()
        )
    )
    if paths and len(texts) < 2:
        raise FastflowError(f"{', '.join(map(str, paths))}: {len(texts)} distinct texts; a report needs at least two")
    return thin(texts, most, seed)


def thin(texts: Sequence[str], most: int, seed: int) -> list[str]:
    """At most ``most`` of ``texts``, drawn at random but kept in order."""
    if len(texts) <= most:
        return list(texts)
    return [texts[i] for i in np.sort(np.random.default_rng(seed).choice(len(texts), most, replace=False))]
