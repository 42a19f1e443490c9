"""Run fastflow-train and `fastflow embed --fit`: fit a model to files, write it, and print the measures."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fastflow.atomic import check_out
from fastflow.console import add_note, say
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import InputFormat
from fastflow.files.read.matrix import MatrixFile
from fastflow.model import Model
from fastflow.model.artifact import load_model
from fastflow.model.encoder import size_of
from fastflow.model.encoder.weights import encoder_files
from fastflow.model.hashing import file_hash
from fastflow.model.locate import find_model
from fastflow.model.manifest import ENCODER, MODULES_FOLDER
from fastflow.model.sentence.weights import files_of
from fastflow.train.data.corpus import clean, corpus_hash, draw, note_groups, read_groups, read_texts
from fastflow.train.data.encoder import OF_MODULES, FrozenEncoder, open_encoder
from fastflow.train.export import summary
from fastflow.train.export.result import Fit
from fastflow.train.options import TrainOptions
from fastflow.train.pipeline.fit import RunConfig, fit_texts
from fastflow.train.pipeline.vectors import fit_vectors
from fastflow.train.reporter import COMMAND, SILENT, WARNING
from fastflow.transforms import calibration
from fastflow.transforms.pooling import parse_pooling, pooling_name

SAMPLE = 100_000  # distinct texts to fit to

Texts = Callable[[], Iterator[str]]


def train(
    paths: Sequence[str], layout: InputFormat, out: Path, encoder: str, options: TrainOptions, config: RunConfig,
    pairs: Sequence[Path], field: str | None = None,
) -> None:  # fmt: skip
    """Fit a model to the texts of ``paths``, of groups by ``field`` or file, and write it to ``out``."""
    names, groups = [Path(path).name for path in paths], dict[bytes, str]()
    texts: Iterable[str] = read_texts(paths, layout)
    if options.method.startswith("groups"):
        texts = note_groups(read_groups(paths, layout, field), options.sentences, groups)

    def run(config: RunConfig) -> Fit | None:
        return fit_texts(encoder, options, texts, names, config, pairs, groups=groups)

    _make_model(run, out, options, config)


def train_vectors(
    paths: Sequence[str], out: Path, options: TrainOptions, config: RunConfig, file: str | None = None
) -> None:
    """Fit a model to the vectors of ``paths``, one .npy file, of groups by lines of ``file``; write it to ``out``."""
    if len(paths) > 1:
        raise UsageError("a .npy file of vectors is given alone, without other files or texts beside it")
    (path,) = paths
    with MatrixFile(path) as source:

        def run(config: RunConfig) -> Fit | None:
            groups = None if file is None else list(read_texts([file]))
            fit = fit_vectors(options, source.matrix, Path(path).name, config, groups=groups)
            source.check_unchanged()
            return fit

        _make_model(run, out, options, config)


def _make_model(run: Callable[[RunConfig], Fit | None], out: Path, options: TrainOptions, config: RunConfig) -> None:
    started = time.monotonic()
    check_out(out)
    checkpoints, write = out.with_name(out.name + ".training"), config.reporter.write
    try:
        fit = run(replace(config, checkpoints=checkpoints))
        if fit is None:
            whole = "read the corpus once, " if options.stream else ""
            say(f"dry run: would {whole}fit {options.method} and write {out}")
            return
        mark = fit.save(out, config.reference)
    except KeyboardInterrupt as stop:
        if checkpoints.is_dir():
            add_note(stop, f"checkpoints of the flow are in {checkpoints}; the same command with --resume continues")
        raise
    shutil.rmtree(checkpoints, ignore_errors=True)
    _write_reasons(fit, write)
    seconds = time.monotonic() - started
    write(f"{out}: {calibration.describe(fit.stages)}, fingerprint {mark[:16]}, {seconds:.0f} s")
    table = summary.make_table(fit.measures, summary.name_source(fit.encoder))
    click.echo("\n".join([table, *summary.write_notes(fit.measures, fit.stages, fit.unit), fit.verdict]))


def _write_reasons(fit: Fit, write: Callable[[str], None]) -> None:
    for line in (*fit.choice.reasons, *(WARNING + doubt for doubt in fit.doubts)):
        write(line)


@contextlib.contextmanager
def fit_input(
    texts: Texts, source: str, model: str | None, device: str, keep: Path | None, resume: bool, quiet: bool
) -> Iterator[Path]:
    """Fit to ``texts()`` and yield the model's directory: ``keep`` (--save-model), or a temporary folder.

    With ``resume`` an existing ``keep`` is taken.
    """
    reporter, name = SILENT if quiet else COMMAND, "standard input" if source == "-" else Path(source).name
    encoder, options = _choose_options(model, device)
    if keep is not None and keep.exists() and resume:
        _check_same(keep, texts, encoder, options, name)
        reporter.write(f"fastflow: continues with the model in {keep}")
        yield keep
        return
    if keep is not None:
        check_out(keep, "--save-model")
    fit = fit_texts(encoder, options, texts(), [name], RunConfig(reporter))
    assert fit is not None  # noqa: S101
    with contextlib.ExitStack() as stack:
        if (out := keep) is None:
            folder = tempfile.TemporaryDirectory(prefix="fastflow-", ignore_cleanup_errors=True)
            out = Path(stack.enter_context(folder)) / "model"
        fit.save(out)
        _write_reasons(fit, reporter.write)
        chosen = calibration.describe(fit.stages) if fit.stages else "no calibration"
        reuse = "--save-model DIR would keep the model" if keep is None else f"reuse it with -m {keep}"
        reporter.write(f"fastflow: fitted {chosen} to {fit.training['texts']:,} distinct texts of {name}; {reuse}")
        yield out


def _choose_options(name: str | None, device: str) -> tuple[str, TrainOptions]:
    directory = find_model(name)
    model = load_model(directory)
    given: dict[str, Any] = {"sample": SAMPLE, "device": "cuda" if device == "cuda" else "cpu"}
    if model.modules is not None:
        given |= {"pooling": OF_MODULES, "token_weights": "none"}
    elif model.manifest:
        given |= {"pooling": _name_pooling(model), "max_length": model.max_length}
        given["token_weights"] = "none" if model.pooling.weights is None else "sif"
    return str(directory.absolute()), TrainOptions(**given)


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


def _check_same(keep: Path, texts: Texts, encoder: str, options: TrainOptions, name: str) -> None:
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
