"""``fastflow-train``, also ``fastflow train``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fastflow.commands import QUIET, Command, corpus_options
from fastflow.console import plain_errors
from fastflow.train.options import TrainOptions, add_options, check_extra, make_options, name_grouped
from fastflow.version import __version__

if TYPE_CHECKING:
    from fastflow.files.read import InputFormat


class TrainCommand(Command):
    """A command that reports a failure in one sentence."""

    def invoke(self, ctx: click.Context) -> Any:
        return plain_errors(super().invoke, ctx, bool(ctx.params.pop("debug")))


@click.command(cls=TrainCommand, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("corpus", nargs=-1, required=True, metavar="CORPUS...|-")
@click.option(
    "--encoder",
    metavar="DIR_OR_HUB_ID",
    help="A BERT-family encoder, or a token table, required for texts: a directory or a Hub id; 'untuned', 'small', "
    "'static', 'multilingual' are in the package. The model holds a copy. Only one given by its Hub id is downloaded.",
)
@click.option(
    "--reference-encoder",
    is_flag=True,
    help="Store the encoder's Hub id and revision, not a copy: the model needs the encoder in the local Hub cache.",
)
@click.option(
    "-o", "--output", "out", metavar="DIR", required=True, type=click.Path(path_type=Path), help="The model to make."
)
@add_options(TrainOptions)
@click.option(
    "--groups",
    metavar="FIELD",
    help="The column of each text's group, such as its language: the method groups removes the directions between the "
    "groups' means. Of VECTORS.npy: a .txt file, a group a line. Without it --method groups takes each CORPUS file as "
    "a group.",
)
@corpus_options
@click.option(
    "--cache-folder",
    metavar="DIR",
    help="Keep pooled embeddings there; an interrupted pass of the encoder continues by itself. "
    "'fastflow cache' lists and removes them.  [default: ~/.cache/fastflow]",
)
@click.option("--resume", is_flag=True, help="Flow: continue from the last checkpoint of an interrupted run.")
@click.option(
    "--eval",
    "pairs",
    multiple=True,
    metavar="PAIRS.tsv|DIR",
    type=click.Path(exists=True, path_type=Path),
    help="Scored pairs: print Spearman x100 of raw pooling, of token weights only, of the calibrated embeddings "
    "and, with --encoder untuned, of the packaged models; then whether the calibration is better or worse.",
)
@click.option("--log-dir", metavar="DIR", help="Write TensorBoard scalars there.")
@click.option("--dry-run", is_flag=True, help="Read everything, print the plan, and stop.")
@QUIET
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, "-V", "--version")
def train(
    corpus: tuple[str, ...],
    encoder: str | None,
    groups: str | None,
    out: Path,
    pairs: tuple[Path, ...],
    layout: Callable[[], InputFormat],
    cache_folder: str | None,
    log_dir: str | None,
    resume: bool,
    dry_run: bool,
    reference_encoder: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Calibrate a frozen encoder on a corpus (also fastflow-train).

    No labels are needed. A CORPUS is .txt (one text a line), .tsv, .csv, .jsonl, .json or .parquet, also as .gz or
    .zst; - is standard input. A pairs file counts as two texts a row. Repeated texts count once.

    \b
    fastflow-train examples/novels.txt --encoder untuned -o my-model
    fastflow-train CORPUS.txt --encoder ./YOUR-BERT -o my-model --eval PAIRS.tsv
    fastflow-train VECTORS.npy -o my-model

    VECTORS.npy is a matrix (N, D) of float16, float32 or float64. It takes no --encoder, and options that need an
    encoder or texts are refused.

    The defaults of a flow are the paper's schedule for a corpus of the texts to be embedded: one epoch at 1e-3. For a
    large general corpus the paper used 0.15 epochs at 2e-5. More epochs raise the likelihood and can ruin the
    similarity. By default a rule that needs no labels therefore picks the step.
    """
    from fastflow.files.read.matrix import is_matrix_file

    ctx = click.get_current_context()
    if encoder is None and not any(map(is_matrix_file, corpus)):
        raise click.MissingParameter(ctx=ctx, param=next(p for p in train.params if p.name == "encoder"))
    check_extra("fastflow-train", not quiet)
    from fastflow.cache_folder import cache_directory
    from fastflow.train.command import train as train_texts
    from fastflow.train.command import train_vectors
    from fastflow.train.pipeline.fit import RunConfig
    from fastflow.train.pipeline.vectors import choose_vector_options
    from fastflow.train.reporter import COMMAND, WARNINGS

    by_file = options["method"].startswith("groups") and len(corpus) > 1
    options["method"] = name_grouped(options["method"], groups is not None or by_file)
    config = RunConfig(WARNINGS if quiet else COMMAND, log_dir=log_dir, resume=resume, dry_run=dry_run)
    if encoder is None or any(map(is_matrix_file, corpus)):
        train_vectors(corpus, out, choose_vector_options(options, _list_asked(ctx)), config, groups)
        return
    config = replace(config, cache=cache_directory(cache_folder), reference=reference_encoder)
    train_texts(corpus, layout(), out, encoder, make_options(options), config, pairs, groups)


def _list_asked(ctx: click.Context) -> list[str]:
    given = [p for p in ctx.command.params if ctx.get_parameter_source(str(p.name)) is not ParameterSource.DEFAULT]
    names = [p.opts[-1].removeprefix("--").replace("-", "_") for p in given if isinstance(p, click.Option)]
    return [name for name in names if name not in ("output", "dry_run", "quiet", "debug", "groups")]
