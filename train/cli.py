"""The ``fastflow-train`` command: corpus + frozen encoder -> model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fastflow.commands.options import DELIMITER, ERRORS, FORMAT, NO_HEADER
from fastflow.console import plain_errors
from fastflow.train.options import (
    BACKGROUND,
    BESIDE_A_TEXT,
    CHOICES,
    COLOURS,
    DEFAULTS,
    LARGE,
    LARGE_CORPUS,
    LEAST,
    LEVELS,
    SHARES,
    SMALL,
    Options,
    check_extra,
)  # fmt: skip
from fastflow.version import __version__


class TrainCommand(click.Command):
    """A command whose failures are one plain sentence; --debug shows the traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        return plain_errors(super().invoke, ctx, bool(ctx.params.pop("debug")))


@click.command(cls=TrainCommand, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("corpus", nargs=-1, required=True, metavar="CORPUS...|-")
@click.option(
    "--encoder",
    metavar="DIR_OR_HUB_ID",
    help="A BERT-family encoder, required for texts: a directory, a Hub id, or 'default' for the one in the package. "
    "The model holds a copy of it. Only an encoder given by its Hub id is downloaded.",
)
@click.option(
    "--reference-encoder",
    is_flag=True,
    help="Store the encoder's Hub id and revision instead of a copy: a small model that needs the encoder in the local "
    "Hub cache.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The model directory to make.")
@click.option(
    "--method",
    default=DEFAULTS.method,
    help="auto: the recommended method, which is flow; whiten,recolour with --stream, nullspace:10 for vectors, and "
    "none for an encoder that was tuned for similarity or for fewer than 1,000 texts. Else flow, whiten[:K], "
    "standardize, components[:K], nullspace[:K], none, or a chain such as whiten:128,flow.",
)
@click.option(
    "--stop",
    default=DEFAULTS.stop,
    type=click.Choice(CHOICES["stop"]),
    help="rule: keep the training step that best separates two dropout views of a text from other texts; keep no "
    "calibration if none beats the pooling itself. budget: keep the last step. likelihood, the default for vectors and "
    "for them alone: keep the step that makes held-out vectors most likely.",
)
@click.option(
    "--pooling",
    default=DEFAULTS.pooling,
    help="auto, embedding-first-last (the mean of layers 0, 1 and L, 0 being the embedding layer), first-last (1 and "
    "L, as in the paper), last, cls, pooler, mean-of-layers:I,J,... or model. auto: embedding-first-last, or last for "
    "an encoder that was tuned for similarity. model: all modules of a directory of Sentence Transformers, with the "
    "calibration behind them.",
)
@click.option(
    "--token-weights",
    default=DEFAULTS.token_weights,
    type=click.Choice(CHOICES["token_weights"]),
    help="sif: frequent tokens count less in the mean (Arora et al. 2017); a token with corpus frequency p counts "
    "a/(a+p), a = 0.001, down to 0.0003 for large corpora; the frequencies of English at large are mixed in, which "
    "decide where the corpus is small. "
    "none: every token counts 1, as in the BERT-flow paper. auto: sif, or none for an encoder that was tuned for "
    "similarity.",
)
@click.option(
    "--max-length",
    type=int,
    help="Longest text, in tokens; longer texts are cut.  [default: 128, or the encoder's limit]",
)
@click.option("--levels", default=DEFAULTS.levels, type=click.IntRange(*LEVELS), help="Flow: levels.")
@click.option(
    "--depth",
    type=click.IntRange(LEAST["depth"]),
    help="Flow: steps in a level.  "
    f"[default: {SMALL['depth']}; {LARGE['depth']} beside a background or from {LARGE_CORPUS:,} texts]",
)
@click.option(
    "--width",
    type=click.IntRange(LEAST["width"]),
    help="Flow: hidden units of a coupling net.  "
    f"[default: {SMALL['width']}; {LARGE['width']} beside a background or from {LARGE_CORPUS:,} texts]",
)
@click.option("--coupling", default=DEFAULTS.coupling, type=click.Choice(CHOICES["coupling"]), help="Flow: coupling.")
@click.option(
    "--permutation",
    default=DEFAULTS.permutation,
    type=click.Choice(CHOICES["permutation"]),
    help="Flow: channel mixing; lu is learned.",
)
@click.option(
    "--spectrum",
    type=click.FloatRange(0, SHARES["spectrum"]),
    help="Of recolour, behind a flow or a whitening: how far the spectrum is equalised. 1: every direction counts the "
    "same; 0: as in the encoder.  "
    f"[default: {COLOURS['sif']['spectrum']}; {COLOURS['none']['spectrum']} without token weights]",
)
@click.option(
    "--mean-share",
    type=click.FloatRange(0, SHARES["mean_share"]),
    help="Of recolour: how much of the mean is kept, as the average cosine of unrelated texts.  "
    f"[default: {COLOURS['sif']['mean_share']}; {COLOURS['none']['mean_share']:g} without token weights]",
)
@click.option(
    "--demoted",
    type=click.IntRange(LEAST["demoted"]),
    help="Of recolour: how many leading directions, which sentences of a kind have in common, count like the last.  "
    f"[default: {COLOURS['sif']['demoted']}]",
)
@click.option(
    "--background",
    metavar="N",
    type=click.IntRange(LEAST["background"]),
    help="Behind a flow, or another method with recolour: fit to N sentences of random common English words beside the "
    "corpus, so that texts unlike it are embedded well too; 0: none. Token weights have a background of their own.  "
    f"[default: a third of the corpus, {BACKGROUND[0]:,} to {BACKGROUND[1]:,}, but at most {BESIDE_A_TEXT} for each "
    "text; 0 if the corpus is not English]",
)
@click.option("--latent", is_flag=True, help="Flow: the Gaussian latent is the embedding, as in the BERT-flow paper.")
@click.option(
    "--init",
    default=DEFAULTS.init,
    type=click.Choice(CHOICES["init"]),
    help="Flow: data starts the ActNorms from the statistics of the corpus; glorot is the start of the official code.",
)
@click.option("--encoder-dropout", is_flag=True, help="Flow: run the encoder, with its dropout, at every step (slow).")
@click.option(
    "--epochs",
    default=DEFAULTS.epochs,
    type=click.FloatRange(0, min_open=True),
    help="Flow: passes over the corpus, or a part of one.",
)
@click.option(
    "--batch-size", default=DEFAULTS.batch_size, type=click.IntRange(LEAST["batch_size"]), help="Flow: texts in a step."
)
@click.option(
    "--lr", default=DEFAULTS.lr, type=click.FloatRange(0, min_open=True), help="Flow: learning rate, constant."
)
@click.option(
    "--seed",
    default=DEFAULTS.seed,
    type=click.IntRange(LEAST["seed"]),
    help="Seed of --sample, and of a flow's start and order of texts.",
)
@click.option(
    "--sample", metavar="N", type=click.IntRange(LEAST["sample"]), help="Draw N of the distinct texts at random."
)
@click.option(
    "--sentences", is_flag=True, help="Cut texts into sentences first, for a model that will embed sentences."
)
@click.option(
    "--stream",
    is_flag=True,
    help="Read the corpus once, in memory that does not grow with it, and cache nothing. Repeated texts count again. "
    "Token weights come from the first 32,768 texts. For every method but a flow.",
)
@click.option(
    "--text-field", metavar="F", help="The column that holds the text.  [default: text or sentence, or both of a pair]"
)
@FORMAT
@DELIMITER
@NO_HEADER
@ERRORS
@click.option(
    "--cache",
    metavar="DIR",
    help="Keep pooled embeddings there; an interrupted pass of the encoder continues by itself. "
    "'fastflow cache' lists and removes them.  [default: ~/.cache/fastflow]",
)
@click.option("--resume", is_flag=True, help="Flow: continue from the last checkpoint of an interrupted run.")
@click.option(
    "--save-steps",
    default=DEFAULTS.save_steps,
    type=click.IntRange(LEAST["save_steps"]),
    help="Flow: steps between checkpoints; 0 for none.",
)
@click.option(
    "--eval",
    "pairs",
    multiple=True,
    metavar="PAIRS.tsv|DIR",
    type=click.Path(exists=True, path_type=Path),
    help="Scored pairs: print Spearman x100 of raw pooling, of the weighted pooling, and of the calibrated embeddings.",
)
@click.option("--device", default=DEFAULTS.device, type=click.Choice(CHOICES["device"]), help="Where the encoder runs.")
@click.option(
    "--ray",
    metavar="ADDRESS|local",
    help="Count and embed on the cluster of Ray at ADDRESS, or on the cores of this machine: closed forms, as with "
    "--stream, are fitted to all texts, a flow to --sample N of them (100,000). The corpus is read twice, and "
    "--cache keeps nothing. Needs the ray extra.",
)
@click.option("--log-dir", metavar="DIR", help="Write TensorBoard scalars there.")
@click.option("--dry-run", is_flag=True, help="Read everything, print the plan, and stop.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__)
def main(
    corpus: tuple[str, ...],
    encoder: str | None,
    out: Path,
    pairs: tuple[Path, ...],
    format: str | None,
    text_field: str | None,
    delimiter: str | None,
    no_header: bool,
    errors: str,
    cache: str | None,
    log_dir: str | None,
    resume: bool,
    dry_run: bool,
    reference_encoder: bool,
    ray: str | None,
    **options: Any,
) -> None:
    """Calibrate a frozen encoder on a corpus, or vectors made elsewhere, without labels.

    A CORPUS is .txt (one text a line), .tsv, .csv, .jsonl or .parquet, also as .gz or .zst; - is standard input. A
    pairs file counts as two texts a row. Repeated texts count once.

    \b
    fastflow-train examples/novels.txt --encoder default --out my-model
    fastflow-train CORPUS.txt --encoder ./YOUR-BERT --out my-model --eval PAIRS.tsv
    fastflow-train VECTORS.npy --out my-model

    VECTORS.npy is a matrix (N, D) of float16, float32 or float64. It takes no --encoder: the model calibrates vectors
    alone, and options that need an encoder or texts are refused.

    The defaults of a flow are the paper's schedule for a corpus of the texts to be embedded: one epoch at 1e-3. For a
    large general corpus the paper used --lr 2e-5 --epochs 0.15. More epochs raise the likelihood and can ruin the
    similarity. By default a rule that needs no labels therefore picks the step (--stop).
    """
    from fastflow.files.read.matrix import is_matrix_file

    ctx = click.get_current_context()
    if encoder is None and not any(map(is_matrix_file, corpus)):
        raise click.MissingParameter(ctx=ctx, param=next(p for p in main.params if p.name == "encoder"))
    check_extra("fastflow-train")
    from fastflow.files.read.records import Layout
    from fastflow.files.read.tables import check_delimiter
    from fastflow.files.reuse.cache import cache_directory
    from fastflow.train.fits.vectors import vector_options
    from fastflow.train.reading import Run
    from fastflow.train.run import train, train_vectors

    if encoder is None or any(map(is_matrix_file, corpus)):
        chosen = vector_options(options, _asked(ctx))
        train_vectors(corpus, out, chosen, Run(log_dir=log_dir, resume=resume, dry_run=dry_run))
        return
    layout = Layout(format, text_field, None, errors, check_delimiter(delimiter), not no_header)
    run = Run(
        cache=cache_directory(cache), log_dir=log_dir, resume=resume, dry_run=dry_run, reference=reference_encoder
    )
    train(corpus, layout, encoder, out, Options(**options), run, pairs, ray)


def _asked(ctx: click.Context) -> list[str]:
    """The options that were given, but those that decide where things go and how much is done."""
    given = [p for p in ctx.command.params if ctx.get_parameter_source(str(p.name)) is not ParameterSource.DEFAULT]
    names = [p.opts[0].removeprefix("--").replace("-", "_") for p in given if isinstance(p, click.Option)]
    return [name for name in names if name not in ("out", "log_dir", "resume", "dry_run", "debug")]
