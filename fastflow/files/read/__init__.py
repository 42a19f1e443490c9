"""The record that every reader yields, and the options that find its text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastflow.errors import FastflowError

if TYPE_CHECKING:
    from tempfile import SpooledTemporaryFile

PAIR = ("sentence1", "sentence2")
TEXT_FIELDS = ("text", "sentence")
MOST_PLACES = 20  # skipped rows that a message lists
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


class Skipped:
    """The rows that ``--errors skip`` left out: ``count``, ``places`` of the first, ``lines`` of OUT.skipped."""

    def __init__(self) -> None:
        self.count, self.places = 0, list[str]()
        self.lines: SpooledTemporaryFile[bytes] | None = None

    def add(self, row: int, fault: RowFault) -> None:
        if len(self.places) < MOST_PLACES:
            self.places.append(fault.place)
        self.append(json.dumps({"row": row, "reason": f"{fault.place}: {fault.fault}"}).encode())

    def append(self, line: bytes) -> None:
        if self.lines is None:
            from tempfile import SpooledTemporaryFile

            self.lines = SpooledTemporaryFile(1 << 20)  # noqa: SIM115 (closed with the object)
        self.lines.write(line + b"\n")
        self.count += 1

    def describe(self, target: Path | None) -> str:
        more = "; …" * (self.count > len(self.places))
        rows = "1 row is" if self.count == 1 else f"{self.count:,} rows are"
        listed = "" if target is None else f" ({target}.skipped has the reasons)"
        return f"{rows} left out{listed}: {'; '.join(self.places)}{more}"


class InputFormat(NamedTuple):
    """The options for finding the texts of an input.

    ``field``: the text column; None takes ``text`` or ``sentence``, the only field of an object, or the pair
    ``sentence1``, ``sentence2``. ``errors``: strict, replace (bytes that are not of ``encoding``; None: UTF-8) or skip
    (rows that cannot be used). Without a ``header`` columns are called 1, 2, 3. ``null``: texts end with NUL.
    ``keep``: fields to output. ``quoting`` of a tsv: csv, none, or None, which looks at line 1.
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
    """Choose the text columns among ``names``, or take ``chosen``; raises a FastflowError if unclear."""
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
    """Return the columns in ``field``, or called text, sentence, or sentence1 and sentence2; () without them."""
    if field is not None:
        listed = (field,) if field in names else tuple(field.split(","))
        return listed if set(listed) <= set(names) else ()
    if all(name in names for name in PAIR):
        return PAIR
    return next(((name,) for name in TEXT_FIELDS if name in names), ())


def join_texts(texts: Iterable[str], layout: InputFormat) -> tuple[str, ...]:
    """Join the texts of several columns; a pair stays two texts."""
    return tuple(texts) if layout.field is None else ("\n".join(texts),)


def list_names(names: list[str]) -> str:
    """List names on one line; cut long names and lists."""
    shown = ["".join(c if c.isprintable() else repr(c)[1:-1] for c in name) for name in names[:20]]
    return ", ".join(name if len(name) <= 40 else name[:39] + "…" for name in shown) + ", …" * (len(names) > 20)


def plain(value: Any) -> Any:
    """Return a kept value for JSON; NaN and infinity become None."""
    value = _from_arrow(value) if hasattr(value, "as_py") else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {name: plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def _from_arrow(value: Any) -> Any:
    """Return an Arrow scalar's value; decimals, and times, which sort as text, are text."""
    import numpy as np
    from pyarrow import types

    kind = value.type
    if not value.is_valid:
        return None
    if types.is_struct(kind):
        return {kind.field(at).name: _from_arrow(value[at]) for at in range(kind.num_fields)}
    if types.is_nested(kind):  # a list
        return [_from_arrow(each) for each in value.values]
    if types.is_decimal(kind):
        return format(value.as_py(), "f")
    if not types.is_temporal(kind):
        return value.as_py()
    unit: Any = "D" if types.is_date32(kind) else "ms" if types.is_date(kind) else kind.unit
    date, _, time = str(np.datetime_as_string(np.datetime64(value.value, unit))).partition("T")
    if types.is_date(kind) or types.is_time(kind):
        return date if types.is_date(kind) else time
    return f"{date}T{time}" + "Z" * (kind.tz is not None)
