"""The record that every reader of inputs yields, and the options that find its text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from fastflow.errors import FastflowError

PAIR = ("sentence1", "sentence2")
TEXT_FIELDS = ("text", "sentence")
LONGEST = 1 << 24  # the most bytes of a row
Identity = str | int | float | bool | None  # a row's id; from csv and tsv always str


class Record(NamedTuple):
    """A row of an input: text (two of a pair), id, line from 1 (Parquet: row from 0), kept values."""

    texts: tuple[str, ...]
    id: Identity
    line: int
    kept: tuple[Any, ...] = ()


class RowFault(FastflowError):
    """Error for a row that cannot be used, at ``place``; ``option`` continues the run, and changes no earlier row."""

    def __init__(self, place: str, fault: str, remedy: str = "", option: str = "--errors skip") -> None:
        super().__init__(f"{place}: {fault}" + f"; {remedy}" * bool(remedy))
        self.place, self.fault, self.remedy, self.option = place, fault, remedy, option


class Layout(NamedTuple):
    """The options for finding the texts of an input.

    ``field``: the text column; None takes ``text`` or ``sentence``, the only field of an object, or the pair
    ``sentence1``, ``sentence2``. ``errors``: strict, replace (bytes that are not of ``encoding``; None: UTF-8) or skip
    (rows that cannot be used). Without a ``header`` columns are called 1, 2, 3. ``null``: texts end with NUL.
    ``keep``: fields to output. ``quoting`` of a table: csv, none, or None, which is csv for a tsv too if line 1 is
    quoted. A ``field`` may list columns (a,b).
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
    quoting: str | None = None


def text_fields(
    names: list[str], path: str, line: int | None, field: str | None, chosen: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Choose the text columns among ``names``; ``chosen`` are the columns of earlier rows.

    Raises a FastflowError if the choice is unclear or a column is absent.
    """
    where = path if line is None else f"{path}, line {line}"
    if absent := [name for name in chosen if name not in names]:
        raise FastflowError(
            f"{where}: no field {absent[0]!r}, the text of earlier rows; the fields are {list_names(names)}"
        )
    if chosen:
        return chosen
    if chosen := find_text_fields(names, field):
        return chosen
    if field is not None:
        raise FastflowError(f"{where}: no field {field!r}; the fields are {list_names(names)}")
    if len(names) == 1:
        return (names[0],)
    raise FastflowError(f"{where}: which field is the text? Use --text-field; the fields are {list_names(names)}")


def find_text_fields(names: list[str], field: str | None = None) -> tuple[str, ...]:
    """Return the column ``field`` or the columns that it lists; None: text, sentence, or sentence1 and sentence2.

    () without them.
    """
    if field is not None:
        listed = (field,) if field in names else tuple(field.split(","))
        return listed if set(listed) <= set(names) else ()
    if all(name in names for name in PAIR):
        return PAIR
    return next(((name,) for name in TEXT_FIELDS if name in names), ())


def join_texts(texts: Iterable[str], layout: Layout) -> tuple[str, ...]:
    """Join the texts of the columns of ``field``; a pair stays two texts."""
    return tuple(texts) if layout.field is None else ("\n".join(texts),)


def list_names(names: list[str]) -> str:
    """List names on one line for a message; cut long names, and lists of over twenty."""
    shown = ["".join(c if c.isprintable() else repr(c)[1:-1] for c in name) for name in names[:20]]
    return ", ".join(name if len(name) <= 40 else name[:39] + "…" for name in shown) + ", …" * (len(names) > 20)


def plain(value: Any) -> Any:
    """Return a kept value for JSON: Arrow scalars as values, NaN and infinity as None."""
    if hasattr(value, "as_py"):
        from fastflow.files.read.parquet import json_value

        value = json_value(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {name: plain(each) for name, each in value.items()} if isinstance(value, dict) else value
