"""``fastflow search`` and ``fastflow similarity``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from fastflow.commands import JSON, MODEL, QUIET, RUNS, Command
from fastflow.console import emit, introduce, open_runtime, say, write_json, write_text
from fastflow.errors import UsageError

if TYPE_CHECKING:
    from fastflow.reranker import Reranker
    from fastflow.runtime import Runtime
    from fastflow.search import Hit, Index

BY = ("vectors", "words", "both")  # as ``search.scan``, which imports more
TOGETHER = 64  # queries of standard input in one pass over the file
CANDIDATES = 100
PARAGRAPH = 40
BM25 = "5.1f"  # its form in a table
PARAGRAPHS = (
    "fastflow: the rows found are paragraphs, and the models in the package are made for sentences: --by both, or a "
    "tuned model such as all-MiniLM-L6-v2 (-m) finds more (docs/search.md, Which model)"
)


@click.command(cls=Command)
@click.argument("file", metavar="FILE.db|VECTORS.npy", type=click.Path(path_type=Path))
@click.argument("query", metavar="QUERY|-", required=False)
@MODEL
@click.option("-k", "count", default=10, type=click.IntRange(1), help="Hits to print.")
@click.option(
    "--by",
    type=click.Choice(["auto", *BY]),
    default="auto",
    help="vectors: rank by similarity; words: by BM25; both: by their weighted sum, each scaled to 0..1; auto: both "
    "for a .db and a model of the package or a token table, else vectors.",
)
@click.option("--min-score", type=float, metavar="C", help="Leave out hits of a lower score.")
@click.option(
    "--row",
    type=click.IntRange(0),
    metavar="N",
    help="Search for other texts like row N, by vectors unless --by is given: no QUERY.",
)
@click.option("--all", "every", is_flag=True, help="Print each row; else rows of equal texts are one hit.")
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
@click.option(
    "--rerank",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Order the best rows by this cross-encoder's scores.",
)
@click.option("--candidates", type=click.IntRange(1), help="The best rows, which --rerank scores; else 100.")
@RUNS
@QUIET
def search(
    file: Path,
    query: str | None,
    model: str | None,
    count: int,
    by: str,
    min_score: float | None,
    row: int | None,
    every: bool,
    json_file: str | None,
    where: str | None,
    texts: Path | None,
    rerank: Path | None,
    candidates: int | None,
    quiet: bool,
    **runs: Any,
) -> None:
    """Print the rows that are most like a query.

    QUERY is a text; - reads one query a line from standard input. --json gives one object a query, a line each.

    FILE.db is made by fastflow embed INPUT -o FILE.db. It names its model, which is opened without -m, and stores the
    fingerprint: another model is refused. VECTORS.npy stores the fingerprint in VECTORS.npy.run.json: give the model
    that made it. Without --texts its rows are only numbers.

    QUERY is embedded with the model's prompt for queries, if it has one, and compared with every row: by cosine, or by
    the similarity that a model of Sentence Transformers names. A .db of --precision binary or
    ubinary is compared by its bits. Words are compared by SQLite's FTS5.

    With --rerank the score is the cross-encoder's, and --json has the score of the search too, as search_score.

    \b
    fastflow embed input.jsonl --keep url -o input.db
    fastflow search input.db "how to bake bread" -k 5
    fastflow search input.db - --json < queries.txt
    """
    from fastflow.search import Index
    from fastflow.search.source import find_model

    if model is None and file.suffix == ".db":
        model = find_model(file)
    if (query is None) == (row is None):
        raise UsageError("search takes a QUERY or --row N: give one of them")
    if rerank is not None and row is not None:
        raise UsageError("--rerank compares texts with a QUERY: give one in place of --row")
    scorer = open_reranker(rerank, candidates, count, **runs)
    runtime = open_runtime(model, **runs, quiet=True)
    answers: list[str] = []
    paragraphs = False
    with Index(file, runtime, texts=texts) as index:
        by = "vectors" if row is not None and by == "auto" else index.resolve_by(by, True)
        how: Any = {"by": by, "distinct": not every, "min_score": None if scorer else min_score}
        if not quiet:
            introduce(runtime)
            say(f"fastflow: {_explain(index, by, scorer is not None)}")
            plain = scorer is None and by == "vectors" and index.similarity == "cosine"
            if plain and (usual := usual_cosine(runtime)) is not None:
                say(f"fastflow: two texts drawn at random have a cosine of about {usual:.1f} with this model")
        most = count if scorer is None else candidates or CANDIDATES
        least = -inf if min_score is None else min_score
        for queries in [[query or f"row {row}"]] if query != "-" else _lines(runtime):
            found = (
                index.search(queries, most, where, **how)
                if row is None
                else [index.search_row(row, most, where, **how)]
            )
            for text, hits in zip(queries, found, strict=True):
                before = None if scorer is None else {hit.row: hit.score for hit in hits}
                if scorer is not None:
                    hits = [hit for hit in rerank_hits(scorer, text, hits, count) if hit.score >= least]
                if not hits and not quiet:
                    say(f"fastflow: {_explain_none(where, min_score, by)}")
                if json_file == "-":
                    emit(_object(text, hits, before))
                elif hits or query == "-":
                    name = "rerank" if scorer else index.similarity if by == "vectors" else "score"
                    emit(_table(text if query == "-" else None, hits, None if quiet else (name, index.id_column)))
                paragraphs = paragraphs or are_paragraphs([hit.text for hit in hits if hit.text])
                if json_file not in (None, "-"):
                    answers.append(_object(text, hits, before))
    if paragraphs and by == "vectors" and runtime.session.packaged and not quiet:
        say(PARAGRAPHS)
    if json_file is not None and json_file != "-":
        write_text(json_file, "\n".join(answers) + "\n" * bool(answers))


def _lines(runtime: Runtime) -> Iterator[list[str]]:
    from fastflow.files import EmbedConfig
    from fastflow.files.read import InputFormat
    from fastflow.files.read.sources import Sources
    from fastflow.files.windows import Pace, windows

    settings = EmbedConfig(InputFormat("txt"))
    with Sources(["-"]) as source:
        for window in windows(source.rows(settings.layout), runtime, source, settings, Pace(TOGETHER)):
            yield window.texts


def open_reranker(
    folder: Path | None, candidates: int | None, count: int, device: str, dtype: Any, threads: int | None
) -> Reranker | None:
    """Open the cross-encoder of --rerank."""
    if folder is None:
        if candidates is not None:
            raise UsageError("--candidates counts the rows of --rerank: give both")
        return None
    if count > (candidates or CANDIDATES):
        raise UsageError(f"-k {count} asks for more rows than the {candidates or CANDIDATES} of --candidates")
    from fastflow.reranker import Reranker

    return Reranker(folder, dtype=dtype, threads=threads)


def rerank_hits(reranker: Reranker, query: str, hits: Sequence[Hit], count: int) -> list[Hit]:
    """Return the ``count`` best hits by the reranker's scores."""
    if any(hit.text is None for hit in hits):
        raise UsageError("--rerank reads texts, and the file has none: give --texts FILE")
    best = reranker.rank(query, [str(hit.text) for hit in hits], count)
    return [hits[each["corpus_id"]]._replace(score=each["score"]) for each in best]


def _object(query: str, hits: Sequence[Hit], before: Mapping[int, float] | None) -> str:
    rows = [{"rank": rank, **hit._asdict()} for rank, hit in enumerate(hits, 1)]  # as the server's
    if before is not None:
        rows = [row | {"search_score": before[row["row"]]} for row in rows]
    return json.dumps({"query": query, "hits": rows}, ensure_ascii=False)


def _table(query: str | None, hits: Sequence[Hit], heads: tuple[str, str | None] | None) -> str:
    """Format a line for each hit; ``heads``: names of similarity and id, for a first line."""
    lines = [] if query is None else [f"# {_printable(query)}"]
    if heads is not None and hits:
        similarity, column = heads
        identity, text = f"  {column}" * (hits[0].id is not None), "  text" * (hits[0].text is not None)
        parts = "   cosine  BM25" if any(hit.similarity is not None or hit.words is not None for hit in hits) else ""
        lines.append(f"  #  {similarity:>7}{parts}  row{identity}{text}{'  fields' * bool(hits[0].fields)}")
    for rank, hit in enumerate(hits, 1):
        identity = "" if hit.id is None else f"  {_printable(str(hit.id))}"
        text = "" if hit.text is None else f"  {_printable(hit.text)}"
        fields = "".join(f"  {name}={_printable(str(value))}" for name, value in hit.fields.items())
        parts = (
            ""
            if hit.similarity is None and hit.words is None
            else f"  {_part(hit.similarity, '7.4f')} {_part(hit.words, BM25)}"
        )
        more = f" (+{len(hit.rows) - 1:,} equal)" if len(hit.rows) > 1 else ""
        lines.append(f"{rank:>3}  {hit.score:7.4f}{parts}  {hit.row}{more}{identity}{text}{_printable(fields)}")
    return "\n".join(lines)


def _part(value: float | None, form: str) -> str:
    """Format a part of a score; BM25 of words that most texts of a small file have is nearly 0."""
    shown = "-" if value is None else format(value, form)
    return f"{'<0.1' if value and form == BM25 and not float(shown) else shown:>{form[0]}}"


def _explain(index: Index, by: str, reranked: bool) -> str:
    """Name the scores that rank the hits."""
    if reranked:
        return f"ranked by the reranker, among the best by {'words and vectors' if by == 'both' else by}"
    if by == "both":
        return f"ranked by words and vectors: the score is a weighted sum of BM25 and {index.similarity}, each 0 to 1"
    if by == "words":
        return "ranked by words: the score is BM25"
    lacks = "" if index.has_words else "; the file has no word search"
    return f"ranked by vectors: the score is the {index.similarity}{lacks}"


def _explain_none(where: str | None, min_score: float | None, by: str) -> str:
    rows = "no row" if where is None else f"no row that meets {where!r}"
    if min_score is not None:
        return f"{rows} has a score of {min_score:g} or more"
    if by == "words":
        return f"{rows} has a word of the query"
    return "the file has no row" if where is None else f"no row meets {where!r}"


def usual_cosine(runtime: Runtime) -> float | None:
    """Return the mean cosine of random texts, if the model records it, or None."""
    record: Any = runtime.session.model.manifest
    for name in ("training", "isotropy", "after", "mean_cosine"):
        record = record.get(name) if isinstance(record, dict) else None
    return record if isinstance(record, float) else None


def are_paragraphs(texts: Sequence[str]) -> bool:
    """Whether the median text has over PARAGRAPH words."""
    return bool(texts) and median(len(text.split()) for text in texts) > PARAGRAPH


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


@click.command(cls=Command)
@click.argument("texts", metavar="TEXT TEXT...", nargs=-1, required=True)
@MODEL
@JSON
@RUNS
@QUIET
def similarity(texts: tuple[str, ...], model: str | None, json_file: str | None, quiet: bool, **runs: Any) -> None:
    """Compare the first text with each of the others: a cosine, or the similarity that the model names.

    Each other text is printed on a line, after its similarity. --json has the similarities of all pairs.

    \b
    fastflow similarity "A man plays a guitar." "Someone strums a guitar." "Shares fell sharply."
    """
    if len(texts) < 2:
        raise UsageError("similarity compares texts: give two or more, each in quotes")
    runtime = open_runtime(model, **runs, quiet=quiet)
    found = runtime.similarity(texts, texts)
    if json_file is not None:
        names = {"model": runtime.info()["model"], "similarity": runtime.info()["similarity"]}
        write_json(json_file, {**names, "texts": list(texts), "values": found.tolist()})
    if json_file != "-":
        rows = zip(found[0, 1:], texts[1:], strict=True)
        emit("\n".join(f"{value:7.4f}  {' '.join(text.split())}" for value, text in rows))
