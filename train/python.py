"""``fastflow.fit``: the arguments of a caller in Python -> options, texts or vectors, and surroundings of a fit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastflow.errors import FastflowError, UsageError, warn
from fastflow.files.read.matrix import Matrix
from fastflow.train.fits.fitting import calibrate
from fastflow.train.fits.vectors import calibrate_vectors, vector_options
from fastflow.train.options import DEFAULTS, Options
from fastflow.train.progress import COMMAND, SILENT, Voice
from fastflow.train.reading import Run
from fastflow.train.ship.fit import Fit
from fastflow.values import short

if TYPE_CHECKING:
    from fastflow.train.options import Paths

SOURCE, VECTORS = "texts given in Python", "vectors given in Python"
UNASKED = {"encoder": "default", "stop": None}  # of arguments whose default is not that of Options
COMMAND_ONLY = ("save_steps",)  # of checkpoints, which lie next to the model that the command makes
OF_DISTIL = ("dim", "words", "dtype", "penalty")
ARGUMENTS = ("encoder", "eval", "cache_folder", "log_dir", *OF_DISTIL, *(field.name for field in fields(Options)))
OPTION = re.compile(rf"--({'|'.join(name.replace('_', '-') for name in ARGUMENTS)})(?![\w-])")


def with_arguments(message: str) -> str:
    """``message``, which names options of the command, with the names of the arguments of ``fit``."""
    return OPTION.sub(lambda option: option[1].replace("-", "_"), message)


@contextmanager
def naming_arguments() -> Iterator[None]:
    """Errors of a fit or a distillation name arguments, not options of the command."""
    try:
        yield
    except FastflowError as error:
        if (message := with_arguments(str(error))) == str(error):
            raise
        raise type(error)(message) from error


def options_of(given: dict[str, Any]) -> dict[str, Any]:
    """The options among the arguments of ``fit``; raises a UsageError for an argument that it does not have."""
    _check_names(given["unknown"])
    names = [field.name for field in fields(Options) if field.name not in COMMAND_ONLY]
    return {name: given[name] for name in names if name != "stop" or given[name] is not None}


def fit_texts(
    texts: Any,
    encoder: str | os.PathLike[str],
    options: dict[str, Any],
    pairs: Paths | None,
    progress: bool | Callable[[str], None] | None,
    cache: str | os.PathLike[str] | None,
    log_dir: str | os.PathLike[str] | None,
) -> Fit:
    """``fastflow.train.fit``, whose arguments these are."""
    folder = None if cache is None else Path(cache)
    run = Run(voice_of(progress), folder, log_dir=None if log_dir is None else os.fspath(log_dir))
    with naming_arguments():
        if isinstance(texts, np.ndarray) and texts.dtype.kind not in "UO":
            matrix = Matrix(texts, VECTORS)
            asked = {"encoder": encoder, "eval": pairs, "cache_folder": cache} | options
            named = [name for name, value in asked.items() if value != UNASKED.get(name, getattr(DEFAULTS, name, None))]
            fit = calibrate_vectors(matrix, VECTORS, vector_options(options, named), run)
        else:
            fit = calibrate(checked_texts(texts), [SOURCE], os.fspath(encoder), Options(**options), run, _paths(pairs))
    return _warned(fit)


def _check_names(options: dict[str, Any]) -> None:
    known = [field.name for field in fields(Options) if field.name not in COMMAND_ONLY]
    if unknown := [name for name in options if name not in known]:
        raise UsageError(f"fit has no option {unknown[0]!r}; it takes {', '.join(known)}")


def _warned(fit: Fit | None) -> Fit:
    """``fit``, after its warnings."""
    assert fit is not None  # noqa: S101 (only a dry run has none)
    for warning in fit.report["warnings"]:
        warn(with_arguments(warning))
    if fit.refused:
        warn(with_arguments(fit.choice.reasons[-1]))
    return fit


def checked_texts(texts: Any, function: str = "fit") -> Iterator[str]:
    """The items of ``texts``; raises a UsageError for an argument without an order, and for an item that is no text."""
    unordered = isinstance(texts, str | bytes | os.PathLike | Set | Mapping)
    if unordered or getattr(texts, "ndim", 1) != 1 or not isinstance(texts, Iterable):
        raise UsageError(
            f"{function} takes texts as a list or another iterable of str in a fixed order, not as "
            f"{type(texts).__name__}; files are read by fastflow-train, and vectors come as a NumPy array (N, D)"
        )
    return (_text(text, index) for index, text in enumerate(texts))


def _text(text: Any, index: int) -> str:
    if not isinstance(text, str):
        raise FastflowError(f"text {index} is {type(text).__name__}, not str")
    return text


def _paths(pairs: Any) -> list[Path]:
    """The files and folders of scored pairs."""
    if pairs is None:
        return []
    given = [pairs] if isinstance(pairs, str | os.PathLike) else list(pairs)
    for path in map(Path, given):
        if not path.exists():
            raise FastflowError(f"{path}: no such file or folder of scored pairs")
    return [Path(path) for path in given]


def voice_of(progress: Any) -> Voice:
    """The Voice that the argument ``progress`` asks for."""
    if progress is None or progress is False:
        return SILENT
    if progress is True:
        return COMMAND
    if not callable(progress):
        raise UsageError(f"progress must be True, None or a function of a line, not {short(progress)}")
    return Voice(progress, bars=False)
