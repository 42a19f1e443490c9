"""Run fastflow-train: fit a model to files, write it, and print the measures."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from fastflow.atomic import check_out
from fastflow.console import add_note, say
from fastflow.errors import UsageError
from fastflow.files.read import InputFormat
from fastflow.files.read.matrix import MatrixFile
from fastflow.stages import calibration
from fastflow.train.data.corpus import read_texts
from fastflow.train.fits.corpus import Setup
from fastflow.train.fits.fitting import Fitting
from fastflow.train.fits.vectors import VectorFitting
from fastflow.train.ship import summary
from fastflow.train.ship.result import Fit


def train(paths: Sequence[str], layout: InputFormat, out: Path, fitting: Fitting) -> None:
    """Fit a model to the texts of ``paths`` and write it to ``out``."""
    names = [Path(path).name for path in paths]
    _make_model(lambda setup: replace(fitting, setup=setup).run(read_texts(paths, layout), names), out, fitting)


def train_vectors(paths: Sequence[str], out: Path, fitting: VectorFitting) -> None:
    """Fit a model to the vectors of ``paths``, one .npy file, and write it to ``out``."""
    if len(paths) > 1:
        raise UsageError("a .npy file of vectors is given alone, without other files or texts beside it")
    (path,) = paths
    with MatrixFile(path) as source:

        def run(setup: Setup) -> Fit | None:
            fit = replace(fitting, setup=setup).run(source.matrix, Path(path).name)
            source.check_unchanged()
            return fit

        _make_model(run, out, fitting)


def _make_model(run: Callable[[Setup], Fit | None], out: Path, fitting: Fitting | VectorFitting) -> None:
    started = time.monotonic()
    check_out(out)
    setup, checkpoints = fitting.setup, out.with_name(out.name + ".training")
    try:
        fit = run(replace(setup, checkpoints=checkpoints))
        if fit is None:
            whole = "read the corpus once, " if fitting.options.stream else ""
            say(f"dry run: would {whole}fit {fitting.options.method} and write {out}")
            return
        mark = fit.save(out, setup.reference)
    except KeyboardInterrupt as stop:
        if checkpoints.is_dir():
            add_note(stop, f"checkpoints of the flow are in {checkpoints}; the same command with --resume continues")
        raise
    shutil.rmtree(checkpoints, ignore_errors=True)
    for line in (*fit.choice.reasons, *(f"WARNING: {doubt}" for doubt in fit.doubts)):
        setup.voice.say(line)
    seconds = time.monotonic() - started
    setup.voice.say(f"{out}: {calibration.describe(fit.stages)}, fingerprint {mark[:16]}, {seconds:.0f} s")
    table = summary.make_table(fit.measures, summary.name_source(fit.encoder))
    click.echo("\n".join([table, *summary.write_notes(fit.measures, fit.stages, fit.unit), fit.verdict]))
