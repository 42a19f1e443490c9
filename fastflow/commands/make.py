"""``fastflow distill``, ``fastflow export`` and ``fastflow transform``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastflow import commands as shared
from fastflow.console import introduce, open_runtime, say

if TYPE_CHECKING:
    from fastflow.files.read import InputFormat


@click.command(cls=shared.Command)
@click.argument("model")
@click.argument("corpus", nargs=-1, required=True, metavar="CORPUS...|-")
@shared.output_option("The model to make.", folder=True)
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
@click.option("--layers", type=click.IntRange(0), default=0, metavar="N", help="Make a BERT of N layers.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    help="Of --layers: how long to train, after MODEL has embedded the corpus.",
)
@click.option(
    "--start",
    metavar="MODEL",
    help="Of --layers: a token table, or a model that --layers made, to begin at.  [default: a table of the corpus]",
)
@shared.corpus_options
@click.option("--resume", is_flag=True, help="Continue an interrupted run, which left DIR.distilling.")
@shared.QUIET
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
    layers: int,
    minutes: float,
    start: str | None,
    layout: Callable[[], InputFormat],
    resume: bool,
    quiet: bool,
) -> None:
    """Make a token table of a model, which embeds a text in microseconds, or a BERT of a few layers.

    MODEL is any model of texts that fastflow runs; 'fastflow models' lists those in the package. A text's vector is
    the mean of its tokens' vectors. A ridge regression fits these to the model's vectors of the sentences of CORPUS,
    without labels. The texts are read once; give tens of thousands of sentences of the kinds that you will embed. The
    mean cosine of held-out sentences is printed: how closely the table follows the model.

    With --layers N the table gets N layers, which read the order of words; they are trained for --minutes, on a GPU if
    there is one. Sentence Transformers opens that model.

    \b
    fastflow distill untuned examples/novels.txt -o my-table
    fastflow distill ./all-MiniLM-L6-v2 CORPUS.txt -o my-table --dim 256 --dtype int8
    fastflow distill ./all-MiniLM-L6-v2 CORPUS.txt -o my-small --dim 256 --layers 3 --minutes 60
    """
    from fastflow.train.options import check_extra

    check_extra("fastflow distill", not quiet)
    from fastflow.train.distil.deep import distil_files
    from fastflow.train.distil.run import DistilOptions
    from fastflow.train.reporter import COMMAND, WARNINGS

    settings = DistilOptions(dim, words, dtype, penalty, sentences, seed, layers, minutes, start)
    distil_files(model, corpus, layout(), output, settings, WARNINGS if quiet else COMMAND, resume)


@click.command(cls=shared.Command)
@click.argument("model")
@click.option(
    "--to",
    required=True,
    type=click.Choice(["st", "onnx", "model2vec", "adapter"]),
    help="st: a directory of Sentence Transformers; onnx: one graph from token ids to the embedding, for ONNX Runtime "
    "and fastembed; model2vec: of a token table; adapter: a calibrated model without the weights of its encoder.",
)
@shared.output_option("The directory to make.", folder=True)
@click.option("--dim", type=click.IntRange(1), metavar="N", help="Keep N numbers of a vector, as embed --dim does.")
@click.option("--normalize", is_flag=True, help="Vectors of length 1, as embed --normalize gives them.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "int8"]),
    default="float32",
    help="Of onnx: how the encoder multiplies, and a table of tokens is stored.",
)
def export(model: str, to: str, output: Path, dim: int | None, normalize: bool, dtype: str) -> None:
    """Write a model in the format of another library.

    MODEL is any model of texts that fastflow runs; 'fastflow models' lists those in the package. A part that the format
    cannot hold is an error.

    \b
    fastflow export default --to st -o default-st
    fastflow verify default --with st default-st
    fastflow export default --to onnx -o default-onnx --dtype int8
    """
    from fastflow.exports.export import export as write

    made = write(model, to, output, dim, normalize, dtype)
    say(f"fastflow: {made.dim} numbers a vector, {made.size / 1e6:.1f} MB; written to {made.path}")


@click.command(cls=shared.Command)
@click.argument("vectors", metavar="VECTORS.npy")
@shared.MODEL
@shared.output_option("OUT.npy.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float64"]),
    default="auto",
    help="The arithmetic; auto is float32.",
)
@shared.PRECISION
@shared.DIM
@shared.NORMALIZE
@shared.THREADS
@shared.DEVICE
@shared.RESUME
@shared.OVERWRITE
@shared.QUIET
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
    takes them; a model with an encoder takes its own pooled vectors.

    \b
    fastflow-train VECTORS.npy -o my-model
    fastflow transform VECTORS.npy -m my-model -o OUT.npy
    """
    from fastflow.commands.embed import summarise
    from fastflow.files import EmbedConfig, Run
    from fastflow.files.embed import transform_file

    runtime = open_runtime(model, device, dtype, threads, quiet=True)
    started = None if quiet else partial(introduce, runtime)
    run = Run(resume, quiet, started=started, overwrite=shared.is_overwriting())
    start, replaced = time.monotonic(), os.path.isfile(output)
    done = transform_file(runtime, vectors, output, EmbedConfig(**options), run)
    if not quiet:
        summarise(done, time.monotonic() - start, 0, output, replaced, "vectors")
