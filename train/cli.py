"""The ``fastflow-train`` command: corpus + frozen encoder -> model directory."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import click

from fastflow import __version__
from fastflow.console import plain_errors, say
from fastflow.errors import FastflowError, UsageError, missing_extra

PARAGRAPH = 40  # words: with tokens alike, no fit on Wikipedia's paragraphs beats raw pooling of sentences (study.md)


class TrainCommand(click.Command):
    """A command whose failures are one plain sentence; --debug shows the traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        return plain_errors(super().invoke, ctx, bool(ctx.params.pop("debug")))


@click.command(cls=TrainCommand, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("corpus", nargs=-1, required=True, metavar="CORPUS...|-")
@click.option(
    "--encoder",
    required=True,
    metavar="DIR_OR_HUB_ID",
    help="A BERT-family encoder: a directory, a Hub id, or 'default' for the one in the package. The model holds a "
    "copy of it. Nothing is downloaded but a Hub id.",
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
    default="auto",
    help="auto: the recommended method, components:1, or without token weights the best of several by --stop's rule. "
    "Else flow, whiten[:K], standardize, components[:K], nullspace[:K], none, or a chain such as whiten:128,flow.",
)
@click.option(
    "--stop",
    default="rule",
    type=click.Choice(["rule", "budget"]),
    help="rule: keep the training step that best separates two dropout views of a text from other texts; keep no "
    "calibration if none beats raw pooling. budget: keep the last step.",
)
@click.option(
    "--pooling", default="first-last", help="first-last (layers 1 and L), last, cls, pooler or mean-of-layers:I,J,..."
)
@click.option(
    "--token-weights",
    "weighting",
    default="sif",
    type=click.Choice(["sif", "none"]),
    help="sif: frequent tokens count less in the mean (Arora et al. 2017); a token with corpus frequency p counts "
    "a/(a+p), a = 0.001. none: every token counts 1, as in the BERT-flow paper.",
)
@click.option("--max-length", type=int, help="Tokens of the longest text.  [default: 128, or the encoder's limit]")
@click.option("--levels", default=2, type=click.IntRange(1, 4), help="Flow: levels.")
@click.option("--depth", default=3, type=click.IntRange(1), help="Flow: steps in a level.")
@click.option("--width", default=32, type=click.IntRange(1), help="Flow: hidden units of a coupling net.")
@click.option("--coupling", default="additive", type=click.Choice(["additive", "affine"]), help="Flow: coupling.")
@click.option(
    "--permutation",
    default="reversal",
    type=click.Choice(["reversal", "random", "lu"]),
    help="Flow: channel mixing; lu is learned.",
)
@click.option(
    "--init",
    default="data",
    type=click.Choice(["data", "glorot"]),
    help="Flow: data starts the ActNorms from the corpus; glorot is the start of the official code.",
)
@click.option("--encoder-dropout", is_flag=True, help="Flow: run the encoder, with its dropout, at every step (slow).")
@click.option(
    "--epochs",
    default=1.0,
    type=click.FloatRange(0, min_open=True),
    help="Flow: passes over the corpus, or a part of one.",
)
@click.option("--batch-size", default=64, type=click.IntRange(2), help="Flow: texts in a step.")
@click.option("--lr", default=1e-3, type=click.FloatRange(0, min_open=True), help="Flow: learning rate, constant.")
@click.option(
    "--seed",
    default=0,
    type=click.IntRange(0),
    help="Decides --sample, a flow's start and its order of texts.",
)
@click.option("--sample", metavar="N", type=click.IntRange(1), help="Draw N of the distinct texts at random.")
@click.option("--sentences", is_flag=True, help="Cut texts into sentences first; for a model of sentences.")
@click.option(
    "--stream",
    is_flag=True,
    help="Read the corpus once, in memory that does not grow with it, and cache nothing. Repeated texts count again. "
    "Token weights come from the first 32,768 texts. For every method but a flow.",
)
@click.option(
    "--text-field", metavar="F", help="The column that holds the text.  [default: text or sentence, or both of a pair]"
)
@click.option("--format", metavar="F", help="txt, tsv, csv or jsonl.  [default: by the suffix]")
@click.option("--delimiter", metavar="C", help="What separates the columns of a csv or tsv.  [default: by line 1]")
@click.option("--no-header", is_flag=True, help="Line 1 of a csv or tsv is data; its columns are called 1, 2, 3 ...")
@click.option(
    "--errors",
    type=click.Choice(["strict", "replace"]),
    default="strict",
    help="What to do with bytes that are not UTF-8.",
)
@click.option(
    "--cache",
    metavar="DIR",
    help="Where pooled embeddings are kept; an interrupted pass of the encoder continues there by itself. "
    "'fastflow cache' lists and removes them.  [default: ~/.cache/fastflow]",
)
@click.option("--resume", is_flag=True, help="Flow: continue from the last checkpoint of an interrupted run.")
@click.option("--save-steps", default=500, type=click.IntRange(0), help="Flow: steps between checkpoints; 0 for none.")
@click.option(
    "--eval",
    "pairs",
    multiple=True,
    metavar="PAIRS.tsv|DIR",
    type=click.Path(exists=True, path_type=Path),
    help="Scored pairs: print Spearman of raw pooling, and of the weighted pooling before and after the calibration.",
)
@click.option("--device", default="cpu", type=click.Choice(["cpu", "cuda"]), help="Where the encoder runs.")
@click.option("--log-dir", metavar="DIR", help="Write TensorBoard scalars there.")
@click.option("--dry-run", is_flag=True, help="Read everything, print the plan, and stop.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__)
def main(**options: Any) -> None:
    """Calibrate a frozen encoder on a corpus, without labels.

    A CORPUS is .txt (one text a line), .tsv, .csv or .jsonl, also gzipped; - is standard input. A pairs file counts as
    two texts a row. Repeated texts count once.

    \b
    fastflow-train examples/novels.txt --encoder default --out my-model
    fastflow-train CORPUS.txt --encoder ./YOUR-BERT --out my-model --eval PAIRS.tsv

    The defaults of a flow are the paper's schedule for a corpus of the texts to be embedded: one epoch at 1e-3. For a
    large general corpus the paper used --lr 2e-5 --epochs 0.15. More epochs raise the likelihood and can ruin the
    similarity. By default a rule that needs no labels therefore picks the step (--stop).
    """
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise missing_extra("train", str(error.name), "fastflow-train") from error
    try:
        _train(**options)
    except KeyboardInterrupt:
        if (checkpoints := _checkpoints(options["out"])).is_dir():
            say(f"fastflow: checkpoints of the flow are in {checkpoints}; the same command with --resume continues")
        raise


def _checkpoints(out: Path) -> Path:
    return out.with_name(out.name + ".training")


def _train(corpus: tuple[str, ...], encoder: str, out: Path, method: str, pairs: tuple[Path, ...], **o: Any) -> None:
    from fastflow.backends.choose import cannot_run
    from fastflow.evaluation.evaluate import find_sets
    from fastflow.files.records import Layout
    from fastflow.files.tables import check_delimiter
    from fastflow.model.fragmentation import unsuited
    from fastflow.model.tokens import Tokenizer
    from fastflow.stages import calibration
    from fastflow.train.choice.selection import Choice, candidates, choose
    from fastflow.train.choice.separability import make_views
    from fastflow.train.data.corpus import corpus_hash, read_corpus, stream_corpus
    from fastflow.train.data.embeddings import Embedder, cache_directory, cache_key, embed_corpus, open_encoder
    from fastflow.train.data.moments import read_through
    from fastflow.train.data.token_weights import weigh, weigh_by_first
    from fastflow.train.methods.chain import SAMPLE, Fitted, check_chain, fit, parse_method
    from fastflow.train.methods.loop import Schedule
    from fastflow.train.methods.scalars import Scalars
    from fastflow.train.ship import summary as report
    from fastflow.train.ship.export import check_out, check_reference, export

    started = time.monotonic()
    check_out(out)
    if reason := cannot_run("torch", o["device"]):
        raise reason
    if method == "auto" and o["stop"] == "budget":
        raise UsageError("--method auto chooses by the rule: name another --method to go with --stop budget")
    layout = Layout(
        o["format"], o["text_field"], None, o["errors"], check_delimiter(o["delimiter"]), not o["no_header"]
    )
    schedule = Schedule(**{name: o[name] for name in ("epochs", "batch_size", "lr", "seed", "init", "save_steps")})
    shape = {name: o[name] for name in ("levels", "depth", "width", "coupling", "permutation")}
    links = [] if method == "auto" else parse_method(method)
    frozen = open_encoder(encoder, o["pooling"], o["max_length"])
    if o["reference_encoder"]:
        check_reference(frozen)
    weighted = o["weighting"] == "sif" and frozen.pooling.mode == "mean"
    tried = candidates(weighted) if method == "auto" else (method,)
    has_flow = any("flow" in name for name in tried)
    if o["stream"] and (has_flow or o["sample"]):
        raise UsageError("--stream is for closed forms; a flow, which auto tries too, needs --sample N instead")
    if method == "auto":
        say(f"auto: tries none, {', '.join(tried)}")
    check_chain(links, frozen.dim, shape)
    sets = find_sets(pairs) if pairs else []
    if o["stream"]:
        if o["dry_run"]:
            say(f"dry run: would read the corpus once, fit {method} and write {out}")
            return
        every = stream_corpus(corpus, layout, o["sentences"])
        if weighted:
            frozen, every = weigh_by_first(frozen, every)
        streamed = read_through(every, Embedder(frozen, o["device"]), SAMPLE, o["seed"])
        texts, pooled, statistics = streamed.texts, streamed.pooled, streamed.moments
        count, digest = statistics.count, streamed.sha256
        say(f"corpus: {count} texts, read once; {len(texts)} of them kept to measure on")
    else:
        texts, statistics = read_corpus(corpus, layout, o["sample"], o["seed"], o["sentences"]), None
        count, digest = len(texts), corpus_hash(texts)
        if weighted:
            frozen = weigh(frozen, texts)
    steps = schedule.steps(count) if has_flow and (method != "auto" or count >= schedule.batch_size) else 0
    if count < 2:
        raise FastflowError("the corpus holds a single distinct text, which shows nothing to calibrate; give more text")
    if not o["stream"]:
        say(f"corpus: {count} distinct texts; encoder: {frozen.dim} dimensions, {frozen.pooling.describe()}")
    words = sum(len(text.split()) for text in texts) / len(texts)
    unharmed = method == "none" or (weighted and method == "auto")  # the latter as good as cut (token-weights.md)
    if words > PARAGRAPH and not unharmed:
        say(
            f"WARNING: these texts have {words:.0f} words on average, and a calibration fitted on paragraphs may harm "
            "sentences: if you will embed sentences, use --sentences"
        )
    if warning := unsuited(Tokenizer(frozen.directory, frozen.max_length), texts):
        say(f"WARNING: {warning}")
    if steps:
        say(
            f"flow: {steps} steps of {schedule.batch_size} texts; "
            "embeddings are continuous, so negative bits per dimension are in order"
        )
    if o["dry_run"]:
        say(f"dry run: would fit {method} and write {out}")
        return
    names = [Path(path).name for path in corpus]
    if not o["stream"]:
        pooled = embed_corpus(texts, frozen, cache_directory(o["cache"]), o["device"], ", ".join(names))
    checkpoints = _checkpoints(out)
    live = _live(texts, frozen, o["device"]) if o["encoder_dropout"] and has_flow else None
    identity = f"{cache_key(frozen, texts, o['device'])} {{}} dropout={o['encoder_dropout']}"
    views = make_views(texts, frozen, o["device"], o["seed"]) if o["stop"] == "rule" and method != "none" else None
    with Scalars(o["log_dir"]) as log:

        def once(name: str) -> Fitted:
            where = (checkpoints, identity.format(name), o["resume"])
            return fit(parse_method(name), pooled, shape, schedule, live, *where, log, views, statistics)

        choice = choose(method, weighted, once, views) if views else Choice(once(method), method)
    fitted = choice.fitted
    measures = report.before_and_after(fitted, pooled, choice.views)
    if sets:
        measures["spearman"] = report.spearman(fitted, frozen, sets, o["device"])
    training = {
        "corpus": names, "texts": count, "corpus_sha256": digest,
        "method": method, "schedule": vars(schedule), "encoder_dropout": o["encoder_dropout"],
        "streamed": o["stream"], "sentences": o["sentences"], "stop": o["stop"],
        "choice": choice.record, "reasons": choice.reasons, **measures,
    }  # fmt: skip
    if frozen.hub_id:
        training["encoder"] = {"hub_id": frozen.hub_id, "revision": frozen.revision}
    card = report.card(frozen, fitted.stages, training, measures, o["reference_encoder"])
    mark = export(out, frozen, fitted, training, card, texts, pooled, o["reference_encoder"])
    shutil.rmtree(checkpoints, ignore_errors=True)
    click.echo("\n".join([report.table(measures), *report.notes(measures, fitted.stages)]))
    for said in choice.reasons:
        say(said)
    for warning in report.warnings(measures, fitted.stages):
        say(f"WARNING: {warning}")
    say(f"{out}: {calibration.describe(fitted.stages)}, fingerprint {mark[:16]}, {time.monotonic() - started:.0f} s")


def _live(texts: list[str], frozen: Any, device: str) -> Any:
    """Pooled embeddings computed for each batch, with the encoder's dropout on."""
    from fastflow.train.data.embeddings import Embedder

    embedder = Embedder(frozen, device, dropout=True)
    return lambda rows: embedder([texts[i] for i in rows])
