"""The options that several commands share."""

from __future__ import annotations

import click

MODEL = click.option(
    "-m", "--model", metavar="MODEL", help="Model or Hugging Face encoder directory. [default: the one in the package]"
)
DEVICE = click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
DTYPE = click.option(
    "--dtype",
    default="auto",
    show_default=True,
    help="The encoder's arithmetic: auto, float32, bfloat16, int8, float16 (GPU) or float64.",
)
THREADS = click.option(
    "--threads",
    type=int,
    help="Threads to compute with. [default: OMP_NUM_THREADS, else the cores this process may use]",
)
