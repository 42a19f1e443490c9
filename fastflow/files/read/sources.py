"""The inputs of a run, read in sequence as one."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import InputFormat, Record, RowFault, Skipped
from fastflow.files.read.inputs import Input
from fastflow.files.read.texts import format_of, records_of, rows_so_far

Identity = tuple[int, int]
MARKS = ("_", ".")  # as of _SUCCESS
COUNT_S, CHECKED = 0.25, 1024  # the most seconds of counting; rows between looks at the clock


class Row(NamedTuple):
    """A record, its number over all inputs from 0, and the path of its input."""

    number: int
    path: str
    record: Record


def one_text(row: Row) -> str:
    """Return the text of a row; raises a UsageError for a pair."""
    if len(row.record.texts) != 1:
        raise UsageError(f"{row.path} holds pairs of texts; choose one with --text-field sentence1 or sentence2")
    return row.record.texts[0]


def expand_patterns(given: Sequence[str]) -> list[str]:
    """Replace patterns by the sorted files that match, unless a file has that name.

    A folder is replaced by its Parquet files. Names that begin with _ or . are no data. Raises a UsageError for a
    pattern without files and for a file named twice.
    """
    paths: list[str] = []
    for name in given:
        if os.path.isdir(name) and (parts := _list_parquet(name)):
            paths += parts
            continue
        if name == "-" or os.path.lexists(name) or not glob.has_magic(name):
            paths.append(name)
            continue
        found = _list_data(name, next(at for at, part in enumerate(Path(name).parts) if glob.has_magic(part)))
        if not found:
            remedy = "give a pattern for each name in {}" if "{" in name else "name a file, or mend the pattern"
            raise UsageError(f"{name}: no file matches this pattern; {remedy}")
        paths += found
    seen: dict[str, str] = {}
    for path in paths:
        key = path if path == "-" else os.path.realpath(path)
        if key in seen:
            again = f"by {seen[key]} and by {path}" if seen[key] != path else "twice"
            raise UsageError(f"{path} is given {again}; name each input once")
        seen[key] = path
    return paths


def _list_data(pattern: str, fixed: int) -> list[str]:
    # fixed: leading parts of the path that are no pattern
    named = any(part.startswith(MARKS) for part in Path(pattern).parts[fixed:])
    return sorted(
        path
        for path in glob.glob(pattern, recursive=True)
        if not os.path.isdir(path) and (named or not any(p.startswith(MARKS) for p in Path(path).parts[fixed:]))
    )


def _list_parquet(folder: str) -> list[str]:
    found = _list_data(os.path.join(glob.escape(folder), "**", "*"), len(Path(folder).parts))
    others = [path for path in found if not path.endswith(".parquet")]
    if others and len(others) < len(found):
        raise UsageError(f"{folder}: {others[0]} is not a Parquet file; move it, or give '{folder}/**/*.parquet'")
    return [] if others else found


def check_formats(paths: Sequence[str], layout: InputFormat) -> None:
    """Raise a UsageError unless all ``paths`` have one format."""
    kinds = {path: format_of(path, layout.format) for path in paths} if len(paths) > 1 else {}
    for path, kind in kinds.items():
        if kind != (first := kinds[paths[0]]):
            raise UsageError(
                f"{paths[0]} is {first} and {path} is {kind}: the inputs of a run must be of one format; embed each "
                "format by itself"
            )


class Sources:
    """The inputs ``paths``; ``current``, at first the first, is open.

    ``identities``: size and modification time of each at the start, None if not a regular file. ``skippable``: the
    command has --errors skip. Raises a FastflowError naming an input that cannot be opened or changed.
    """

    def __init__(self, paths: Sequence[str], opened: Callable[[str], Input] = Input) -> None:
        self.paths, self._opened, self.skipped, self.skippable = list(paths), opened, Skipped(), False
        self.current, self._at = opened(self.paths[0]), 0
        try:
            self.identities = [self.current.identity, *(_identity(path) for path in self.paths[1:])]
        except FastflowError:
            self.current.__exit__()
            raise
        self._fresh = True

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *error: object) -> None:
        self.current.__exit__(*error)

    @property
    def identity(self) -> list[Identity] | None:
        """Size and modification time of every input; None if an input cannot be read again."""
        found = [identity for identity in self.identities if identity is not None]
        return found if len(found) == len(self.identities) else None

    @property
    def name(self) -> str:
        more = len(self.paths) - 1
        return self.paths[0] if not more else f"{self.paths[0]} and {more} more input{'s' * (more > 1)}"

    def rows(
        self, layout: InputFormat, skip: int = 0, counts: Sequence[int] | None = None, stop: int | None = None
    ) -> Iterator[Row]:
        """Yield the rows from ``skip`` to before ``stop``; rows that are left out have numbers too.

        ``counts``, the rows of each input, spare reading earlier inputs.
        """
        number = 0
        if stop is not None and stop <= skip:
            return
        self._choose_fields(layout, skip, counts or ())
        for at, path in enumerate(self.paths):
            if counts is not None and number + counts[at] <= skip:
                number += counts[at]
                continue
            before = max(0, skip - number) if counts is not None else 0
            number += before
            for record in records_of(self.open(at), layout, before):
                if number < skip:
                    pass
                elif isinstance(record, RowFault):
                    self._leave_out(number, record, layout.errors)
                else:
                    yield Row(number, path, record)
                number += 1
                if number == stop:
                    return

    def _leave_out(self, number: int, fault: RowFault, errors: str) -> None:
        if errors == "skip":
            self.skipped.add(number, fault)
            return
        skips = "--errors skip leaves such rows out" if self.skippable else ""
        told = RowFault(fault.place, fault.fault, "; ".join(filter(None, (fault.remedy, skips))), fault.option)
        raise told if errors == "strict" else FastflowError(str(told))  # skip would change its earlier rows

    @property
    def fields(self) -> tuple[str, ...]:
        return self.current.fields

    def _choose_fields(self, layout: InputFormat, skip: int, counts: Sequence[int]) -> None:
        for at, rows in enumerate(counts):
            if rows and not self.fields and skip >= rows and format_of(self.paths[at], layout.format) != "txt":
                any(self.fields for _ in records_of(self.open(at), layout))
            if skip < rows or self.fields:
                return

    def open(self, at: int) -> Input:
        if not (self._fresh and at == self._at):
            fields = self.fields
            self.current.__exit__()
            self.current, self._at = self._opened(self.paths[at]), at
            self.current.fields = fields
            if self.identities[at] not in (None, self.current.identity):
                raise self.current.changed()
        self._fresh = False
        return self.current

    def types(self, layout: InputFormat) -> dict[str, Any]:
        """Return the Arrow types of id and kept fields, {} unless Parquet; raises if two inputs differ."""
        if format_of(self.paths[0], layout.format) != "parquet":
            return {}
        from fastflow.files.read.parquet import add_types

        found: dict[str, Any] = {}
        fields: tuple[str, ...] = ()
        for path in self.paths:
            with self._opened(path) as source:
                source.fields = fields
                add_types(found, source, layout)
                fields = source.fields
        return found

    def expected(self, layout: InputFormat) -> tuple[int | None, bool]:
        """Return (rows of all inputs, whether they are estimated, after COUNT_S); (None, True) for a pipe."""
        sizes = [size for size, _ in self.identity or []]
        if not sizes or ("-" in self.paths and sys.stdin.buffer.tell()):
            return None, True
        rows, read, until = 0, 0.0, time.monotonic() + COUNT_S
        for path, size in zip(self.paths, sizes, strict=True):
            found, share = self._so_far(path, layout, until)
            rows, read = rows + found, read + share * size
            if share < 1 or time.monotonic() > until:
                break
        if read == sum(sizes):
            return rows, False
        return (int(rows * sum(sizes) / read) if read else None), True

    def _so_far(self, path: str, layout: InputFormat, until: float) -> tuple[int, float]:
        found, share = 0, 0.0
        with contextlib.suppress(FastflowError):  # the run will raise it
            with self._opened("/dev/stdin" if path == "-" else path) as source:
                for found in rows_so_far(source, layout):
                    if found % CHECKED == 0:
                        share = min(source.share() or 0.0, 0.999)
                        if time.monotonic() > until:
                            return found, share
            share = 1.0
        return found, share


def _identity(path: str) -> Identity | None:
    if path == "-":
        return None
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise FastflowError(f"{path} cannot be opened: {getattr(error, 'strerror', error)}") from error
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
