"""A benchmark's results as a table, and as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fastflow.bench.report.columns import (
    MEANING,
    SUITES,
    Row,
    compare_with_ours,
    find_table,
    format_threads,
    make_cells,
    make_headings,
    make_name,
)
from fastflow.console import write_text

QUIET = 0.1  # the share of the processors that others may use while ratios mean something


def make_table(report: dict[str, Any]) -> str:
    """Return the rows suite by suite, then the ratios, and the candidates that were left out."""
    lines = [describe_machine(report["machine"]), "", *make_tables(report["rows"])]
    if report["ratios"]:
        lines += ["In short; x: the peer's time over fastflow's", *map(_describe_ratio, report["ratios"]), ""]
    return "\n".join([*lines, *_list_left_out(report.get("skipped", []))])


def make_tables(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table for each comparison, then the meaning of the columns."""
    lines: list[str] = []
    shown: set[str] = set()
    last = ""
    for _, group in groupby(rows, key=find_table):
        of_table = compare_with_ours(list(group))
        note, (title, head) = SUITES[of_table[0]["suite"]].note, make_headings(of_table[0])
        made = [make_cells(row) for row in of_table]
        columns = [name for name in made[0] if any(of_row[name] for of_row in made)]
        body = [
            (make_name(row), *(of_row[name] for name in columns)) for row, of_row in zip(of_table, made, strict=True)
        ]
        lines += [title] * (title != last) + [*_align([(head, *columns), *body]), ""]
        shown |= {note} if note else set(columns)
        last = title
    notes = [f"{said}." for column, said in MEANING.items() if column in shown]
    notes += [suite.note for suite in SUITES.values() if suite.note in shown]
    return [*lines, *notes, ""] if rows else []


def describe_machine(machine: dict[str, Any]) -> str:
    """Return the processor or GPU, threads and ceilings in a line or two."""
    gpu = machine["gpu"]
    lines = [gpu["name"] if gpu else f"{machine['processor']}, {machine['processors_usable']} processors"]
    lines[0] += f"; torch {machine['versions'].get('torch', 'absent')}"
    for limit in machine.get("ceilings", []):
        rates = ", ".join(f"{level} {rate:.0f} GB/s" for level, rate in limit["gbs"].items())
        who = "" if gpu else f"{format_threads(limit['threads'])}: "
        if tiles := limit.get("tiles_gflops"):
            rates += ", tiles " + " and ".join(f"{dtype} {rate:.0f} GFLOP/s" for dtype, rate in tiles.items())
        product = f"{limit['sgemm_gflops']:.0f}"
        if fma := limit.get("fma_gflops"):  # of earlier versions
            lines.append(f"  {who}{fma:.0f} GFLOP/s (PyTorch's product {product}), {rates}")
        else:
            lines.append(f"  {who}PyTorch's product {product} GFLOP/s, {rates}")
    if (others := machine["processors_used_by_others"]) is not None:
        advice = ": too busy, peers lose more by that than fastflow does; do not quote these ratios"
        lines.append(f"  other processes used {others:.2f} processors meanwhile{advice if is_busy(machine) else ''}")
    return "\n".join(lines)


def is_busy(machine: dict[str, Any]) -> bool:
    """Return whether other processes used so much of the machine that the ratios claim nothing."""
    others = machine["processors_used_by_others"]
    return others is not None and others > QUIET * machine["processors_usable"]


def _list_left_out(skipped: Sequence[Row]) -> list[str]:
    """A line for each place and reason, with everybody whom it kept out."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in skipped:
        where = f", {format_threads(entry['threads'])}, B = {entry['batch']:,}" if "batch" in entry else ""
        names = found.setdefault((f"{entry['subject']}{where}", entry["reason"]), [])
        name = "everybody" if entry["name"] == "*" else entry["name"]
        names += [name] if name not in names else []  # a suite may have named it before
    return [f"left out: {where}: {', '.join(names)}: {reason}" for (where, reason), names in found.items()]


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _describe_ratio(ratio: dict[str, Any]) -> str:
    return f"  {ratio['value']:9.1f} {ratio['unit']:7}  {ratio['name']}, {format_threads(ratio['threads'])}"


def shorten(value: Any) -> Any:
    """Return floats at six significant digits, inside lists and dictionaries too."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in value.items()}
    return [shorten(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write ``report`` (machine, rows, ratios, ...) to ``path``, whole or not at all."""
    write_text(str(path), json.dumps(shorten(report), indent=1, allow_nan=False) + "\n")
