"""``fastflow duplicates``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
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
    from fastflow.search.duplicates import Texts
    from fastflow.search.pairs import Duplicates, Pairs

SHOWN = 60  # characters of a text in a line


@click.command(cls=shared.Command)
@click.argument("inputs", metavar="INPUT...|FILE.db|VECTORS.npy", nargs=-1, required=True)
@shared.MODEL
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="OUT.csv, .jsonl or .parquet: a row for each removed text, with row, kept_row, cosine, exact, and ids. A .db "
    "gets the table duplicates.",
)
@click.option(
    "--above",
    type=click.FloatRange(0, 1, min_open=True),
    help="Remove a text whose cosine with an earlier kept one is at least this.",
)
@click.option("--to", "wanted", type=click.IntRange(1), metavar="N", help="Find the highest limit that leaves N texts.")
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
    callback=shared.check_free,
    help="Write the records that stay to FILE, as they are in the input.",
)
@click.option("--groups", is_flag=True, help="Print each kept text with those removed for it, the largest group first.")
@click.option(
    "--texts", metavar="FILE", type=click.Path(path_type=Path), help="The input that VECTORS.npy was made of."
)
@shared.FORMAT
@shared.text_field_option("text or sentence")
@click.option("--id-field", metavar="F", help="A column with ids, which OUT names.")
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
    output: Path | None,
    layout: Callable[[], InputFormat],
    above: float | None,
    wanted: int | None,
    against: Path | None,
    order: str | None,
    kept: Path | None,
    groups: bool,
    texts: Path | None,
    ray: str | None,
    resume: bool,
    json_file: str | None,
    quiet: bool,
    **runs: Any,
) -> None:
    """Find texts that say nearly the same, and keep one of each.

    In the order of the input, a text is kept unless its cosine with an earlier kept text is at least --above. All pairs
    are compared, and none is missed. INPUT is as for fastflow embed, or a .db or .npy that it made.

    Which limit? Without --above nothing is written: the command prints how many texts would go at limits from 0.95
    to 0.6, and pairs just above each.

    \b
    fastflow duplicates tickets.csv
    fastflow duplicates tickets.csv --above 0.85 -o removed.csv --kept unique.csv
    fastflow duplicates test.jsonl --against train.jsonl --above 0.9 --kept clean.jsonl
    """
    from fastflow.files import Run, check_replaceable
    from fastflow.files.read.sources import expand_patterns
    from fastflow.files.write.partial import State, partial_path
    from fastflow.search.duplicates import (
        LIMITS,
        Folder,
        Texts,
        check_kept,
        check_table,
        compare_in,
        tabulate,
        write_table,
    )
    from fastflow.search.pairs import Plan
    from fastflow.search.source import find_model

    if above is not None and wanted is not None:
        raise UsageError("--to finds the limit that --above gives: leave out one of them")
    preview = above is None and wanted is None
    if preview and (given := [name for name, value in (("--kept", kept), ("--groups", groups)) if value]):
        raise UsageError(f"{given[0]} needs a limit: run without it to see what limits do, then give --above C")
    for option, value in (("--resume", resume), ("--ray", ray)):
        if value and output is None:
            raise UsageError(f"{option} needs an output file: -o OUT")
    if ray is not None:
        from fastflow.integrations.ray import check_address

        check_address(ray)
    paths, found_layout = expand_patterns(inputs), layout()
    if output is not None:
        check_table(output)
    if kept is not None:
        check_kept(paths, texts, found_layout)
    stored = paths[0].endswith(".db") and model is None
    opened: list[Runtime] = []

    def open_model() -> Runtime:
        if not opened:
            opened.append(open_runtime(find_model(Path(paths[0])) if stored else model, **runs, quiet=True))
            if not quiet:
                introduce(opened[0])
        return opened[0]

    field = None if order in (None, "longest") else order.removeprefix("-")
    limits = {"above": above, "to": wanted, "order": order, "against": None if against is None else str(against)}
    options = {"layout": found_layout._asdict(), "texts": None if texts is None else str(texts), "model": model}
    sources = [*paths, *([] if against is None else [str(against)])]
    state = None
    if output is not None:
        state = State(output, [_identify(path) for path in sources], {"options": options | limits}, sources)
        whole = output.suffix != ".db" and not (resume and partial_path(output).is_dir())
        if whole and resume and state.is_done() is not None:
            say(f"fastflow: {output} is finished: nothing to do")
            return
        if whole:
            check_replaceable(output, shared.is_overwriting())
    with ExitStack() as stack:
        where = output and partial_path(output)
        if where is None:
            where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastflow-"))) / "run"
        folder = stack.enter_context(Folder(where, state, resume))
        how = Run(resume=resume, quiet=quiet, overwrite=True)
        own = Texts(paths, texts, found_layout, field, where / "own", stack, open_model, how)
        other = own
        if against is not None:
            other = Texts([str(against)], None, found_layout, None, where / "against", stack, open_model, how)
            if None not in (own.fingerprint, other.fingerprint) and own.fingerprint != other.fingerprint:
                raise UsageError(f"{own.name} and {other.name} were made with different models: embed both with one")
        others = (None, None) if against is None else (other.vectors, other.keys)
        plan = Plan(own.vectors, own.keys, own.sort(order, order == "longest"), *others)
        lower = LIMITS if above is None else ()
        pairs = compare_in(folder, plan, above or min(LIMITS), lower, runs["threads"], not quiet, ray)
        if preview:
            _preview(pairs, own, other, json_file, quiet)
        else:
            found = pairs.keep_first(above) if above is not None else _find_limit(pairs, wanted)
            if output is not None:
                write_table(tabulate(found, own, other), output)
                if state is not None and output.suffix != ".db":
                    state.done(output, len(found.removed))
            if kept is not None:
                own.write_kept(found.removed, kept)
            _report(found, own, other, groups, json_file, quiet, output)


def _find_limit(pairs: Pairs, wanted: int | None) -> Duplicates:
    from fastflow.search.duplicates import find_limit

    return find_limit(pairs, int(wanted or 1))


def _identify(path: str) -> Any:
    from fastflow.files.write.partial import identify

    return identify(Path(path)) if Path(path).is_file() else None


def _preview(pairs: Pairs, own: Texts, other: Texts, json_file: str | None, quiet: bool) -> None:
    from fastflow.search.duplicates import describe_limits

    rows = describe_limits(pairs)
    places = [pair for row in rows for pair in row["pairs"]]
    texts = own.pick(int(pairs.rows[later]) for _, later, _ in places)
    others = texts | own.pick(int(pairs.rows[earlier]) for earlier, _, _ in places) if other is own else {}
    if other is not own:
        others = other.pick(int(pairs.rows[earlier]) for earlier, _, _ in places)
    total = len(own.vectors)
    for row in rows:
        row["pairs"] = [
            {"cosine": cosine, "texts": [others.get(int(pairs.rows[a])), texts.get(int(pairs.rows[b]))]}
            for a, b, cosine in row["pairs"]
        ]
        if json_file != "-":
            emit(f"{row['limit']:.2f}  {format_count(row['removed'], 'texts')} of {total:,} would go")
            for pair in row["pairs"]:
                emit(f"      {pair['cosine']:.3f}  " + "  |  ".join(_shorten(text) for text in pair["texts"]))
    if not quiet and pairs.above > min(row["limit"] for row in rows or [{"limit": 0.0}]):
        say("fastflow: lower limits have too many pairs to count")
    if not quiet:
        say("fastflow: nothing is written; --above C removes the texts at a limit")
    if json_file is not None:
        write_json(json_file, {"texts": total, "limits": rows})


def _report(
    found: Duplicates, own: Texts, other: Texts, groups: bool, json_file: str | None, quiet: bool, output: Path | None
) -> None:
    listed = found.groups() if groups else []
    result: dict[str, Any] = {"texts": len(own.vectors), "kept": len(found.kept), "removed": len(found.removed)}
    result |= {"above": found.above, "exact": int(found.exact.sum()), "groups": None}
    if groups:
        cosine = dict(zip(found.removed.tolist(), found.cosine.tolist(), strict=True))
        first = other.pick(int(each[0]) for each in listed)
        rest = own.pick(int(place) for each in listed for place in each[1:])
        result["groups"] = [
            {
                "row": int(other.numbers[each[0]]),
                "text": first.get(int(each[0])),
                "size": len(each),
                "removed": [
                    {"row": int(own.numbers[place]), "text": rest.get(place), "cosine": cosine[place]}
                    for place in each[1:].tolist()
                ],
            }
            for each in listed
        ]
        if json_file != "-":
            for group in result["groups"]:
                emit(f"{group['size']:>5}  {_shorten(group['text'] or 'row ' + str(group['row']))}")
                for one in group["removed"]:
                    emit(f"       {one['cosine']:.3f}  {_shorten(one['text'] or 'row ' + str(one['row']))}")
    if not quiet:
        where = "" if output is None else f"; {output} lists them"
        gone = format_count(len(found.removed), "texts")
        say(f"fastflow: {gone} of {len(own.vectors):,} removed at {found.above:.6g}, {len(found.kept):,} stay{where}")
    if json_file is not None:
        write_json(json_file, result)


def _shorten(text: str | None) -> str:
    plain = " ".join((text or "").split())
    return plain if len(plain) <= SHOWN else plain[: SHOWN - 1] + "…"
