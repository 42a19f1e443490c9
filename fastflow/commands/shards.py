"""``fastflow status`` and ``fastflow merge``, and the output and arguments of the command that makes a part."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from fastflow.commands.options import QUIET, output_option
from fastflow.console import emit, say
from fastflow.errors import UsageError


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@output_option("OUT with the suffix of the parts: .npy, .npz, .jsonl, .parquet, .safetensors or .db.")
@QUIET
def merge(folder: Path, output: Path, quiet: bool) -> None:
    """Join the parts in DIR to the file that one run would have made.

    Parts that are missing, were changed since, or are of another input, model or set of options are an error.

    \b
    fastflow embed INPUT --shard 1/2 -o DIR
    fastflow embed INPUT --shard 2/2 -o DIR
    fastflow merge DIR -o OUT.npy
    """
    from fastflow.files.parts.merging import merge as join

    found = join(folder, output)
    if not quiet:
        say(f"fastflow: {found[0].total:,} rows of {len(found)} parts; written to {output}")


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def status(folder: Path) -> None:
    """Show the parts in DIR, those that are missing, and the command that makes each."""
    from fastflow.files.parts.status import report

    emit("\n".join(report(folder)))


def checked_output(output: Path | None, shard: tuple[int, int] | None) -> Path | None:
    """The file to write: with --shard, a folder stands for the part's .npy file in it."""
    from fastflow.files.parts.manifest import part_path

    if output is not None and shard is not None:
        return part_path(output, shard)
    if output is not None and os.path.isdir(output):  # False for a name that no file can have
        raise UsageError(f"{output} is a directory; name a file in it, or make a part in it with --shard I/N")
    return output


def arguments() -> list[str]:
    """The arguments of this command as they were given, without those that differ between shards."""
    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        name, value = parameter.name or "", context.params.get(parameter.name or "")
        if name in ("shard", "output", "resume", "quiet") or value is None:
            continue
        if context.get_parameter_source(name) != ParameterSource.COMMANDLINE:
            continue
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(parameter, click.Option) and parameter.is_flag:
            words.append(parameter.opts[-1] if value else parameter.secondary_opts[-1])
        else:
            option = [parameter.opts[-1]] if isinstance(parameter, click.Option) else []
            words += [word for each in values for word in (*option, str(each))]
    return words
