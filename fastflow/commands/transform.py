"""``fastflow transform``: vectors made elsewhere to calibrated ones."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from fastflow.commands.embed import summarise
from fastflow.commands.options import (
    DEVICE,
    DIM,
    MODEL,
    NORMALIZE,
    PRECISION,
    QUIET,
    RANGES,
    RESUME,
    THREADS,
    output_option,
)
from fastflow.console import introduce, open_runtime


@click.command()
@click.argument("vectors", metavar="VECTORS.npy")
@MODEL
@output_option("OUT.npy.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float64"]),
    default="auto",
    help="The arithmetic; auto is float32.",
)
@PRECISION
@RANGES
@DIM
@NORMALIZE
@THREADS
@DEVICE
@RESUME
@QUIET
def transform(
    vectors: str,
    model: str | None,
    output: Path,
    device: str,
    dtype: str,
    threads: int | None,
    resume: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Calibrate vectors that were made elsewhere.

    Memory does not grow with the file. Row i of the output is row i of the input.

    VECTORS.npy is a matrix (N, D) of float16, float32 or float64. A model that fastflow-train fitted to such vectors
    takes them, and so does a model with an encoder, if they are its own pooled vectors.

    \b
    fastflow-train VECTORS.npy -o my-model
    fastflow transform VECTORS.npy -m my-model -o OUT.npy
    """
    from fastflow.files.run import Run, Settings
    from fastflow.files.transform import transform_file

    runtime = open_runtime(model, device, dtype, threads, quiet=True)
    run = Run(resume, quiet, started=None if quiet else partial(introduce, runtime))
    start, replaced = time.monotonic(), os.path.isfile(output)
    done = transform_file(runtime, vectors, output, Settings(**options), run)
    if not quiet:
        summarise(done, time.monotonic() - start, 0, output, replaced, "vectors")
