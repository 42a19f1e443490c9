"""``fastflow search``: the rows of a file of embeddings that are most like a text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastflow.commands.options import DEVICE, DTYPE, JSON, MODEL, QUIET, THREADS
from fastflow.console import emit, introduce, open_runtime, say, write_text

if TYPE_CHECKING:
    from fastflow.runtime import Runtime
    from fastflow.search import Hit

TOGETHER = 64  # queries of standard input that are answered in one pass over the file


@click.command()
@click.argument("file", metavar="FILE.db|VECTORS.npy", type=click.Path(path_type=Path))
@click.argument("query", metavar="QUERY|-")
@MODEL
@click.option("-k", "count", default=10, type=click.IntRange(1), help="Rows to print.")
@JSON
@click.option(
    "--where",
    metavar="SQL",
    help="Search the rows for which this SQL condition on the columns of FILE.db holds, as in \"lang = 'en'\".",
)
@click.option(
    "--texts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The input that VECTORS.npy was made of, to print its texts.",
)
@DTYPE
@THREADS
@DEVICE
@QUIET
def search(
    file: Path,
    query: str,
    model: str | None,
    count: int,
    json_file: str | None,
    where: str | None,
    texts: Path | None,
    dtype: str,
    threads: int | None,
    device: str,
    quiet: bool,
) -> None:
    """Print the rows that are most like a query.

    QUERY is a text; - reads one query a line from standard input. --json gives one object a query, a line each.

    FILE.db is made by fastflow embed INPUT -o FILE.db. It stores the fingerprint of its model, and another model is
    refused. VECTORS.npy stores none: give the model that made it. Its rows are numbers alone without --texts.

    QUERY is embedded with the model's prompt for queries, if it has one, and compared with every row: by cosine, or by
    the similarity that a model of Sentence Transformers names. A .db of --precision binary or
    ubinary is compared by its bits.

    \b
    fastflow embed input.jsonl --keep url -o input.db
    fastflow search input.db "how to bake bread" -k 5
    fastflow search input.db - --json < queries.txt
    """
    from fastflow.search import Index

    runtime = open_runtime(model, device, dtype, threads, quiet=True)
    answers: list[str] = []
    with Index(file, runtime, texts=texts) as index:
        if not quiet:
            introduce(runtime)
        for queries in [[query]] if query != "-" else _lines(runtime):
            for text, hits in zip(queries, index.search(queries, count, where), strict=True):
                if not hits and not quiet:
                    say("fastflow: the file has no row" if where is None else f"fastflow: no row meets {where!r}")
                if json_file == "-":
                    emit(_object(text, hits))
                elif hits or query == "-":
                    emit(_table(text if query == "-" else None, hits))
                if json_file not in (None, "-"):
                    answers.append(_object(text, hits))
    if json_file is not None and json_file != "-":
        write_text(json_file, "\n".join(answers) + "\n" * bool(answers))


def _lines(runtime: Runtime) -> Iterator[list[str]]:
    """The queries of standard input, those together that have arrived."""
    from fastflow.files.read.records import Layout
    from fastflow.files.read.sources import Sources
    from fastflow.files.settings import Settings
    from fastflow.files.windows import Pace, windows

    settings = Settings(Layout("txt"))
    with Sources(["-"]) as source:
        for window in windows(source.rows(settings.layout), runtime, source, settings, Pace(TOGETHER)):
            yield window.texts


def _object(query: str, hits: Sequence[Hit]) -> str:
    """A query and its rows as JSON; text, id and fields if the file has them."""
    rows: list[dict[str, Any]] = []
    for rank, hit in enumerate(hits, 1):
        found: dict[str, Any] = {"rank": rank, "score": hit.score, "row": hit.row}
        more = {"text": hit.text, "id": hit.id, "fields": hit.fields}
        rows.append(found | {name: value for name, value in more.items() if value not in (None, {})})
    return json.dumps({"query": query, "hits": rows}, ensure_ascii=False)


def _table(query: str | None, hits: Sequence[Hit]) -> str:
    """A line a row: rank, score, row, id and text, then the fields; above them the query, if there are several."""
    lines = [] if query is None else [f"# {_printable(query)}"]
    for rank, hit in enumerate(hits, 1):
        identity = "" if hit.id is None else f"  {_printable(str(hit.id))}"
        text = "" if hit.text is None else f"  {_printable(hit.text)}"
        fields = "".join(f"  {name}={_printable(str(value))}" for name, value in hit.fields.items())
        lines.append(f"{rank:>3}  {hit.score:7.4f}  {hit.row}{identity}{text}{_printable(fields)}")
    return "\n".join(lines)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
