"""The body of fastflow-train: files -> a fit -> a model directory, and what is printed about it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from fastflow.console import say
from fastflow.files.records import Layout
from fastflow.stages import calibration
from fastflow.train.data.corpus import read_texts
from fastflow.train.fitting import Run, calibrate
from fastflow.train.options import Options
from fastflow.train.ship import summary
from fastflow.train.ship.export import check_out
from fastflow.train.ship.fit import Fit


def train(
    paths: Sequence[str], layout: Layout, encoder: str, out: Path, options: Options, run: Run, pairs: Sequence[Path]
) -> None:
    """Fit on the texts of ``paths`` and write the model to ``out``; checkpoints of a flow lie beside it meanwhile."""
    started = time.monotonic()
    check_out(out)
    names = [Path(path).name for path in paths]
    checkpoints = checkpoints_of(out)
    try:
        run = replace(run, checkpoints=checkpoints)
        fit = calibrate(read_texts(paths, layout), names, encoder, options, run, pairs)
        if fit is None:
            whole = "read the corpus once, " if options.stream else ""
            say(f"dry run: would {whole}fit {options.method} and write {out}")
            return
        mark = fit.save(out, run.reference)
    except KeyboardInterrupt:
        if checkpoints.is_dir():
            say(f"fastflow: checkpoints of the flow are in {checkpoints}; the same command with --resume continues")
        raise
    shutil.rmtree(checkpoints, ignore_errors=True)
    _print(fit)
    say(f"{out}: {calibration.describe(fit.stages)}, fingerprint {mark[:16]}, {time.monotonic() - started:.0f} s")


def checkpoints_of(out: Path) -> Path:
    """Where checkpoints of the flow of ``out`` are kept until it is whole."""
    return out.with_name(out.name + ".training")


def _print(fit: Fit) -> None:
    """The table on standard output; reasons and warnings on standard error."""
    click.echo("\n".join([summary.table(fit.measures), *summary.notes(fit.measures, fit.stages)]))
    for reason in fit.choice.reasons:
        say(reason)
    for warning in summary.warnings(fit.measures, fit.stages):  # those of the texts have been said
        say(f"WARNING: {warning}")
