"""The common part of all readers: the record, the options on where a file holds its texts, and the fields."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fastflow.errors import FastflowError

PAIR = ("sentence1", "sentence2")
TEXT_FIELDS = ("text", "sentence")
MOST_PLACES = 20  # of rows that were skipped
Identity = str | int | float | bool | None  # an id as JSON holds it; a table's ids are strings


class Record(NamedTuple):
    """One line's texts (two for a pairs file), its id if one was asked for, the line number, from 1 (the row of
    Parquet, from 0, as outputs count), and the values of the fields to keep.
    """

    texts: tuple[str, ...]
    id: Identity
    line: int
    kept: tuple[Any, ...] = ()


class RowFault(FastflowError):
    """A row that cannot be embedded; with ``option`` it can, and all rows before it stay as they are."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


class Skipped:
    """The rows that ``--errors skip`` left out: their ``count``, and the ``places`` of the first MOST_PLACES."""

    def __init__(self) -> None:
        self.count, self.places = 0, list[str]()

    def add(self, path: str, unit: str, number: int) -> None:
        """Count a row, which is ``unit`` ``number`` of the input at ``path``."""
        self.count += 1
        if len(self.places) < MOST_PLACES:
            self.places.append(f"{path}, {unit} {number}")

    def describe(self) -> str:
        """The rows in words."""
        more = "; …" * (self.count > len(self.places))
        rows = "1 row is" if self.count == 1 else f"{self.count:,} rows are"
        return f"{rows} left out, with bytes that cannot be read: {'; '.join(self.places)}{more}"


class Layout(NamedTuple):
    """How an input holds its texts: the options of a command.

    ``field`` names the column of the text; without it a column ``text`` or ``sentence`` is taken, or the only one of
    a JSON object, or both of a pairs file's ``sentence1`` and ``sentence2``. ``errors``: strict, replace or skip, for
    bytes that ``encoding``, a codec of Python (None: UTF-8), does not have. ``delimiter`` and ``header`` are for csv
    and tsv: without a header the columns are called 1, 2, 3 and so on. ``null``: the texts of a txt end with a NUL, not
    with a line end. ``keep`` names fields that are carried along.
    """

    format: str | None = None
    field: str | None = None
    id_field: str | None = None
    errors: str = "strict"
    delimiter: str | None = None
    header: bool = True
    null: bool = False
    keep: tuple[str, ...] = ()
    encoding: str | None = None


def text_fields(names: list[str], path: str, line: int | None, field: str | None) -> tuple[str, ...]:
    """The columns that hold the texts; raises a FastflowError that names those there are."""
    where = path if line is None else f"{path}, line {line}"
    if field is not None:
        if field not in names:
            raise FastflowError(f"{where}: no field {field!r}; the fields are {listed(names)}")
        return (field,)
    if chosen := known_fields(names):
        return chosen
    if len(names) == 1:
        return (names[0],)
    raise FastflowError(f"{where}: which field is the text? Use --text-field; the fields are {listed(names)}")


def known_fields(names: list[str]) -> tuple[str, ...]:
    """The columns that hold texts by their names alone, () if none does."""
    if all(name in names for name in PAIR):
        return PAIR
    return next(((name,) for name in TEXT_FIELDS if name in names), ())


def listed(names: list[str]) -> str:
    """Column names for a message, on one line; long ones, and more than twenty, are cut."""
    shown = ["".join(c if c.isprintable() else repr(c)[1:-1] for c in name) for name in names[:20]]
    return ", ".join(name if len(name) <= 40 else name[:39] + "…" for name in shown) + ", …" * (len(names) > 20)


def plain(value: Any) -> Any:
    """A kept value as JSON holds it: a scalar of Arrow as its value; NaN and infinity, which JSON has not, as null."""
    value = value.as_py() if hasattr(value, "as_py") else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {name: plain(each) for name, each in value.items()} if isinstance(value, dict) else value
