"""``fastflow duplicates``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastflow import commands as shared
from fastflow.console import emit, introduce, open_runtime, say, write_json
from fastflow.errors import UsageError
from fastflow.progress import format_count

if TYPE_CHECKING:
    from fastflow.files.read import InputFormat
    from fastflow.runtime import Runtime
    from fastflow.search.duplicates import Compared

SHOWN = 60  # characters of a text in a line


@click.command(cls=shared.Command)
@click.argument("inputs", metavar="INPUT...|FILE.db|VECTORS.npy", nargs=-1, required=True)
@shared.MODEL
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="OUT.csv, .jsonl or .parquet: a row for each removed text, with row, kept_row, cosine, exact, and ids. A .db "
    "gets the table duplicates. A file that this command made is replaced, unless it was changed.",
)
@click.option(
    "--above",
    type=click.FloatRange(0, 1, min_open=True),
    help="Remove a text if its cosine with an earlier kept one is at least this.",
)
@click.option(
    "--to",
    "wanted",
    type=click.IntRange(1),
    metavar="N",
    help="Find the highest limit, from 0.6 to 1, that leaves N texts.",
)
@click.option(
    "--against",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Compare with FILE instead of the input itself: test with train, today with yesterday.",
)
@click.option(
    "--order",
    metavar="F|-F|longest",
    help="Which texts are kept: those first by field F, -F descending, or by their length.  [default: of the input]",
)
@click.option(
    "--kept",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=shared.check_file,
    help="Write the records that stay to FILE, as they are in the input; FILE needs the suffix of the input.",
)
@click.option("--groups", is_flag=True, help="Print each kept text with those removed for it, the largest group first.")
@click.option(
    "--texts", metavar="FILE", type=click.Path(path_type=Path), help="The input that VECTORS.npy was made of."
)
@shared.FORMAT
@shared.text_field_option("text or sentence")
@click.option("--id-field", metavar="F", help="A column with ids, which OUT has as id and kept_id.")
@shared.DELIMITER
@shared.NO_HEADER
@shared.QUOTING
@shared.NULL
@shared.ENCODING
@shared.errors_option()
@shared.RUNS
@shared.RAY
@shared.RESUME
@shared.JSON
@shared.QUIET
@shared.take_layout
def duplicates(
    inputs: tuple[str, ...],
    model: str | None,
    layout: Callable[[], InputFormat],
    groups: bool,
    json_file: str | None,
    quiet: bool,
    device: str,
    dtype: str,
    **options: Any,
) -> None:
    """Find texts of nearly the same meaning, and keep one of each.

    In the order of the input, a text is kept unless its cosine with an earlier kept text is at least --above. All pairs
    are compared, and none is missed. INPUT is as for fastflow embed, or a .db or .npy that it made.

    Which limit? Without --above nothing is written: the command prints how many texts limits from 0.95 to 0.6 would
    remove, in steps of 0.05, and pairs just above each.

    \b
    fastflow duplicates tickets.csv
    fastflow duplicates tickets.csv --above 0.85 -o removed.csv --kept unique.csv
    fastflow duplicates test.jsonl --against train.jsonl --above 0.9 --kept clean.jsonl
    """
    from fastflow.files.read.sources import expand_patterns
    from fastflow.search.duplicates import (
        DuplicatesConfig,
        compare_files,
        describe_groups,
        find_limit,
        tabulate,
        write_table,
    )
    from fastflow.search.source import find_model

    paths, config = expand_patterns(inputs), DuplicatesConfig(layout(), model, quiet=quiet, **options)
    preview = config.above is None and config.wanted is None
    if preview and (given := [name for name, value in (("--kept", config.kept), ("--groups", groups)) if value]):
        raise UsageError(f"{given[0]} needs a limit: run without it to see what limits do, then give --above C")
    config.check(paths)
    if config.ray is not None:
        from fastflow.integrations.ray import check_address

        check_address(config.ray)
    stored = paths[0].endswith(".db") and model is None

    @cache
    def open_model() -> Runtime:
        name = find_model(Path(paths[0])) if stored else model
        runtime = open_runtime(name, device, dtype, config.threads, quiet=True)
        if not quiet:
            introduce(runtime)
        return runtime

    state = config.open_state(paths, shared.is_overwriting())
    if config.is_finished():
        say(f"fastflow: {config.output} is finished: nothing to do")
        return
    with compare_files(paths, config, state, open_model) as compared:
        pairs, own, other = compared
        if preview:
            _preview(compared, json_file, quiet)
            return
        found = pairs.keep_first(pairs.above) if config.wanted is None else find_limit(pairs, config.wanted)
        if config.output is not None:
            write_table(tabulate(found, own, other), config.output, state)
        if config.kept is not None:
            own.write_kept(found.removed, config.kept)
        result: dict[str, Any] = {"texts": len(own.vectors), "kept": len(found.kept), "removed": len(found.removed)}
        result |= {"above": found.above, "exact": int(found.exact.sum())}
        if groups:
            result["groups"] = describe_groups(found, own, other)
    if groups and json_file != "-":
        for group in result["groups"]:
            emit(f"{group['size']:>5}  {_shorten(group)}")
            for one in group["removed"]:
                emit(f"       {one['cosine']:.3f}  {_shorten(one)}")
    if not quiet:
        written = [str(each) for each in (config.output, config.kept) if each is not None]
        where = f"written to {' and '.join(written)}" if written else "nothing is written: give -o OUT or --kept FILE"
        counts = f"{format_count(result['removed'], 'texts')} of {result['texts']:,} removed at {found.above:.6g}"
        say(f"fastflow: {counts}, {result['kept']:,} stay; {where}")
        if config.wanted is not None and found.above == 1 and result["kept"] < config.wanted:
            say(f"fastflow: no limit leaves {config.wanted:,} texts, for equal ones are removed at every limit")
    if json_file is not None:
        write_json(json_file, result)


def _preview(found: Compared, json_file: str | None, quiet: bool) -> None:
    from fastflow.search.duplicates import LIMITS, describe_limits

    limits, total = describe_limits(found), len(found.own.vectors)
    for each in limits if json_file != "-" else ():
        emit(f"{each['limit']:.2f}  {format_count(each['removed'], 'texts')} of {total:,} would be removed")
        for pair in each["pairs"]:
            texts = "  |  ".join(_shorten({"text": text}) for text in pair["texts"])
            emit(f"      {pair['cosine']:.3f}  {texts}")
    if not quiet and found.pairs.above > min(LIMITS):
        say(f"fastflow: below {found.pairs.above:g} are too many pairs to count")
    if not quiet:
        say("fastflow: nothing is written; --above C removes the texts at a limit")
    if json_file is not None:
        write_json(json_file, {"texts": total, "limits": limits})


def _shorten(row: Mapping[str, Any]) -> str:
    plain = " ".join((f"row {row.get('row')}" if row["text"] is None else row["text"]).split())
    named = f"{row['id']}  " if "id" in row else ""
    return named + (plain if len(plain) <= SHOWN else plain[: SHOWN - 1] + "…")
