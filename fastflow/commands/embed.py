"""``fastflow embed``: the texts of files to a file of vectors."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastflow import commands as shared
from fastflow.console import introduce, open_runtime, say, write_json
from fastflow.errors import UsageError
from fastflow.progress import format_count

if TYPE_CHECKING:
    from fastflow.files import EmbedConfig, Summary
    from fastflow.files.read import InputFormat
    from fastflow.files.read.inputs import Input


@click.command(cls=shared.Command)
@click.argument("inputs", metavar="INPUT...|-", nargs=-1, required=True)
@shared.MODEL
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="OUT.npy (vectors only), .jsonl, .csv, .parquet or .db (SQLite, for fastflow search); with --shard a "
    "folder, for .npy parts, or DIR/NAME.parquet, one name a part. "
    "[default: JSON Lines to a pipe, short lines to a terminal]",
)
@shared.FORMAT
@shared.text_field_option("text or sentence")
@click.option(
    "--id-field",
    metavar="F",
    help="A column to keep as id, under its name; not in .npy.",
)
@shared.KEEP
@shared.DELIMITER
@shared.NO_HEADER
@shared.QUOTING
@shared.NULL
@shared.ENCODING
@shared.errors_option("skip")
@shared.DTYPE
@shared.PRECISION
@shared.DIM
@shared.NORMALIZE
@click.option("--batch-tokens", type=click.IntRange(1), help="Tokens computed at once (8192, on a GPU 32768).")
@shared.THREADS
@shared.DEVICE
@click.option(
    "--dedupe",
    is_flag=True,
    help="Compute a repeated text once, with files next to OUT while it runs; slower for token tables.",
)
@click.option(
    "--cache",
    metavar="FILE.db",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep the vector of every text in FILE.db, and take those that are there from the same model: for a corpus "
    "that grows. Runs may share it.",
)
@click.option(
    "--only-new",
    is_flag=True,
    help="With --cache: write only rows with a text, or with --id-field an id and text, that no finished run has "
    "put there.",
)
@click.option(
    "--append",
    is_flag=True,
    help="Add the rows to OUT.db, made if absent; other tables in it stay. With --id-field a known id with another "
    "text or fields is replaced; without ids a known text is left out. Only new texts are computed.",
)
@click.option(
    "--delete-missing", is_flag=True, help="With --append: delete the rows of OUT.db whose id or text the inputs lack."
)
@click.option(
    "--no-words", "words", flag_value=False, default=True, show_default=False, help="Leave word search out of OUT.db."
)
@shared.RESUME
@click.option(
    "--shard",
    metavar="I/N",
    help="Make part I of N, from 1/N to N/N: rows that follow each other. The rows are counted first, so the inputs "
    "must be files. fastflow status shows the parts in a folder, fastflow merge joins them.",
)
@click.option(
    "--truncate",
    type=click.Choice(["right", "error"]),
    default="right",
    help="right: cut a text that is longer than the model's limit; error: refuse it.",
)
@click.option("--prompt", metavar="S", help="Put S before every text.  [default: the model's default prompt]")
@click.option(
    "--prompt-name", metavar="NAME", help="Put the model's prompt NAME before every text (see fastflow info)."
)
@click.option(
    "--fit",
    is_flag=True,
    help="First calibrate the encoder of --model on these texts, as fastflow-train does; needs the train extra.",
)
@click.option(
    "--save-model",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the model that --fit makes. [default: it is removed at the end]",
)
@shared.RAY
@shared.JSON
@shared.QUIET
@shared.take_layout
def embed(
    inputs: tuple[str, ...],
    model: str | None,
    output: Path | None,
    layout: Callable[[], InputFormat],
    device: str,
    dtype: str,
    threads: int | None,
    shard: str | None,
    fit: bool,
    save_model: Path | None,
    prompt_name: str | None,
    ray: str | None,
    json_file: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Embed the texts of files.

    All have one format; 'data/*.txt' in quotes means the files that match, sorted, and a folder its Parquet files. A
    .txt holds one text a line. Row i of the output is text i of the inputs in the order given, empty texts too. If
    rows are left out, the others keep their numbers.
    """
    from fastflow.files import EmbedConfig, Run, check_inputs, check_target, parse_shard
    from fastflow.files.embed import embed_file
    from fastflow.files.read.inputs import Input
    from fastflow.files.read.sources import expand_patterns

    if ray is not None:
        from fastflow.commands.shards import check_options, embed_on_ray

        check_options(click.get_current_context())
    found, paths = layout(), expand_patterns(inputs)
    ours = {name: options.pop(name) for name in ("resume", "cache", "append", "delete_missing", "words")}
    run = Run(quiet=quiet, overwrite=shared.is_overwriting(), **ours)
    settings = EmbedConfig(found, shard=None if shard is None else parse_shard(shard), **options)
    _check_together(settings, fit, save_model, prompt_name, json_file == "-" and output is None)
    given: list[str] = []
    if settings.shard is not None:
        from fastflow.commands.shards import arguments
        from fastflow.files.shards.manifest import make_folder, part_path

        given, output = arguments(), output and part_path(output, settings.shard)
    elif output is not None and os.path.isdir(output):  # False, no error, for an impossible name
        raise UsageError(f"{output} is a directory; name a file in it, or make a part in it with --shard I/N")
    replaced = output is not None and os.path.isfile(output)
    check_target(output, paths, settings, replace(run, resume=run.resume and ray is None))
    check_inputs(output, paths, settings, run.resume)
    if ray is not None:
        embed_on_ray(click.get_current_context(), paths, replaced)
        return
    if settings.shard is not None and output is not None:
        make_folder(output)
    with contextlib.ExitStack() as stack:
        open_again: Callable[[str], Input] = Input
        if fit:
            open_again, model = stack.enter_context(
                fit_to(paths, settings, model, device, save_model, run.resume, quiet)
            )
        if run.append and model is None and output is not None and output.exists():
            model = _find_model(output)
        runtime = open_runtime(model, device, dtype, threads, quiet=True)
        prompt = runtime.session.model.prompts.resolve(settings.prompt, prompt_name)
        if prompt or prompt_name is not None:  # --prompt-name may choose an empty prompt
            settings = replace(settings, prompt=prompt)
        if not (prompt or quiet) and (prompt_name is not None or settings.prompt is not None):
            say("fastflow: the prompt is empty: nothing is put before a text")
        start = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            started = None if quiet else partial(introduce, runtime)
            run = replace(run, opened=open_again, given=given, started=started)
            done = embed_file(runtime, paths, output, settings, run)
    seconds = time.monotonic() - start
    if not quiet:
        summarise(done, done.seconds, runtime.info()["max_length"], output, replaced and not run.append)
    if json_file is not None:
        from fastflow.files.embed import numbers_of

        numbers = numbers_of(runtime, settings.precision, settings.normalize)
        about = {"output": None if output is None else str(output), "model": runtime.info()["model"], **numbers}
        write_json(json_file, {**vars(done), "seconds": round(seconds, 3), **about})


def _find_model(output: Path) -> str | None:
    """Return the model that the .db ``output`` names, if any."""
    from fastflow.files.write.appending import has_run
    from fastflow.search.source import find_model

    return find_model(output) if has_run(output) else None


def _check_together(
    settings: EmbedConfig, fit: bool, save_model: Path | None, prompt_name: str | None, twice: bool
) -> None:
    for wrong, sentence in (
        (twice, "standard output has the embeddings: give --json FILE, or -o OUT"),
        (save_model and not fit, "--save-model keeps the model that --fit makes: add --fit, or leave out --save-model"),
        (
            fit and prompt_name is not None,
            "--fit makes a model without prompts of its own: give --prompt, or leave out --prompt-name",
        ),
        (
            fit and settings.shard is not None,
            "--fit and --shard: every shard needs one and the same model, so fit once with --save-model DIR, then give "
            "each shard -m DIR",
        ),
        (prompt_name is not None and settings.prompt is not None, "give --prompt or --prompt-name, not both"),
    ):
        if wrong:
            raise UsageError(sentence)


def summarise(
    done: Summary, seconds: float, longest: int | None, output: Path | None, replaced: bool, unit: str = "texts"
) -> None:
    """Print the summary of a run."""
    if done.finished:
        say(f"fastflow: {output} is finished: nothing to do")
        return
    count = sum(done.appended[name] for name in ("added", "replaced", "same")) if done.appended else done.texts
    rate = done.texts / max(seconds, 1e-9)
    odd = [f"{done.empty:,} empty"] * bool(done.empty) + [f"{done.resumed:,} done before"] * bool(done.resumed)
    odd += [f"{done.known:,} more known and left out"] * bool(done.known)
    odd += [f"{number:,} {what}" for what, number in done.appended.items()]
    odd += [f"{done.texts:,} computed"] * bool(done.appended)
    odd += [f"{done.cut:,} cut at {longest:,} tokens"] * bool(done.cut)
    odd = odd or ["none empty or cut"] * (unit == "texts")
    again = f"; {done.reused:,} not computed again" * bool(done.reused)
    written = "" if output is None else shared.describe_output(output, replaced, done.unused)
    if done.cache:
        say(f"fastflow: {done.cache}")
    what = f" ({', '.join(odd)}{again})" if odd else ""
    speed = f", {rate:,.0f} a second" * bool(done.texts)
    say(f"fastflow: {format_count(count, unit)}{what}{speed}{written}")


@contextlib.contextmanager
def fit_to(
    paths: list[str], config: EmbedConfig, model: str | None, device: str, keep: Path | None, resume: bool, quiet: bool
) -> Iterator[tuple[Callable[[str], Input], str]]:
    """Calibrate a model; yield a function that opens inputs, and the model's path."""
    from fastflow.files import check_resumable
    from fastflow.files.embed import texts_of
    from fastflow.files.read.inputs import reread
    from fastflow.files.read.sources import Sources
    from fastflow.train.options import check_extra

    if ":" in device:
        raise UsageError(f"--fit runs on cpu or cuda, not on {device}: choose a GPU by CUDA_VISIBLE_DEVICES")
    check_extra("fastflow embed --fit", not quiet)
    from fastflow.train.command import fit_input

    with contextlib.ExitStack() as stack:
        again = {path: stack.enter_context(reread(path)) for path in paths}

        def open_again(path: str) -> Input:
            return again[path]()

        with Sources(paths, open_again) as sources:
            name = sources.name
            if resume:
                check_resumable(sources)

        def texts() -> Iterator[str]:
            with Sources(paths, open_again) as sources:
                yield from texts_of(sources, config)

        with fit_input(texts, name, model, device, keep, resume, quiet) as directory:
            yield open_again, str(directory)
