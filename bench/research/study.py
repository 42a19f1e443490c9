"""The files of a study: OUT.json with figures, command and machine, and OUT.md, their page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastflow.bench.measure.machine import describe
from fastflow.bench.report.table import shorten, write_json
from fastflow.console import write_text

Found = dict[str, Any]


def write(out: Path, result: Found, make_page: Callable[[Found], str]) -> None:
    """Write ``result`` as OUT.json, for ``read``, and its page as OUT.md."""
    kept = shorten({"machine": describe(), **result})
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, out.with_suffix(".json"))
    write_text(str(out.with_suffix(".md")), make_page(kept))


def read(path: Path) -> Found:
    """Return the figures of a study."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def make_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table: the first column to the left, the others to the right."""
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
