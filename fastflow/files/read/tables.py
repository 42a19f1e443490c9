"""Read texts from csv and tsv: find the delimiter and the text column."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any

from fastflow.errors import FastflowError
from fastflow.files.read import (
    LONGEST,
    InputFormat,
    Record,
    RowFault,
    find_text_fields,
    join_texts,
    list_names,
    text_fields,
)
from fastflow.files.read.inputs import BadLine, Input

SEP = re.compile('"?sep=(.)"?', re.IGNORECASE)
DELIMITERS = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}


def table_records(
    lines: Iterator[str | BadLine], source: Input, kind: str, layout: InputFormat
) -> Iterator[Record | RowFault]:
    r"""Yield the records of a csv or tsv, or their faults; ids are strings.

    ``lines`` keep a final \r, which a quoted field may hold. Raises a FastflowError for an ambiguous header or
    delimiter, and a repeated column.
    """
    csv.field_size_limit(LONGEST)
    first, path = next(lines, None), source.path
    if first is None:
        return
    line = (first.text if isinstance(first, BadLine) else first).removesuffix("\r")
    named = SEP.fullmatch(line) if kind == "csv" else None  # as Excel writes it
    mark = layout.delimiter or (named[1] if named else "\t" if kind == "tsv" else _delimiter(line, path, layout))
    ended = _Ended(lines if named else chain([first], lines), path, 1 if named else 0)
    # tsv without quoting: stray quotes in STS and GLUE files would swallow rows
    quotes = layout.quoting or ("csv" if kind == "csv" or any(map(_is_quoted, line.split(mark))) else "none")
    how: Any = csv.QUOTE_NONE if quotes == "none" else csv.QUOTE_MINIMAL
    found = _rows(csv.reader(ended, delimiter=mark, quoting=how, strict=True), ended)
    head = next(found, [""])
    if isinstance(head, RowFault):
        raise FastflowError(str(head))
    if ended.fault is not None and layout.header:
        raise FastflowError(str(ended.fault))
    names = head if layout.header else [str(number) for number in range(1, len(head) + 1)]
    fields = [_place(names, name, path) for name in _text_fields(names, head, source, layout)]
    key = None if layout.id_field is None else _name_place(names, layout.id_field, path, "to take the id from")
    keep = [_name_place(names, name, path, "to keep") for name in layout.keep]
    watched = quotes == "none" and layout.quoting is None
    model = "the header" if layout.header else "line 1"
    for values in chain([] if layout.header else [head], found):
        if isinstance(values, RowFault):
            yield values
        elif ended.fault is not None:
            yield ended.fault
        elif len(values) != len(names):
            fault = f"has {len(values)} fields, {model} {len(names)}"
            remedy = "quote a text that holds the delimiter, or name another --delimiter"
            if watched and any(value.startswith('"') for value in values):
                remedy = "read its quotes with --quoting csv, or name another --delimiter"
            yield RowFault(f"{path}, line {ended.number}", fault, remedy)
        else:
            if watched and any(map(_is_quoted, values)):
                _warn_of_quotes(path, ended.number)
                watched = False
            yield _record(values, fields, key, keep, layout, ended.number)


def _is_quoted(field: str) -> bool:
    return len(field) > 1 and field[0] == field[-1] == '"'


@cache
def _warn_of_quotes(path: str, line: int) -> None:
    from fastflow.console import say

    kept = "a field begins and ends with a quote, which stays"
    say(f"fastflow: {path}, line {line}: {kept}; --quoting csv reads quotes as pandas and Excel write them")


def _rows(rows: Any, ended: _Ended) -> Iterator[list[str] | RowFault]:
    """Leave out blank lines of tables with several columns."""
    width = 0
    while True:
        ended.begin()
        try:
            values: list[str] = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            where = f"line {ended.number}" if ended.lines == 1 else f"the {ended.lines} lines to {ended.number}"
            if ended.over:
                raise FastflowError(f"{ended.path}, line {ended.number}: {error}; is a quote not closed?") from error
            yield ended.fault or RowFault(f"{ended.path}, {where}", str(error))
            continue
        width = width or len(values) or 1
        if values or width == 1 or ended.fault is not None:
            yield values or [""]


class _Ended:
    """Gives csv.reader lines with their ends; raises a FastflowError for a row of more than LONGEST.

    ``fault``: of a line of the row. ``lines``: of the row, so far. ``over``: whether the input ended.
    """

    def __init__(self, lines: Iterator[str | BadLine], path: str, number: int) -> None:
        self.path, self.over, self._lines, self.number = path, False, lines, number
        self.begin()

    def begin(self) -> None:
        self._held, self.lines = 0, 0
        self.fault: BadLine | None = None

    def __iter__(self) -> _Ended:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            self.over = True
            raise
        if isinstance(line, BadLine):
            self.fault, line = self.fault or line, line.text
        self.lines, self.number, self._held = self.lines + 1, self.number + 1, self._held + len(line) + 1
        if self._held > LONGEST:
            raise FastflowError(
                f"{self.path}, line {self.number}: the row is longer than {LONGEST >> 20} MB; is a quote not closed?"
            )
        return line + "\n"


def _delimiter(line: str, path: str, layout: InputFormat) -> str:
    found = {mark: columns for mark in DELIMITERS if len(columns := _columns(line, mark)) > 1}
    if len(found) > 1 and layout.header:
        by_name = {m: c for m, c in found.items() if find_text_fields(c, layout.field)}
        found = by_name if len(by_name) == 1 else found
    if len(found) > 1:
        marks = " or ".join(DELIMITERS[mark] for mark in found)
        readings = "; or ".join(
            f"{len(columns)} columns: {list_names(list(map(repr, columns)))}" for columns in found.values()
        )
        raise FastflowError(f"{path}, line 1: is {marks} the delimiter? Name it with --delimiter ({readings})")
    return next(iter(found), ",")


def _columns(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


def _text_fields(names: list[str], head: list[str], source: Input, layout: InputFormat) -> tuple[str, ...]:
    path = source.path
    if source.fields or layout.field is not None or find_text_fields(names):
        source.fields = text_fields(names, path, 1, layout.field, source.fields)
        return source.fields
    if layout.header:
        quoted = list_names(list(map(repr, names)))
        if len(names) == 1:
            raise FastflowError(
                f"{path}, line 1: is this the header or the first text? For a header use --text-field {quoted}, for a "
                "text --no-header"
            )
        raise FastflowError(
            f"{path}, line 1: which column is the text? If these are names, use --text-field NAME; if line 1 is data, "
            f"--no-header --text-field NUMBER; found the columns {quoted}"
        )
    if len(names) == 1:
        source.fields = (names[0],)
        return source.fields
    seen = [f"{name} ({value})" for name, value in zip(names, head, strict=True)]
    raise FastflowError(
        f"{path}, line 1: which column is the text? Use --text-field; the columns are {list_names(seen)}"
    )


def _place(names: list[str], name: str, path: str) -> int:
    if names.count(name) > 1:
        raise FastflowError(f"{path}, line 1: the column {name!r} comes {names.count(name)} times: {list_names(names)}")
    return names.index(name)


def _name_place(names: list[str], name: str, path: str, purpose: str) -> int:
    if name not in names:
        raise FastflowError(f"{path}, line 1: no field {name!r} {purpose}; the fields are {list_names(names)}")
    return _place(names, name, path)


def _record(
    values: list[str], fields: list[int], key: int | None, keep: list[int], layout: InputFormat, line: int
) -> Record:
    texts, kept = join_texts((values[place] for place in fields), layout), tuple(values[place] for place in keep)
    return Record(texts, None if key is None else values[key], line, kept)
