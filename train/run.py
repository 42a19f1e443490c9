"""The body of fastflow-train: files -> a fit -> a model directory, and the lines printed about it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from fastflow.console import add_note, say
from fastflow.errors import UsageError
from fastflow.files.read.matrix import MatrixFile
from fastflow.files.read.records import Layout
from fastflow.replacing import check_out
from fastflow.stages import calibration
from fastflow.train.data.corpus import read_texts
from fastflow.train.fits.fitting import calibrate
from fastflow.train.fits.vectors import calibrate_vectors
from fastflow.train.options import Options
from fastflow.train.reading import Run
from fastflow.train.ship import summary
from fastflow.train.ship.fit import Fit


def train(
    paths: Sequence[str],
    layout: Layout,
    encoder: str,
    out: Path,
    options: Options,
    run: Run,
    pairs: Sequence[Path],
) -> None:
    """Fit on the texts of ``paths`` and write the model to ``out``; checkpoints of a flow lie next to it meanwhile."""
    names = [Path(path).name for path in paths]
    _finish(lambda run: calibrate(read_texts(paths, layout), names, encoder, options, run, pairs), out, options, run)


def train_vectors(paths: Sequence[str], out: Path, options: Options, run: Run) -> None:
    """Fit on the vectors of ``paths``, one .npy file, and write the model to ``out``, as ``train`` does."""
    if len(paths) > 1:
        raise UsageError("a .npy file of vectors is given alone, without other files or texts beside it")
    (path,) = paths
    with MatrixFile(path) as source:

        def fit(run: Run) -> Fit | None:
            found = calibrate_vectors(source.matrix, Path(path).name, options, run)
            source.check_unchanged()
            return found

        _finish(fit, out, options, run)


def _finish(calibrated: Callable[[Run], Fit | None], out: Path, options: Options, run: Run) -> None:
    """Make the fit, write the model, and print the summary."""
    started = time.monotonic()
    check_out(out)
    checkpoints = checkpoints_of(out)
    try:
        fit = calibrated(replace(run, checkpoints=checkpoints))
        if fit is None:
            whole = "read the corpus once, " if options.stream else ""
            say(f"dry run: would {whole}fit {options.method} and write {out}")
            return
        mark = fit.save(out, run.reference)
    except KeyboardInterrupt as stop:
        if checkpoints.is_dir():
            add_note(stop, f"checkpoints of the flow are in {checkpoints}; the same command with --resume continues")
        raise
    shutil.rmtree(checkpoints, ignore_errors=True)
    seconds = time.monotonic() - started
    _print(fit, run.voice.say, f"{out}: {calibration.describe(fit.stages)}, fingerprint {mark[:16]}, {seconds:.0f} s")


def checkpoints_of(out: Path) -> Path:
    """Where checkpoints of the flow of ``out`` are kept until it is whole."""
    return out.with_name(out.name + ".training")


def _print(fit: Fit, voice: Callable[[str], None], written: str) -> None:
    """Reasons, warnings and what was ``written`` to ``voice``; then the table, and last the verdict."""
    for reason in fit.choice.reasons:
        voice(reason)
    for warning in fit.doubts:  # the concerns have been printed
        voice(f"WARNING: {warning}")
    voice(written)
    table = summary.table(fit.measures, summary.source_of(fit.encoder))
    click.echo("\n".join([table, *summary.notes(fit.measures, fit.stages, fit.unit), fit.verdict]))
