"""``fastflow similarity``: how alike texts are."""

from __future__ import annotations

import click

from fastflow.commands.options import DEVICE, DTYPE, JSON, MODEL, QUIET, THREADS
from fastflow.console import emit, open_runtime, write_json
from fastflow.errors import UsageError


@click.command()
@click.argument("texts", metavar="TEXT TEXT...", nargs=-1, required=True)
@MODEL
@JSON
@DTYPE
@THREADS
@DEVICE
@QUIET
def similarity(
    texts: tuple[str, ...],
    model: str | None,
    json_file: str | None,
    dtype: str,
    threads: int | None,
    device: str,
    quiet: bool,
) -> None:
    """Compare the first text with each of the others: a cosine, or the similarity that the model names.

    A line for each of the others: its similarity, then the text. --json has the similarities of all pairs.

    \b
    fastflow similarity "A man plays a guitar." "Someone strums a guitar." "Shares fell sharply."
    """
    if len(texts) < 2:
        raise UsageError("similarity compares texts: give two or more, each in quotes")
    runtime = open_runtime(model, device, dtype, threads, quiet)
    found = runtime.similarity(texts, texts)
    if json_file is not None:
        names = {"model": runtime.info()["model"], "similarity": runtime.info()["similarity"]}
        write_json(json_file, {**names, "texts": list(texts), "values": found.tolist()})
    if json_file != "-":
        rows = zip(found[0, 1:], texts[1:], strict=True)
        emit("\n".join(f"{value:7.4f}  {' '.join(text.split())}" for value, text in rows))
