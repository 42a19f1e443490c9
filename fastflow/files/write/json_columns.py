"""Columns of Parquet whose values come from JSON: their type is known when the last value has been read.

Until then such a column is text, and a value that is no text is written as JSON. ``Kinds`` remembers what values there
were, in memory that does not grow with the rows; at the end the column gets the type that holds all. A part of
a run has not seen the values of the others: its columns stay text, and their fields in the schema carry the kinds, so
that joining the parts gives the columns of one run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastflow.files.read.parquet import arrow
from fastflow.files.read.records import plain

KEY = b"fastflow_kinds"  # of a field's metadata
LARGEST = 2**63 - 1  # of int64
EXACT = 2**53  # every whole number up to this is a float64
Kinds = dict[str, set[str]]  # by the name of the column


def look(kinds: Kinds, name: str, values: Iterable[Any]) -> None:
    """Add the kinds of ``values`` to those of the column ``name``."""
    kinds.setdefault(name, set()).update(kind for kind in map(_kind, values) if kind)


def as_text(values: Iterable[Any]) -> list[str | None]:
    """Values as they lie in a column of text: those that are no text as JSON, and null as null."""
    return [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in map(plain, values)]


def typed(schema: Any, kinds: Mapping[str, set[str]]) -> Any:
    """``schema``, in which the columns of ``kinds`` have the type that holds all of their values."""
    pa, _ = arrow("writing Parquet")
    fields = [pa.field(f.name, _type(kinds[f.name])) if f.name in kinds else f for f in schema]
    return pa.schema(fields, schema.metadata)


def marked(schema: Any, kinds: Mapping[str, set[str]]) -> Any:
    """``schema``, in which the columns of ``kinds`` carry them."""
    pa, _ = arrow("writing Parquet")
    fields = [f.with_metadata({KEY: " ".join(sorted(kinds[f.name]))}) if f.name in kinds else f for f in schema]
    return pa.schema(fields, schema.metadata)


def joined(schemas: Sequence[Any]) -> Any | None:
    """The schema of one run, from those of its parts; None if these do not belong together."""
    kinds: Kinds = {}
    for schema in schemas:
        for field in schema:
            if KEY in (field.metadata or {}):
                kinds.setdefault(field.name, set()).update(field.metadata[KEY].decode().split())
    found = [typed(schema, kinds) for schema in schemas]
    # a column that carries kinds in one part carries them in all
    marks = [[field.name for field in schema if KEY in (field.metadata or {})] for schema in schemas]
    same = all(each.equals(found[0], check_metadata=True) for each in found)
    return found[0] if same and all(each == marks[0] for each in marks) else None


def cast(batch: Any, schema: Any) -> Any:
    """A batch of rows, whose columns get the types of ``schema``."""
    pa, _ = arrow("writing Parquet")
    return pa.record_batch(batch.columns, schema=schema)  # which casts if the types differ


def _kind(value: Any) -> str:
    """The kind of a JSON value that decides a column's type; nothing for null."""
    value = plain(value)
    if value is None:
        return ""
    if type(value) is int:
        return "int" if abs(value) <= EXACT else "long" if -LARGEST - 1 <= value <= LARGEST else "other"
    return {bool: "bool", float: "float", str: "text"}.get(type(value), "other")


def _type(kinds: set[str]) -> Any:
    """The type of a column: whole numbers mixed with others are float64, if that changes none; else it is text."""
    pa, _ = arrow("writing Parquet")
    if kinds and kinds <= {"int", "long"}:
        return pa.int64()
    if kinds and kinds <= {"int", "float"}:
        return pa.float64()
    return pa.bool_() if kinds == {"bool"} else pa.string()
