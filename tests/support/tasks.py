"""Small tasks for ``fastflow eval``: TSV files, retrieval folders and bitexts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def retrieval(folder: Path, corpus: Sequence[str], queries: Sequence[str], qrels: Sequence[str]) -> Path:
    write(folder / "corpus.tsv", "id\ttitle\ttext", *corpus)
    write(folder / "queries.tsv", "id\ttext", *queries)
    write(folder / "qrels.tsv", "query\tdoc\tgrade", *qrels)
    return folder


def bitext(folder: Path, **files: Sequence[str]) -> list[Path]:
    return [write(folder / f"{name}.txt", *lines) for name, lines in files.items()]
