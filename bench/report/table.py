"""A benchmark's results as a table to read.

    python -m fastflow.bench.report.table FILE.json

prints the table of a kept file with the project's own targets next to the ratios.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fastflow.bench.report import encoder as report_encoder
from fastflow.bench.report import serve as report_serve

Row = dict[str, Any]
QUIET = 0.1  # the share of the processors that others may use while targets are judged
COLUMNS = ("candidate", "median", "20-80 %", "runs", "x ours", "GFLOP/s", "GB/s", "x floor", "max error", "x unfused")


def duration(ms: float) -> str:
    """Three digits with the unit that fits: 5.12 us, 12.3 ms, 1.25 s."""
    for scale, unit in ((1e-3, "us"), (1.0, "ms"), (1e3, "s")):
        if ms < 1000 * scale or unit == "s":
            break
    value = ms / scale
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def threads(count: int) -> str:
    """1 thread, 2 threads."""
    return f"{count} thread{'s' * (count != 1)}"


def table(report: dict[str, Any], targets: bool = False) -> str:
    """The rows by subject, threads and batch, then the ratios, judged by the project's ``targets`` if these are
    asked for, and the candidates that were left out."""
    lines = [machine_line(report["machine"]), ""]
    flow = [row for row in report["rows"] if row["suite"] == "flow"]
    for (subject, count), rows in groupby(flow, key=lambda row: (row["subject"], row["threads"])):
        lines += [f"{subject}; {threads(count)}"]
        for batch, of_batch in groupby(rows, key=lambda row: row["batch"]):
            lines += _aligned([(f"B = {batch:,}", *COLUMNS[1:]), *_cells(list(of_batch))])
            lines.append("")
    others = [row for row in report["rows"] if row["suite"] not in ("flow", "serve")]
    lines += report_encoder.table(others, _aligned, duration)
    lines += report_serve.table([row for row in report["rows"] if row["suite"] == "serve"], _aligned, duration)
    if report["ratios"]:
        heading = "Against the targets" if targets else "In short; x: the peer's time over fastflow's"
        lines += [heading, *(_ratio_line(ratio, targets) for ratio in report["ratios"]), ""]
    lines += _left_out(report.get("skipped", []))
    if flow:
        lines += [
            "flow: GFLOP/s and GB/s count what the folded plan needs, whoever computes it; x floor is the time over "
            "the least that the measured ceilings allow;",
            "max error is against float64, x unfused that error over the unfused equations' in float32.",
        ]
    return "\n".join(lines)


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


def _cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    ours = next((row["median_ms"] for row in rows if row["name"] == "fastflow"), None)
    return [
        (
            row["name"], duration(row["median_ms"]), f"{duration(row['p20_ms'])} - {duration(row['p80_ms'])}",
            str(row["runs"]), f"{row['median_ms'] / ours:.1f}" if ours else "", f"{row['gflops']:.1f}",
            f"{row['gbs']:.1f}", f"{row['times_floor']:.1f}", f"{row['max_abs_err']:.1e}",
            "" if row["err_against_unfused"] is None else f"{row['err_against_unfused']:.2f}",
        )
        for row in sorted(rows, key=lambda row: row["median_ms"])
    ]  # fmt: skip


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns at their widest cell, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _ratio_line(ratio: dict[str, Any], targets: bool) -> str:
    verdict = _verdict(ratio) if targets else ""
    return f"  {ratio['value']:9.1f} {ratio['unit']:7}  {ratio['name']}, {threads(ratio['threads'])}{verdict}"


def _verdict(ratio: dict[str, Any]) -> str:
    """The bound of a ratio and whether it is reached; empty without a bound."""
    bound, word = (ratio["must"], "must") if ratio["must"] is not None else (ratio["aim"], "aim")
    sign = ">=" if ratio["unit"] == "x" else "<="
    reached = {True: "reached", False: "NOT REACHED", None: "not judged, others were busy"}[ratio["reached"]]
    return "" if bound is None else f"  ({word} {sign} {bound:g}: {reached})"


def main(arguments: Sequence[str]) -> None:
    """``arguments``: the JSON file of a run."""
    if len(arguments) != 1:
        raise SystemExit("usage: python -m fastflow.bench.report.table FILE.json")
    try:
        report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"{arguments[0]} cannot be read as JSON: {error}; name a file of fastflow bench --json"
        ) from error
    print(table(report, targets=True))


if __name__ == "__main__":
    main(sys.argv[1:])
