"""The ``fastflow`` command. Heavy imports wait until a command runs, so that --help is instant."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import click

from fastflow import __version__
from fastflow.console import Commands, emit, open_runtime, say, write_json
from fastflow.errors import UsageError

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
THREADS = click.option("--threads", type=int, help="Threads to compute with. [default: what the machine allows]")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Calibrated sentence embeddings from a frozen BERT, without labels.

    \b
    fastflow embed input.txt                       JSON Lines on standard output
    fastflow embed input.csv --text-field body -o out.npy
    fastflow eval -m MODEL pairs.tsv               Spearman x100, 'all' and 'wmean'
    fastflow report MODEL --sts DIR --html OUT     the model beside other methods, on a page
    fastflow info MODEL

    A model is trained with fastflow-train.
    """


@main.command()
@click.argument("input", metavar="INPUT|-")
@MODEL
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="OUT.npy, .npz, .jsonl or .safetensors. [default: JSON Lines to a pipe, short lines to a terminal]",
)
@click.option("--format", metavar="F", help="txt, tsv, csv or jsonl. [default: by the suffix]")
@click.option("--text-field", metavar="F", help="The column that holds the text. [default: text or sentence]")
@click.option("--id-field", metavar="F", help="A column to keep as id, in JSON Lines or .npz.")
@click.option("--delimiter", metavar="C", help="What separates the columns of a csv or tsv.  [default: by line 1]")
@click.option("--no-header", is_flag=True, help="Line 1 of a csv or tsv is data; its columns are called 1, 2, 3 ...")
@click.option(
    "--errors",
    type=click.Choice(["strict", "replace"]),
    default="strict",
    show_default=True,
    help="strict: bytes that are not UTF-8 are an error; replace: they become U+FFFD.",
)
@DTYPE
@click.option(
    "--precision",
    type=click.Choice(["float32", "float16", "int8", "ubinary"]),
    default="float32",
    show_default=True,
    help="Numbers in the output: int8 has one fixed range, ubinary packs the signs, eight to a byte.",
)
@click.option(
    "--dim",
    type=int,
    help="Keep DIM dimensions: the leading directions if the model stores their order ('truncation' in fastflow info), "
    "else the first ones.",
)
@click.option(
    "--normalize/--no-normalize", default=False, show_default=True, help="Divide by the L2 norm, after --dim."
)
@click.option("--batch-tokens", type=click.IntRange(1), help="Tokens computed at once (8192, on a GPU 32768).")
@THREADS
@DEVICE
@click.option("--dedupe", is_flag=True, help="Compute a repeated text once.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run after the rows it finished (OUT.partial).")
@click.option("--shard", metavar="I/N", default="1/1", help="Take every N-th row, beginning with the I-th.")
@click.option(
    "--truncate",
    type=click.Choice(["right", "error"]),
    default="right",
    show_default=True,
    help="right: cut a text that is longer than the model's limit; error: refuse it.",
)
@click.option("--prompt", metavar="S", help="Put S before every text.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
def embed(
    input: str,
    model: str | None,
    output: Path | None,
    format: str | None,
    text_field: str | None,
    id_field: str | None,
    errors: str,
    delimiter: str | None,
    no_header: bool,
    device: str,
    dtype: str,
    threads: int | None,
    shard: str,
    resume: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Embed the texts of a file, one text a line unless its format says otherwise; row i is line i, empty lines too."""
    from fastflow.files.embed import Settings, embed_file, parse_shard
    from fastflow.files.records import Layout
    from fastflow.files.tables import check_delimiter

    layout = Layout(format, text_field, id_field, errors, check_delimiter(delimiter), not no_header)
    settings = Settings(layout, shard=parse_shard(shard), **options)
    runtime = open_runtime(model, device, dtype, threads, quiet)
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the summary counts cut texts
        done = embed_file(runtime, input, output, settings, resume, quiet)
    if not quiet:
        rate = done.texts / max(time.monotonic() - start, 1e-9)
        odd = [f"{done.empty} empty"] * bool(done.empty) + [f"{done.resumed} done before"] * bool(done.resumed)
        odd += [f"{done.cut} cut at {runtime.info()['max_length']} tokens"] * bool(done.cut)
        written = "" if output is None else f"; written to {output}"
        say(f"fastflow: {done.texts:,} texts ({', '.join(odd) or 'none empty or cut'}), {rate:,.0f} a second{written}")


@main.command("eval")
@click.argument(
    "pairs", metavar="PAIRS.tsv|DIR...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@MODEL
@DEVICE
@DTYPE
@THREADS
@click.option(
    "--json", "json_file", metavar="FILE", help="Write the result as JSON too; - prints it instead of the table."
)
def eval_command(
    pairs: tuple[Path, ...], model: str | None, device: str, dtype: str, threads: int | None, json_file: str | None
) -> None:
    """Spearman x100 of cosine against human scores, on TSV files of scored pairs.

    'all' ranks the pairs of a set together; 'wmean' averages the Spearman of its subsets by size. A file has the header
    'subset score sentence1 sentence2' and no quoting. The average is over STS12-16, STSb-test and SICK-R-test when all
    seven are given, else over every set.
    """
    from fastflow.evaluation.evaluate import evaluate, find_sets, table

    sets = find_sets(pairs)
    runtime = open_runtime(model, device, dtype, threads, quiet=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said below, with the number
        scores = evaluate(runtime.encode, sets)
    if runtime.truncated:
        say(f"fastflow: {runtime.truncated} texts cut at {runtime.info()['max_length']} tokens")
    result = {"model": runtime.info()["model"], "fingerprint": runtime.fingerprint, **scores}
    if json_file != "-":
        emit(table(result))
    if json_file:
        write_json(json_file, result)


@main.command()
@click.argument("model", required=False)
@click.option(
    "--against",
    default="raw",
    show_default=True,
    metavar="NAME,...",
    help="Compare with raw (the encoder without token weights and calibration), weights (with the model's token "
    "weights, without calibration), standardize, components[:K], nullspace[:K], whiten[:K], flow, a chain "
    "(whiten:128+flow), or the directory of another model.",
)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="OUT", help="The page to write.")
@click.option("--json", "json_file", metavar="FILE", help="Write the measurements as JSON; - prints them.")
@click.option(
    "--sts",
    multiple=True,
    metavar="PAIRS.tsv|DIR",
    type=click.Path(exists=True, path_type=Path),
    help="Scored pairs, as for eval; may be given several times.",
)
@click.option(
    "--corpus",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, path_type=Path, dir_okay=False),
    help="Text to fit baselines on, count words in and seek neighbours among.  [default: the texts of --sts]",
)
@click.option(
    "--qnli",
    metavar="FILE.tsv",
    type=click.Path(exists=True, path_type=Path, dir_okay=False),
    help="Labelled pairs: label, sentence1, sentence2.",
)
@click.option(
    "--log",
    metavar="FILE|DIR",
    type=click.Path(exists=True, path_type=Path),
    help="Training curves: fastflow-train's --log-dir, or JSON Lines.  [default: the logs beside the model]",
)
@click.option(
    "--sample",
    default=10_000,
    show_default=True,
    type=click.IntRange(2),
    help="Use at most this many texts of the corpus.",
)
@click.option(
    "--queries", default=5, show_default=True, type=click.IntRange(1), help="Number of sentences to show neighbours of."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of every random choice.")
@DEVICE
@DTYPE
@THREADS
def report(
    model: str | None,
    against: str,
    html: Path | None,
    json_file: str | None,
    device: str,
    dtype: str,
    threads: int | None,
    **options: Any,
) -> None:
    """Measure MODEL beside its uncalibrated encoder and other methods, as one HTML page with the verdict first.

    The page has the analyses of the BERT-flow paper: similarity, QNLI, lexical bias, isotropy, nearest neighbours, word
    frequency and training curves. It names the sections whose data were not given.

    \b
    fastflow report my-model --against raw,whiten --sts DIR --corpus corpus.txt --html report.html
    """
    from fastflow.report.make import Settings, check_matplotlib, make_report, write_page
    from fastflow.train.methods.against import fit_named

    if html is None and json_file is None:
        raise UsageError("report has nowhere to write to: give --html OUT, --json FILE, or both")
    check_matplotlib()
    runtime = open_runtime(model, device, dtype, threads, quiet=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the page counts cut texts
        made = make_report(
            runtime,
            [name.strip() for name in against.split(",") if name.strip()],
            Settings(**options),
            fit_named,
            lambda path: open_runtime(path, device, dtype, threads, quiet=True),
        )
    for entry in made.left_out:
        say(f"fastflow: left out: {entry['section']}: {entry['needs']}")
    if html is not None:
        write_page(html, made.html())
        say(f"fastflow: {html}: {', '.join(section.id for section in made.sections)}")
    if json_file:
        write_json(json_file, made.json())


@main.command()
@click.argument("model", required=False)
def info(model: str | None) -> None:
    """Print as JSON: a model, its pooling and calibration, and how it runs on this machine."""
    runtime = open_runtime(model, "auto", "auto", None, quiet=True)
    emit(json.dumps(runtime.info(), indent=2))


@main.command()
@click.argument("model", required=False)
def verify(model: str | None) -> None:
    """Check every file of a model directory against its hashes, and that it loads."""
    from fastflow.model.artifact import named
    from fastflow.model.artifact import verify as check

    emit("\n".join(check(named(model))))


@main.command()
@MODEL
@click.option(
    "--suite", default="flow", show_default=True, metavar="NAME,...", help="Suites: flow, encoder, end-to-end, startup."
)
@click.option("--against", metavar="NAME,...", help="Measure these peers only.  [default: all that are installed]")
@click.option("--quick", is_flag=True, help="Fewer sizes and runs.")
@click.option("--json", "json_file", metavar="FILE", help="Write machine, rows and ratios as JSON.")
@click.option("--plot", metavar="FILE.png", help="Write a plot.")
@THREADS
@DEVICE
def bench(
    model: str | None,
    suite: str,
    against: str | None,
    quick: bool,
    json_file: str | None,
    plot: str | None,
    threads: int | None,
    device: str,
) -> None:
    """Time the runtime against its peers, alternating in one process with equal threads, after checking all outputs."""
    from fastflow.bench.cli import run

    peers = None if against is None else against.split(",")
    run(model, suite.split(","), peers, quick, json_file, plot, device, threads)


@main.command()
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False))
@click.option("--clear", is_flag=True, help="Remove the entries instead of listing them.")
@click.option("--older-than", type=click.FloatRange(0), metavar="DAYS", help="Only entries made over DAYS days ago.")
def cache(directory: Path | None, clear: bool, older_than: float | None) -> None:
    """List the embeddings that fastflow-train keeps in DIR, or remove them; DIR is by default ~/.cache/fastflow.

    An entry holds the pooled embeddings of one corpus. fastflow-train computes a removed entry again when it needs it.
    An entry that a running process uses is kept, and so is every file that fastflow-train did not make.

    \b
    fastflow cache
    fastflow cache --clear --older-than 30
    """
    from fastflow.files import cache as kept

    where, now = kept.cache_directory(directory), time.time()
    found = [e for e in kept.entries(where) if older_than is None or now - e.made > older_than * kept.DAY]
    if clear:
        removed, in_use = kept.clear(found)
        say(f"fastflow: removed {kept.counted(removed)} from {where}")
        if in_use:
            say(f"fastflow: kept {kept.counted(in_use)} in use by a running process")
        return
    emit("\n".join([f"{where}: {kept.counted(found)}", *(entry.describe(now) for entry in found)]))
