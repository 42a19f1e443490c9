"""A benchmark's results as a table to read, and as a file to keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fastflow.bench.report.columns import MEANING, SUITES, Row, cells, headings, name_of, threads, together, with_ours
from fastflow.console import write_text

QUIET = 0.1  # the share of the processors that others may use while ratios mean something


def table(report: dict[str, Any]) -> str:
    """The rows suite by suite, then the ratios, and the candidates that were left out."""
    lines = [machine_line(report["machine"]), "", *_tables(report["rows"])]
    if report["ratios"]:
        lines += ["In short; x: the peer's time over fastflow's", *map(_ratio_line, report["ratios"]), ""]
    return "\n".join([*lines, *_left_out(report.get("skipped", []))])


def _tables(rows: Sequence[Row]) -> list[str]:
    """A table for each comparison of the suites, and below them what their columns mean."""
    lines: list[str] = []
    shown: set[str] = set()
    last = ""
    for _, group in groupby(rows, key=together):
        of_table = with_ours(list(group))
        note, (title, head) = SUITES[of_table[0]["suite"]].note, headings(of_table[0])
        made = [cells(row) for row in of_table]
        columns = [name for name in made[0] if any(of_row[name] for of_row in made)]
        body = [(name_of(row), *(of_row[name] for name in columns)) for row, of_row in zip(of_table, made, strict=True)]
        lines += [title] * (title != last) + [*_aligned([(head, *columns), *body]), ""]
        shown |= {note} if note else set(columns)
        last = title
    notes = [f"{said}." for column, said in MEANING.items() if column in shown]
    notes += [suite.note for suite in SUITES.values() if suite.note in shown]
    return [*lines, *notes, ""] if rows else []


def machine_line(machine: dict[str, Any]) -> str:
    """The processor or GPU, threads and ceilings in a line or two."""
    gpu = machine["gpu"]
    lines = [gpu["name"] if gpu else f"{machine['processor']}, {machine['processors_usable']} processors"]
    lines[0] += f"; torch {machine['versions'].get('torch', 'absent')}"
    for limit in machine["ceilings"]:
        rates = ", ".join(f"{level} {rate:.0f} GB/s" for level, rate in limit["gbs"].items())
        who = "" if gpu else f"{threads(limit['threads'])}: "
        if tiles := limit.get("tiles_gflops"):
            rates += ", tiles " + " and ".join(f"{dtype} {rate:.0f} GFLOP/s" for dtype, rate in tiles.items())
        lines.append(
            f"  {who}{limit['fma_gflops']:.0f} GFLOP/s (PyTorch's product {limit['sgemm_gflops']:.0f}), {rates}"
        )
    if (others := machine["processors_used_by_others"]) is not None:
        advice = ": too busy, peers lose more by that than fastflow does; do not quote these ratios"
        lines.append(f"  other processes used {others:.2f} processors meanwhile{advice if busy(machine) else ''}")
    return "\n".join(lines)


def busy(machine: dict[str, Any]) -> bool:
    """Whether other processes used so much of the machine that nothing can be claimed of the ratios."""
    others = machine["processors_used_by_others"]
    return others is not None and others > QUIET * machine["processors_usable"]


def _left_out(skipped: Sequence[Row]) -> list[str]:
    """A line for each place and reason, with everybody whom it kept out there."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in skipped:
        where = f", {threads(entry['threads'])}, B = {entry['batch']:,}" if "batch" in entry else ""
        names = found.setdefault((f"{entry['subject']}{where}", entry["reason"]), [])
        name = "everybody" if entry["name"] == "*" else entry["name"]
        names += [name] if name not in names else []  # a suite may have named it before
    return [f"left out: {where}: {', '.join(names)}: {reason}" for (where, reason), names in found.items()]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns at their widest cell, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _ratio_line(ratio: dict[str, Any]) -> str:
    return f"  {ratio['value']:9.1f} {ratio['unit']:7}  {ratio['name']}, {threads(ratio['threads'])}"


def number(value: Any) -> Any:
    """Floats at six significant digits, inside lists and dictionaries too: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: number(item) for key, item in value.items()}
    return [number(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write ``report`` (machine, rows, ratios, ...) to ``path``, whole or not at all."""
    write_text(str(path), json.dumps(number(report), indent=1, allow_nan=False) + "\n")
