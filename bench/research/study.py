"""The files of a study: OUT.json with figures, command and machine, and OUT.md, their page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastflow.bench.measure.machine import describe
from fastflow.bench.report.table import shorten

Found = dict[str, Any]
TABLES = ("rows", "candidates")  # lists of records with the same names in each, which are written once
NAMES, VALUES = "names", "values"


def write(out: Path, result: Found, make_page: Callable[[Found], str]) -> None:
    """Write ``result`` as OUT.json, for ``read``, and its page as OUT.md."""
    kept = shorten({"machine": describe(), **result})
    out.parent.mkdir(parents=True, exist_ok=True)
    fields = [f"{json.dumps(name)}: {_to_lines(name, value)}" for name, value in kept.items()]
    out.with_suffix(".json").write_text("{\n" + ",\n".join(fields) + "\n}\n", encoding="utf-8")
    out.with_suffix(".md").write_text(make_page(kept), encoding="utf-8")


def read(path: Path) -> Found:
    """Return the figures of a study, tables as lists of records."""
    found: Found = _unpack(json.loads(path.read_text(encoding="utf-8")))
    return found


def make_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table: the first column to the left, the others to the right."""
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _to_lines(name: str, value: Any) -> str:
    """JSON of the field ``name``, an item of a list a line."""
    value = _pack(value, name)
    if isinstance(value, dict) and set(value) == {NAMES, VALUES}:
        return f'{{"{NAMES}": {json.dumps(value[NAMES])},\n"{VALUES}": {_to_lines("", value[VALUES])}}}'
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(item, separators=(",", ":")) for item in value) + "\n]"
    return json.dumps(value)


def _pack(value: Any, name: str = "") -> Any:
    """``value`` with the records of TABLES, and the ``scores`` in them, as lists of values after one list of names."""
    if isinstance(value, list):
        items = [_pack(item) for item in value]
        if name not in TABLES or not all(isinstance(item, dict) for item in items):
            return items
        if all("scores" in item for item in items):  # of a place, by candidate
            names = list(dict.fromkeys(label for item in items for label in item["scores"]))
            rest = [{k: v for k, v in item.items() if k != "scores"} for item in items]
            values = [[one, [item["scores"].get(label) for label in names]]
                      for one, item in zip(rest, items, strict=True)]  # fmt: skip
            return {NAMES: names, VALUES: values}
        names = list(dict.fromkeys(label for item in items for label in item))
        if any(set(item) != set(names) for item in items):
            return items
        return {NAMES: names, VALUES: [[item[label] for label in names] for item in items]}
    if isinstance(value, dict):
        return {label: _pack(item, label) for label, item in value.items()}
    return value


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {NAMES, VALUES}:
        return {label: _unpack(item) for label, item in value.items()}
    names = value[NAMES]
    if all(len(row) == 2 and isinstance(row[0], dict) and isinstance(row[1], list) for row in value[VALUES]):
        return [{**one, "scores": {label: s for label, s in zip(names, scores, strict=True) if s is not None}}
                for one, scores in value[VALUES]]  # fmt: skip
    return [dict(zip(names, row, strict=True)) for row in value[VALUES]]
