"""``fastflow distill``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fastflow.commands.options import QUIET, corpus_options

if TYPE_CHECKING:
    from fastflow.files.read.records import Layout


@click.command()
@click.argument("model")
@click.argument("corpus", nargs=-1, required=True, metavar="CORPUS...|-")
@click.option(
    "-o", "--output", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The model to make."
)
@click.option("--dim", type=click.IntRange(1), metavar="N", help="Numbers of a vector.  [default: the model's]")
@click.option(
    "--words",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Rows of their own for the N most frequent words of the corpus that the tokenizer cuts into pieces. Other "
    "words are cut as before.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "int8"]),
    default="float32",
    help="How the table is stored.",
)
@click.option(
    "--penalty",
    type=click.FloatRange(0, min_open=True),
    metavar="F",
    help="How closely the table stays at its prior.  [default: what follows the model best on held-out sentences]",
)
@click.option("--sentences", is_flag=True, help="Cut texts into sentences first.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Chooses the sentences that are held out.")
@corpus_options
@click.option("--resume", is_flag=True, help="Continue an interrupted run, which left DIR.distilling.")
@QUIET
def distill(
    model: str,
    corpus: tuple[str, ...],
    output: Path,
    dim: int | None,
    words: int,
    dtype: str,
    penalty: float | None,
    sentences: bool,
    seed: int,
    layout: Callable[[], Layout],
    resume: bool,
    quiet: bool,
) -> None:
    """Make a token table of a model, which embeds a text in microseconds.

    MODEL is any model of texts that fastflow runs; 'default' and 'static' are those in the package. A text's vector is
    the mean of its tokens' vectors. A ridge regression fits these to the model's vectors of the sentences of CORPUS,
    without labels. The texts are read once and may be of any number; give tens of thousands of sentences of the kinds
    that you will embed. Printed is how closely the table follows the model: the mean cosine of held-out sentences.

    \b
    fastflow distill default examples/novels.txt -o my-table
    fastflow distill ./all-MiniLM-L6-v2 CORPUS.txt -o my-table --dim 256 --dtype int8
    """
    from fastflow.train.options import check_extra

    check_extra("fastflow distill", not quiet)
    from fastflow.train.distil.run import Settings, distil_files
    from fastflow.train.progress import COMMAND, WARNINGS

    settings = Settings(dim, words, dtype, penalty, sentences, seed)
    distil_files(model, corpus, layout(), output, settings, WARNINGS if quiet else COMMAND, resume)
