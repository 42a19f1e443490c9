"""Run ``fastflow.fit`` and ``fastflow.distill`` after a check of their arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastflow.errors import FastflowError, UsageError, warn
from fastflow.files.read.matrix import MatrixRows
from fastflow.train.data.corpus import note_groups
from fastflow.train.export.result import Fit
from fastflow.train.methods.own import check_own
from fastflow.train.options import DEFAULTS, OWN, TrainOptions, check_groups, make_options, name_grouped
from fastflow.train.pipeline.fit import RunConfig, fit_texts
from fastflow.train.pipeline.vectors import choose_vector_options, fit_vectors
from fastflow.train.reporter import COMMAND, SILENT, Reporter, name_arguments
from fastflow.values import short

if TYPE_CHECKING:
    from fastflow.train.distil.deep import DistilledLayers
    from fastflow.train.distil.run import Distilled
    from fastflow.train.options import Paths

SOURCE, VECTORS = "texts given in Python", "vectors given in Python"
COMMAND_ONLY = ("save_steps",)  # only the command writes checkpoints
OPTIONS = [field.name for field in fields(TrainOptions) if field.name not in COMMAND_ONLY]


@contextmanager
def errors_name_arguments() -> Iterator[None]:
    """Make errors name arguments instead of options of the command."""
    try:
        yield
    except FastflowError as error:
        error.args = tuple(map(name_arguments, error.args))
        raise


def run_fit(
    texts: Any,
    encoder: str | os.PathLike[str],
    options: dict[str, Any],
    pairs: Paths | None,
    progress: bool | Callable[[str], None] | None,
    cache: str | os.PathLike[str] | None,
    log_dir: str | os.PathLike[str] | None,
    **beside: Any,
) -> Fit:
    """Run ``fastflow.fit``; ``beside``: ``own``, a user's calibration, and ``groups``, of which one is None."""
    own, groups = beside["own"], beside["groups"]
    if unknown := [name for name in options if name not in OPTIONS]:
        raise UsageError(f"fit has no option {unknown[0]!r}; it takes {', '.join(OPTIONS)}")
    if own is not None:
        check_own(own, options["method"])
        options |= {"method": OWN}
    folder = None if cache is None else Path(cache)
    config = RunConfig(_make_reporter(progress), folder, log_dir=None if log_dir is None else os.fspath(log_dir))
    with errors_name_arguments():
        options = options | {"method": name_grouped(options["method"], groups is not None)}
        labels = None if groups is None else list(groups)
        if isinstance(texts, np.ndarray) and texts.dtype.kind not in "UO":
            others = {"encoder": (encoder, "untuned"), "eval": (pairs, None)}
            others |= {"cache_folder": (cache, None), "log_dir": (log_dir, None)}
            named = [name for name, (value, usual) in others.items() if value != usual]
            named += [name for name, value in options.items() if value != getattr(DEFAULTS, name)]
            matrix = MatrixRows(texts, VECTORS)
            fit = fit_vectors(choose_vector_options(options, named), matrix, VECTORS, config, own=own, groups=labels)
        else:
            asked, sets = make_options(options), _find_pairs(pairs)
            source, keys = check_texts(texts), dict[bytes, str]()
            if labels is not None:
                check_groups(labels, whole := list(source))
                source = note_groups(zip(whole, labels, strict=True), asked.sentences, keys)
            fit = fit_texts(os.fspath(encoder), asked, source, [SOURCE], config, sets, own=own, groups=keys)
    assert fit is not None  # noqa: S101
    for warning in fit.report["warnings"]:
        warn(name_arguments(warning))
    return fit


def run_distil(
    model: str | os.PathLike[str], texts: Any, options: dict[str, Any], progress: bool | Callable[[str], None] | None
) -> Distilled | DistilledLayers:
    """Run ``fastflow.distill``."""
    from fastflow.train.distil.deep import distil_layers
    from fastflow.train.distil.run import DistilOptions, distil
    from fastflow.train.distil.teacher import KeptTeacher, Teacher

    with errors_name_arguments():
        whole, settings = list(check_texts(texts, "distill")), DistilOptions(**options)
        if settings.layers:
            kept = KeptTeacher(os.fspath(model))
            return distil_layers(partial(iter, whole), [SOURCE], kept, settings, _make_reporter(progress))
        teacher = Teacher(os.fspath(model))
        return distil(partial(iter, whole), [SOURCE], teacher, settings, _make_reporter(progress), total=len(whole))


def check_texts(texts: Any, function: str = "fit") -> Iterator[str]:
    """Yield the strings of ``texts``; raises a UsageError unless they have a fixed order."""
    unordered = isinstance(texts, str | bytes | os.PathLike | Set | Mapping)
    if unordered or getattr(texts, "ndim", 1) != 1 or not isinstance(texts, Iterable):
        raise UsageError(
            f"{function} takes texts as a list or another iterable of str in a fixed order, not as "
            f"{type(texts).__name__}; files are read by fastflow-train, and vectors come as a NumPy array (N, D)"
        )
    return _check_each(texts)


def _check_each(texts: Iterable[Any]) -> Iterator[str]:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise FastflowError(f"text {index} is {type(text).__name__}, not str")
        yield text


def _find_pairs(pairs: Paths | None) -> list[Path]:
    paths = [Path(path) for path in ([pairs] if isinstance(pairs, str | os.PathLike) else pairs or [])]
    for path in paths:
        if not path.exists():
            raise FastflowError(f"{path}: no such file or folder of scored pairs")
    return paths


def _make_reporter(progress: Any) -> Reporter:
    if progress is None or isinstance(progress, bool):
        return COMMAND if progress else SILENT
    if not callable(progress):
        raise UsageError(f"progress must be True, None or a function of a line, not {short(progress)}")
    return Reporter(progress, bars=False)
