"""The commands ``eval``, ``report`` and ``bench``."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import click

from fastflow import commands as shared
from fastflow.console import emit, open_runtime, say, write_json, write_text
from fastflow.errors import UsageError, need_extra
from fastflow.progress import Progress, format_count

CUT = "texts longer than"  # begins the warning about cut texts


@click.command("eval", cls=shared.Command)
@click.argument("tasks", metavar="TASK...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@shared.MODELS
@shared.RUNS
@shared.JSON
@shared.QUIET
def eval_command(
    tasks: tuple[Path, ...],
    models: tuple[str, ...],
    json_file: str | None,
    quiet: bool,
    **runs: Any,
) -> None:
    """Measure a model on tasks, or compare models.

    With several -m each model is a column: the best of a row has a star, each other the paired 95 % interval of its
    distance.

    Tasks are scored pairs, labelled pairs, labelled texts, retrieval and bitext. A TASK is a TSV file without quoting,
    with a header that names its kind, or a folder of corpus.tsv, queries.tsv and qrels.tsv; .gz and .zst are unpacked.
    Other folders are searched for both. All .txt files are one bitext: line i is the same sentence in each. Every
    figure is x100.

    \b
    header                                   measures
    subset score sentence1 sentence2         Spearman
    split label [votes] sentence1 sentence2  ap: average precision
    split label [fine_label] text            v_measure of k-means; knn, logistic
    id title text (corpus.tsv), id text,     ndcg@10, recall@100; BM25
      query doc grade (qrels.tsv)
    no header: two .txt files or more        accuracy of the nearest line

    Spearman compares cosines with human scores: 'all' ranks the pairs of a set together; 'wmean' averages the Spearman
    of its subsets by size. The average is over STS12-16, STSb-test and SICK-R-test when all seven are given, else over
    every set. The other measures have a 95 % interval; labelled texts and retrieval need the extra eval.

    Accuracy is how often the nearest line of the other file, by cosine, is the same line. It averages both
    ways between the first .txt file and each other; mixed searches both files. Share and languages are 50 and 0 if the
    model does not sort by language. Three files or more have a table of all ways.
    """
    from fastflow.evaluation.compare import compare, format_rows, measure_all
    from fastflow.evaluation.evaluate import (
        CountingEncoder,
        Pairs,
        evaluate,
        evaluate_tasks,
        find_tasks,
        format_scores,
        format_tasks,
    )

    found = find_tasks(tasks)
    scored = [task for task in found if isinstance(task, Pairs)]
    others = [task for task in found if not isinstance(task, Pairs)]
    names, compared = shared.list_models(models), {}
    if len(names) > 1:
        fingerprints = {}
        for name in names:
            runtime = open_runtime(name, **runs, quiet=quiet)
            with (
                runtime,
                Progress("eval", sum(len(task.texts) for task in found), "texts", shown=not quiet) as progress,
            ):
                compared[str(name)] = measure_all(CountingEncoder(runtime, progress.advance), found)
            fingerprints[str(name)] = runtime.fingerprint
        rows = compare(compared)
        _write(format_rows(rows), {"models": fingerprints, "rows": rows}, json_file)
        return
    runtime = open_runtime(names[0], **runs, quiet=quiet)
    result: dict[str, Any] = {"model": runtime.info()["model"], "fingerprint": runtime.fingerprint}
    tables, total = [], sum(len(task.texts) for task in found)
    with warnings.catch_warnings(), Progress("eval", total, "texts", shown=not quiet) as progress:
        warnings.filterwarnings("ignore", CUT)
        encoder = CountingEncoder(runtime, progress.advance)
        if scored:
            result |= evaluate(encoder.encode, scored)
            tables.append(format_scores(result))
        if others:
            result["tasks"] = evaluate_tasks(encoder, others)
            tables.append(format_tasks(result["tasks"]))
    if runtime.truncated:
        say(f"fastflow: {format_count(runtime.truncated, 'texts')} cut at {runtime.info()['max_length']} tokens")
    _write("\n\n".join(tables), result, json_file)


def _write(text: str, result: dict[str, Any], json_file: str | None) -> None:
    if json_file != "-":
        emit(text)
    if json_file:
        write_json(json_file, result)


@click.command(cls=shared.Command)
@shared.model_argument
@click.option(
    "--against",
    default="raw",
    metavar="NAME,...",
    help="Compare with raw (the encoder without token weights and calibration), weights (with the model's token "
    "weights, without calibration), standardize, components[:K], nullspace[:K], whiten[:K], flow, a chain "
    "(whiten:128+flow), or the directory of another model.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUT.html",
    callback=shared.check_free,
    help="The page.",
)
@shared.JSON
@click.option(
    "--sts",
    multiple=True,
    metavar="PAIRS.tsv|DIR",
    type=click.Path(exists=True, path_type=Path),
    help="Scored pairs, as for eval; may be given several times.",
)
@click.option(
    "--eval",
    "tasks",
    multiple=True,
    metavar="TASK",
    type=click.Path(exists=True, path_type=Path),
    help="Tasks of any kind, as for eval; may be given several times.",
)
@click.option(
    "--corpus",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, path_type=Path, dir_okay=False),
    help="Text to fit baselines on and to count words in.  [default: the texts of --sts]",
)
@click.option(
    "--qnli",
    metavar="FILE.tsv",
    type=click.Path(exists=True, path_type=Path, dir_okay=False),
    help="Labelled pairs: label, sentence1, sentence2.",
)
@click.option("--sample", default=10_000, type=click.IntRange(2), help="Use at most this many texts of the corpus.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of every random choice.")
@shared.RUNS
@shared.QUIET
def report(
    model: str | None,
    option: str | None,
    against: str,
    output: Path | None,
    json_file: str | None,
    device: str,
    dtype: str,
    threads: int | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Compare a model with other methods, on an HTML page.

    The page has a verdict and the analyses of the BERT-flow paper: similarity, QNLI, lexical bias, isotropy and word
    frequency, with three plots. --eval adds tasks of your own. The page names sections that lack data.

    \b
    fastflow report my-model --against raw,whiten --sts DIR --corpus corpus.txt -o report.html
    """
    from fastflow.report.make import ReportOptions, make_report
    from fastflow.train.methods import fit_named

    if output is None and json_file is None:
        raise UsageError("report has nowhere to write to: give -o OUT.html, --json, or both")
    need_extra("report", "matplotlib", "fastflow report")
    runtime = open_runtime(shared.model_named(model, option), device, dtype, threads, quiet)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", CUT)
        page, content = make_report(
            runtime,
            [name.strip() for name in against.split(",") if name.strip()],
            ReportOptions(**options),
            fit_named,
            lambda path: open_runtime(path, device, dtype, threads, quiet=True),
            shown=not quiet,
        )
    for entry in content["left_out"]:
        say(f"fastflow: left out: {entry['section']}: {entry['needs']}")
    if output is not None:
        replaced = output.is_file()
        write_text(str(output), page)
        say(f"fastflow: {', '.join(content['sections'])}{shared.describe_output(output, replaced)}")
    if json_file:
        write_json(json_file, content)


@click.command(cls=shared.Command)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="Model or Hugging Face encoder directory, for every suite.  [default: as listed above]",
)
@click.option("--suite", metavar="NAME,...", help="Suites to run, or all.  [default: texts a second of the model]")
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), metavar="DIR", help="With all: a file a run.")
@click.option(
    "--skip", default="", show_default=False, metavar="NAME,...", help="With all: suites or runs to leave out."
)
@click.option(
    "--against",
    metavar="NAME,...",
    help="Other engines to measure; an unknown name is answered with the known ones.  [default: all installed]",
)
@click.option("--shape", metavar="NAME", help="Only a BERT with random weights: minilm-l6, minilm-l12 or bert-base.")
@click.option("--quick", is_flag=True, help="Fewer sizes and runs, and nothing that has to be compiled first.")
@shared.JSON
@shared.THREADS
@shared.DEVICE
def bench(
    model: str | None,
    suite: str | None,
    out: Path | None,
    skip: str,
    against: str | None,
    shape: str | None,
    quick: bool,
    json_file: str | None,
    threads: int | None,
    device: str,
) -> None:
    """Time fastflow against other engines on this machine.

    Without --suite: texts a second of the model on the CPU, in float32 and, if it computes layers, in bfloat16 and
    int8, and of Sentence Transformers, fastembed and ONNX Runtime if installed; under a minute.

    All outputs are checked first. Then the engines take turns in one process, with equal threads. An engine that is not
    installed is named and left out. Run it on a quiet machine: the table shows how busy it was.

    \b
    suite       from                     to                  without -m
    flow        pooled vectors           calibrated vectors  a flow of the paper's shape
    encoder     token ids                pooled vectors      BERT-base
    end-to-end  texts                    vectors             the model default
    startup     the start of a process   its first vector    the model default
    serve       HTTP requests at a rate  their answers       the model default
    static      texts                    vectors             a random table of token vectors
    rerank      a query, documents       scores              BERT-base
    duplicates  texts                    near pairs          the model static

    --suite all makes every figure of a machine in half an hour to two hours: each run in a process of its own, with a
    file in the folder -o. A call that was stopped continues when it is repeated.

    Flow and BERT-base have random weights, on which speed does not depend. Without -m end-to-end and serve run that
    BERT-base as well, and startup always does. A directory of Sentence Transformers is pooled by its own modules in
    every engine.
    """
    from fastflow.bench.cli import run, run_every

    def names(words: str) -> list[str]:
        return [word.strip() for word in words.split(",")]

    if suite is None:
        if out or skip or against or shape or quick or device.startswith("cuda"):
            raise UsageError(
                "name a --suite for these options, such as --suite all; without one bench takes -m, --threads, --json"
            )
        from fastflow.bench.here import make_table, measure_here

        found = measure_here(model or os.environ.get("FASTFLOW_MODEL"), threads)
        _write(make_table(found), found, json_file)
        return
    if suite == "all":
        if out is None or model or against or shape or quick or json_file:
            raise UsageError("--suite all takes -o DIR, --skip, --threads and --device, and no other option")
        run_every(out, names(skip) if skip else (), device, threads)
        return
    if out is not None or skip:
        raise UsageError("-o and --skip are for --suite all; one suite takes --json FILE")
    peers = None if against is None else names(against)
    if json_file == "-":
        raise UsageError("a suite prints its table: give --json FILE")
    run(model, names(suite), peers, quick, json_file, device, threads, shape=shape)
