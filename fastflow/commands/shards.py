"""``fastflow status``, ``fastflow merge`` and ``fastflow embed --ray``."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from fastflow.commands import JSON, OVERWRITE, QUIET, Command, describe_output, is_overwriting, output_option
from fastflow.console import emit, say, write_json
from fastflow.errors import UsageError
from fastflow.progress import format_count

REFUSED = {  # option of embed that --ray refuses -> remedy
    "shard": "Ray makes the parts itself, so leave out one of them",
    "fit": "fit once with fastflow-train, then give -m MODEL",
    "save_model": "fit once with fastflow-train, then give -m MODEL",
    "only_new": "leave out one of them",
    "append": "leave out one of them",
    "json_file": "leave out one of them",
}


@click.command(cls=Command)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@output_option("OUT with the suffix of the parts: .npy, .jsonl, .csv, .parquet or .db.")
@OVERWRITE
@QUIET
def merge(folder: Path, output: Path, quiet: bool) -> None:
    """Join the parts in a folder to one file.

    It is the file that one run would have made. Parts that are missing, changed, or of another input, model or set of
    options are an error.

    \b
    fastflow embed INPUT --shard 1/2 -o DIR
    fastflow embed INPUT --shard 2/2 -o DIR
    fastflow merge DIR -o OUT.npy
    """
    from fastflow.files.shards.merging import merge as join

    replaced = os.path.isfile(output)
    found = join(folder, output, shown=not quiet, overwrite=is_overwriting())
    if not quiet:
        left = sum(manifest.skipped for manifest in found)
        if left:
            say(f"fastflow: WARNING: {left:,} rows are left out ({output}.skipped has the reasons)")
        rows = found[0].total - left
        joined = f"{format_count(rows, 'rows')} of {format_count(len(found), 'parts')}"
        say(f"fastflow: {joined}{describe_output(output, replaced, replaced and not rows)}")


@click.command(cls=Command)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@JSON
def status(folder: Path, json_file: str | None) -> None:
    """Show the parts in a folder, and those that are missing.

    A missing part is shown with the command that makes it.
    """
    from fastflow.files.shards.merging import Status

    found = Status.of(folder)
    if json_file is not None:
        write_json(json_file, found.json())
    if json_file != "-":
        emit("\n".join(found.lines()))


def arguments(*without: str) -> list[str]:
    """Return this command's arguments, without options that differ between shards."""
    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        name, value = parameter.name or "", context.params.get(parameter.name or "")
        if name in ("shard", "output", "resume", "quiet", "json_file", *without) or value is None:
            continue
        if context.get_parameter_source(name) not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            continue
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(parameter, click.Option) and parameter.is_flag:
            words.append(parameter.opts[-1] if value else parameter.secondary_opts[-1])
        else:
            option = [parameter.opts[-1]] if isinstance(parameter, click.Option) else []
            words += [word for each in values for word in (*option, str(each))]
    return words


def check_options(context: click.Context) -> None:
    """Raise a UsageError for a wrong address, and for options that exclude --ray."""
    from fastflow.integrations.ray import check_address

    check_address(context.params["ray"])
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in REFUSED and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.opts[-1]} does not work with --ray: {REFUSED[name]}")
    if context.params["device"].startswith("cuda"):
        raise UsageError("--ray computes on CPUs: leave out --device cuda")
    if context.params["output"] is None:
        raise UsageError("--ray needs an output: -o OUT, in a folder that every node has")
    if "-" in context.params["inputs"]:
        raise UsageError("--ray reads the inputs on every node, which cannot be standard input: give a file")


def embed_on_ray(context: click.Context, paths: list[str], replaced: bool) -> None:
    """Embed the files ``paths`` on a cluster of Ray."""
    from fastflow.integrations.ray import embed_on_cluster

    given = context.params
    threads = 1 if given["threads"] is None else given["threads"]
    given["inputs"] = tuple(map(os.path.abspath, paths))  # workers have another working directory
    for name in ("model", "cache"):
        if given[name] is not None and os.path.exists(given[name]):
            given[name] = os.path.abspath(given[name])
    words = arguments("ray", "threads")
    target: Path = given["output"]
    how = threads, given["resume"], given["quiet"], is_overwriting()
    rows, parts = embed_on_cluster(words, target, given["ray"], *how)
    if not given["quiet"]:
        made = f"{format_count(rows, 'texts')} in {format_count(parts, 'parts')}"
        say(f"fastflow: {made}{describe_output(target, replaced)}")
