"""Run ``fastflow embed --fit``: calibrate a model on the texts to embed."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastflow.atomic import check_out
from fastflow.errors import FastflowError, UsageError
from fastflow.model import Model
from fastflow.model.artifact import load_model
from fastflow.model.encoder import size_of
from fastflow.model.encoder.weights import encoder_files
from fastflow.model.hashing import file_hash
from fastflow.model.locate import find_model
from fastflow.model.manifest import ENCODER, MODULES_FOLDER
from fastflow.model.sentence.weights import files_of
from fastflow.stages import calibration
from fastflow.stages.pooling import parse_pooling, pooling_name
from fastflow.train.data.corpus import clean, corpus_hash, draw
from fastflow.train.data.encoder import OF_MODULES, FrozenEncoder, open_encoder
from fastflow.train.fits.corpus import Setup
from fastflow.train.fits.fitting import Fitting
from fastflow.train.options import Options
from fastflow.train.progress import COMMAND, SILENT

SAMPLE = 100_000  # distinct texts to fit to

Texts = Callable[[], Iterator[str]]


@contextlib.contextmanager
def fit_input(
    texts: Texts, source: str, model: str | None, device: str, keep: Path | None, resume: bool, quiet: bool
) -> Iterator[Path]:
    """Fit to ``texts()`` of ``source`` and yield the model's directory; ``keep`` is --save-model.

    ``resume`` takes the saved model.
    """
    voice, name = SILENT if quiet else COMMAND, "standard input" if source == "-" else Path(source).name
    encoder, options = _choose_options(model, device)
    if keep is not None and keep.exists() and resume:
        _check_same(keep, texts, encoder, options, name)
        voice.say(f"fastflow: continues with the model in {keep}")
        yield keep
        return
    if keep is not None:
        check_out(keep, "--save-model")
    fit = Fitting(encoder, options, Setup(voice)).run(texts(), [name])
    assert fit is not None  # noqa: S101
    with contextlib.ExitStack() as stack:
        if (out := keep) is None:
            folder = tempfile.TemporaryDirectory(prefix="fastflow-", ignore_cleanup_errors=True)
            out = Path(stack.enter_context(folder)) / "model"
        fit.save(out)
        for reason in fit.choice.reasons:
            voice.say(reason)
        for warning in fit.doubts:
            voice.say(f"WARNING: {warning}")
        chosen = calibration.describe(fit.stages) if fit.stages else "no calibration"
        reuse = "--save-model DIR would keep the model" if keep is None else f"reuse it with -m {keep}"
        voice.say(f"fastflow: fitted {chosen} to {fit.training['texts']:,} distinct texts of {name}; {reuse}")
        yield out


def _choose_options(name: str | None, device: str) -> tuple[str, Options]:
    directory = find_model(name)
    model = load_model(directory)
    given: dict[str, Any] = {"sample": SAMPLE, "device": "cuda" if device == "cuda" else "cpu"}
    if model.modules is not None:
        given |= {"pooling": OF_MODULES, "token_weights": "none"}
    elif model.manifest:
        given |= {"pooling": _name_pooling(model), "max_length": model.max_length}
        given["token_weights"] = "none" if model.pooling.weights is None else "sif"
    return str(directory.absolute()), Options(**given)


def _name_pooling(model: Model) -> str:
    pooling, layers = model.pooling, size_of(model.encoder).layers
    name = pooling_name(pooling)
    if parse_pooling(name, layers) != pooling:
        raise UsageError(f"--fit cannot pool as {model.path} does, by the {pooling.describe()}: give another -m")
    return name


def _list_copies(frozen: FrozenEncoder) -> list[tuple[str, Path]]:
    if frozen.head is not None and frozen.modules is not None:
        root = frozen.modules.path
        return [(f"{MODULES_FOLDER}/{path.relative_to(root)}", path) for path in files_of(frozen.modules)]
    files = encoder_files(frozen.directory)
    return [(f"{ENCODER}/{path.name}", path) for path in files if not path.name.startswith(("tokenizer", "vocab"))]


def _check_same(keep: Path, texts: Texts, encoder: str, options: Options, name: str) -> None:
    model, frozen = load_model(keep), open_encoder(encoder, options.pooling, options.max_length)
    weighted = options.token_weights != "none" and frozen.pooling.mode == "mean"  # noqa: S105
    training, files = model.manifest.get("training"), model.manifest.get("files", {})
    sample = draw(clean(texts()), name, SAMPLE, options.seed)
    same = (
        isinstance(training, dict)
        and training.get("corpus_sha256") == corpus_hash(sample)
        and (model.pooling, model.max_length) == (frozen.pooling, frozen.max_length)
        and ((model.pooling.weights is not None) == weighted or frozen.head is not None)
        and all(files.get(name) == file_hash(path) for name, path in _list_copies(frozen))
    )
    if not same:
        raise FastflowError(
            f"{keep} is not the model of an interrupted run on {name} with this encoder: remove it, or choose another "
            "--save-model"
        )
