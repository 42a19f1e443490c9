"""Count the rows of inputs, to split them into shards."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from fastflow.errors import UsageError
from fastflow.files.read import Layout
from fastflow.files.read.inputs import Input
from fastflow.files.read.parquet import footer, row_count
from fastflow.files.read.sources import Sources
from fastflow.files.read.texts import format_of, rows_so_far


class Counted(NamedTuple):
    """Numbers of rows and bytes of an input, and the sha256 of its unpacked content or Parquet footer."""

    rows: int
    size: int
    sha256: str


def count_rows(source: Input, layout: Layout) -> Counted:
    """Count the rows; raises a UsageError for a pipe, a FastflowError for a damaged line."""
    if source.identity is None:
        raise not_countable(source.path)
    size = source.identity[0]
    if format_of(source.path, layout.format) == "parquet":
        return Counted(row_count(source), size, hashlib.sha256(footer(source)).hexdigest())
    source.digest = hashlib.sha256()
    return Counted(max(rows_so_far(source, layout), default=0), size, source.digest.hexdigest())


def not_countable(path: str) -> UsageError:
    """Return the error for a pipe with --shard."""
    what = "standard input" if path == "-" else f"{path}, which is not a file,"
    return UsageError(f"--shard counts the rows before it takes its part, and cannot read {what} twice; give a file")


class Split(NamedTuple):
    """The counted inputs, and the row numbers of one shard: ``start`` to ``stop`` - 1."""

    inputs: list[Counted]
    start: int
    stop: int

    @property
    def counts(self) -> list[int]:
        return [each.rows for each in self.inputs]


def split_rows(sources: Sources, layout: Layout, shard: tuple[int, int]) -> Split:
    """Count the inputs and find the rows of ``shard``; raises as ``count_rows``."""
    found = [count_rows(sources.open(at), layout) for at in range(len(sources.paths))]
    return Split(found, *span(sum(each.rows for each in found), shard))


def span(rows: int, shard: tuple[int, int]) -> tuple[int, int]:
    """Return shard I of N as (first row, row after its last); shards differ by at most one row."""
    number, of = shard
    return rows * (number - 1) // of, rows * number // of
