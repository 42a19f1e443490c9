"""Check the fields of a part's manifest, a file that may be hostile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastflow.files.parts.counting import Counted, span
from fastflow.values import is_whole, short

MOST_ROWS = 2**62
MOST_PARTS = 1_000_000


def find_wrong_field(found: dict[str, Any]) -> str | None:
    """Describe the first wrong field of the manifest ``found``, or None."""
    for name, fits in _FIELDS.items():
        if name not in found:
            return f"{name}: missing"
        if not fits(found[name]):
            return f"{name}: {short(found[name])}"
    if extra := sorted(found.keys() - _FIELDS.keys()):
        return f"{short(extra[0])}, which no manifest has"
    number, of = found["shard"]
    if not 1 <= number <= of or tuple(found["rows"]) != span(found["total"], (number, of)):
        return f"rows: {short(found['rows'])} of {found['total']} are not those of part {number} of {of}"
    if found["total"] != sum(each["rows"] for each in found["inputs"]):
        return f"total: {found['total']} rows are not those of the inputs"
    if found["skipped"] > found["rows"][1] - found["rows"][0]:
        return f"skipped: {found['skipped']} rows are more than the part has"
    if (found["bytes"] is None) != (found["sha256"] is None):
        return "sha256: a part that is whole has bytes and sha256"
    return None


def _counts(value: Any, most: int = MOST_ROWS) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(is_whole(each, 0, most) for each in value)


def _is_input(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"name", *Counted._fields}
        and isinstance(value["name"], str)
        and is_whole(value["rows"], 0, MOST_ROWS)
        and is_whole(value["size"], 0, MOST_ROWS)
        and _is_hash(value["sha256"])
    )


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _is_run(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    options = value.get("options", {})
    plain = all(isinstance(each, str | int | float | None) for name, each in value.items() if name != "options")
    return plain and isinstance(options, dict) and isinstance(options.get("layout", {}), dict)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "part": lambda v: isinstance(v, str) and v not in ("", "..") and Path(v).name == v and len(v) < 256,
    "shard": lambda v: _counts(v, MOST_PARTS),
    "rows": _counts,
    "total": lambda v: is_whole(v, 0, MOST_ROWS),
    "inputs": lambda v: isinstance(v, list) and bool(v) and all(map(_is_input, v)),
    "run": _is_run,
    "arguments": lambda v: isinstance(v, list) and all(isinstance(each, str) for each in v),
    "bytes": lambda v: v is None or is_whole(v, 0, MOST_ROWS),
    "sha256": lambda v: v is None or _is_hash(v),
    "skipped": lambda v: is_whole(v, 0, MOST_ROWS),
}
