"""Parquet columns of JSON values: text during the run, and typed at the end, when all values are known.

The columns of a shard stay text, with their kinds (int, text ...) in the schema, so that joined parts equal one run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastflow.files.read import plain
from fastflow.files.read.parquet import arrow

KEY = b"fastflow_kinds"  # of a column's kinds in the schema's metadata
LARGEST = 2**63 - 1
EXACT = 2**53  # float64 has every whole number up to this
Kinds = dict[str, set[str]]


def look(kinds: Kinds, name: str, values: Iterable[Any]) -> None:
    """Add the kinds of ``values`` to the column ``name`` in ``kinds``."""
    kinds.setdefault(name, set()).update(kind for kind in map(_kind, values) if kind)


def as_text(values: Iterable[Any]) -> list[str | None]:
    """Return values as text: None and strings as they are, others as JSON."""
    return [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in map(plain, values)]


def set_types(schema: Any, kinds: Mapping[str, set[str]]) -> Any:
    """Return ``schema`` with a type for each column of ``kinds`` that holds its values."""
    pa, _ = arrow("writing Parquet")
    fields = [pa.field(f.name, _type(kinds[f.name])) if f.name in kinds else f for f in schema]
    return pa.schema(fields, schema.metadata)


def mark_kinds(schema: Any, kinds: Mapping[str, set[str]]) -> Any:
    """Return ``schema`` with the kinds of each column in its metadata."""
    pa, _ = arrow("writing Parquet")
    fields = [f.with_metadata({KEY: " ".join(sorted(kinds[f.name]))}) if f.name in kinds else f for f in schema]
    return pa.schema(fields, schema.metadata)


def join_schemas(schemas: Sequence[Any]) -> Any | None:
    """Return the schema of one run from its parts' schemas; None if these do not fit."""
    kinds: Kinds = {}
    for schema in schemas:
        for field in schema:
            if KEY in (field.metadata or {}):
                kinds.setdefault(field.name, set()).update(field.metadata[KEY].decode().split())
    found = [set_types(schema, kinds) for schema in schemas]
    # a column with kinds in one part must have them in all
    marks = [[field.name for field in schema if KEY in (field.metadata or {})] for schema in schemas]
    same = all(each.equals(found[0], check_metadata=True) for each in found)
    return found[0] if same and all(each == marks[0] for each in marks) else None


def cast(batch: Any, schema: Any) -> Any:
    """Cast the columns of a batch to ``schema``."""
    pa, _ = arrow("writing Parquet")
    return pa.record_batch(batch.columns, schema=schema)


def _kind(value: Any) -> str:
    value = plain(value)
    if value is None:
        return ""
    if type(value) is int:
        return "int" if abs(value) <= EXACT else "long" if -LARGEST - 1 <= value <= LARGEST else "other"
    return {bool: "bool", float: "float", str: "text"}.get(type(value), "other")


def _type(kinds: set[str]) -> Any:
    pa, _ = arrow("writing Parquet")
    if kinds and kinds <= {"int", "long"}:
        return pa.int64()
    if kinds and kinds <= {"int", "float"}:
        return pa.float64()
    return pa.bool_() if kinds == {"bool"} else pa.string()
