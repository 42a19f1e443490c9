"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

MODEL = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="Directory of a model, of Sentence Transformers, or of a Hugging Face encoder, or its Hub id once downloaded. "
    "[default: the one in the package]",
)
QUIET = click.option("--quiet", is_flag=True, help="No progress and no summary.")
DEVICE = click.option("--device", default="auto", help="auto, cpu or cuda.")
DTYPE = click.option(
    "--dtype", default="auto", help="The encoder's arithmetic: auto, float32, bfloat16, int8, float16 (GPU) or float64."
)
THREADS = click.option(
    "--threads",
    type=int,
    help="Threads to compute with. [default: OMP_NUM_THREADS, else the cores this process may use]",
)
DELIMITER = click.option(
    "--delimiter", metavar="C", help="The character between the columns of a csv or tsv.  [default: read off line 1]"
)
NO_HEADER = click.option(
    "--no-header", is_flag=True, help="Line 1 of a csv or tsv is data; its columns are called 1, 2, 3 ..."
)
KEEP = click.option(
    "--keep",
    metavar="F,...",
    multiple=True,
    help="Fields to carry along into .jsonl, .parquet, .npz or .db; may be repeated.",
)
NULL = click.option(
    "-0", "--null", is_flag=True, help="The texts of a .txt end with NUL, as xargs -0 and find -print0 have it."
)
FORMAT = click.option("--format", metavar="F", help="txt, tsv, csv, jsonl or parquet.  [default: by the suffix]")
ERRORS = click.option(
    "--errors",
    type=click.Choice(["strict", "replace"]),
    default="strict",
    help="strict: bytes that are not UTF-8 are an error; replace: they become U+FFFD.",
)

RAY = click.option(
    "--ray",
    metavar="ADDRESS|local",
    help="Embed Parquet files on the cluster of Ray at ADDRESS, or on the cores of this machine, into the folder -o. "
    "Rows come in no order and carry their number in the column 'row'. Needs the ray extra; see docs/ray.md.",
)


def output_option(help: str) -> Callable[[Any], Any]:
    """-o OUT, a file that the command writes."""
    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option("-o", "--output", required=True, metavar="OUT", type=kind, help=help)
