"""A benchmark's results as tables and as a file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.console import write_text

Row = dict[str, Any]
QUIET = 0.1  # share of processors that others use, above which ratios mean little


def format_duration(ms: float) -> str:
    """Format three digits with a unit."""
    for scale, unit in ((1e-3, "us"), (1.0, "ms"), (1e3, "s")):
        if ms < 1000 * scale or unit == "s":
            break
    value = ms / scale
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def format_threads(count: int) -> str:
    """Format "1 thread" or "2 threads"."""
    return f"{count} thread{'s' * (count != 1)}"


def _format_load(row: Row) -> str:
    if row["share"] is None:
        return f"{row['batch']} at a time"
    return f"{row['share']:.0%}" + (f", lists of {row['batch']}" if row["batch"] > 1 else "")


class Suite(NamedTuple):
    """A suite's tables: a row's ``size`` in words, ``columns`` for COLUMN, and a ``note`` instead of MEANING."""

    size: str
    columns: str
    note: str = ""


COLUMN = re.compile(r"(.+)=(\w+):(\S*)(.*)")  # head=key:format, and a unit after the format
FORMS = {  # formats besides Python's
    "time": lambda row, key: format_duration(row[key]),
    "quantiles": lambda row, key: f"{format_duration(row['p20_ms'])} - {format_duration(row['p80_ms'])}",
    "load": lambda row, key: _format_load(row),
}
TIMES = "median=median_ms:time, 20-80 %=p20_ms:quantiles, runs=runs:, "
# compare_with_ours adds "ours": a row's time over fastflow's
SUITES = {
    "flow": Suite(
        "B = {batch:,}",
        TIMES + "in a graph=gpu_ms:time, x ours=ours:.1f, GFLOP/s=gflops:.1f, GB/s=gbs:.1f, x floor=times_floor:.1f, "
        "max error=max_abs_err:.1e, x unfused=err_against_unfused:.2f",
        "flow: GFLOP/s and GB/s count the work of the folded plan; in a graph: a call as one of many in a CUDA graph;\n"
        "max error is against float64, x unfused is that error over the unfused equations' in float32.",
    ),
    "encoder": Suite(
        "encoder {batch} x {tokens} tokens",
        TIMES + "GPU=gpu_ms:time, x ours=ours:.2f, GFLOP/s=gflops:.0f, of peak=compute_fraction:.0%, GB/s=gbs:.1f, "
        "of reads=bandwidth_fraction:.0%, x floor=times_floor:.1f, cosine=least_cosine:.6f",
    ),
    "end-to-end": Suite(
        "end-to-end of {batch:,} texts, {tokens:,} tokens",
        TIMES + "x ours=ours:.2f, 99 %=p99_ms:.2f ms, texts/s=texts_per_s:,.0f, GFLOP/s=gflops:.0f, "
        "of peak=compute_fraction:.0%, cosine=least_cosine:.6f",
    ),
    "startup": Suite(
        "startup to the first vector",
        TIMES + "x ours=ours:.2f, resident=resident_mb:.0f MB, peak=peak_mb:.0f MB, anonymous=anonymous_mb:.0f MB",
    ),
    "serve": Suite(
        "serve",
        "load=batch:load, p50=median_ms:time, p99=p99_ms:time, texts/s=texts_per_s:,.0f, refused=refused:,, "
        "in (p99)=refused_p99_ms:time, failed=failed:,, sent late (p99)=lag_p99_ms:time, generator=generator_cpu:.0%",
        "serve: load is a share of the Runtime's texts a second; generator: the processors that the load itself took.",
    ),
    "static": Suite(
        "static, {batch:,} texts of {tokens:,} tokens",
        TIMES + "x ours=ours:.2f, 99 %=p99_ms:time, texts/s=texts_per_s:,.0f, x floor=times_floor:.1f, "
        "max error=max_abs_err:.1e, resident=resident_mb:.0f MB, anonymous=anonymous_mb:.0f MB",
        "static: max error is against float64.",
    ),
    "rerank": Suite(
        "rerank {batch:,} documents of {tokens:,} tokens",
        TIMES + "x ours=ours:.2f, pairs/s=texts_per_s:,.0f, correlation=least_cosine:.6f, max error=max_abs_err:.1e",
        "rerank: correlation and max error are of the scores, against PyTorch's in float32.",
    ),
    "duplicates": Suite(
        "{batch:,} texts",
        TIMES + "x ours=ours:.2f, processor=cpu_ms:time, GOP/s=gflops:.0f, of peak=compute_fraction:.0%, "
        "pairs=pairs:,, recall=recall:.4f, memory=anonymous_mb:.0f MB",
        "duplicates: processor: time of all threads, and GOP/s of int8 in a second of it; of peak: over the fastest\n"
        "product of int8 that was measured; recall: share of the exact pairs found or, of an index, not both kept;\n"
        "memory: without mapped files, what the call adds.",
    ),
}
MEANING = {
    "x ours": "x ours: the time over fastflow's in the same dtype",
    "GPU": "GPU: the same call's graph, replayed again and again without waiting for it",
    "GFLOP/s": "GFLOP/s count the encoder's products",
    "of peak": "of peak: GFLOP/s over the ceiling that was measured for that dtype, on a CPU AMX's tiles where there "
    "are any, else 1, 2 and 4 times float32's for float32, bfloat16 and int8; wrong where others kept the machine busy",
    "GB/s": "GB/s: the layers' weights once a call",
    "of reads": "of reads: GB/s over what the machine reads from memory",
    "x floor": "x floor: the time over the least that the ceilings of arithmetic and memory allow",
    "cosine": "cosine: the least of any text against PyTorch in float32",
    "anonymous": "memory: resident, its peak, without mapped files",
}


def make_cells(row: Row) -> dict[str, str]:
    """Return the cell of each column, empty if unknown."""
    found = {}
    for head, key, form, unit in (COLUMN.findall(one)[0] for one in SUITES[row["suite"]].columns.split(", ")):
        if row.get(key) is None:
            found[head] = ""
        else:
            found[head] = FORMS[form](row, key) if form in FORMS else f"{row[key]:{form}}{unit}"
    return found


def describe_size(row: Row) -> str:
    """Return the size of a row in words."""
    suite = "startup" if (row["suite"], row["tokens"]) == ("static", None) else row["suite"]
    return SUITES[suite].size.format_map(row)


def find_table(row: Row) -> tuple[Any, ...]:
    """Return the fields that the rows of a table share."""
    same = (row["suite"], row["subject"], row["threads"])
    return same if row["suite"] == "serve" else (*same, row["batch"], row["tokens"])


def compare_with_ours(rows: list[Row]) -> list[Row]:
    """Return the rows of a table, the fastest first, with ``ours``: the time over fastflow's of equal dtype.

    In flow the dtypes may differ; rows of serve stay as they are.
    """
    suite = rows[0]["suite"]
    if suite == "serve":
        return rows

    def group_of(row: Row) -> str:
        return "" if suite == "flow" else str(row["dtype"])

    own = {group_of(row): row["median_ms"] for row in rows if row["name"] == "fastflow"}
    fastest = sorted(rows, key=lambda row: float(row["median_ms"]))
    return [row | ({"ours": row["median_ms"] / own[group_of(row)]} if group_of(row) in own else {}) for row in fastest]


def make_headings(row: Row) -> tuple[str, str]:
    """Return the title of the row's table and the head of its first column."""
    title = f"{row['subject']}; {format_threads(row['threads'])}"
    return (title, describe_size(row)) if row["suite"] == "flow" else (f"{title}; {describe_size(row)}", "candidate")


def make_name(row: Row) -> str:
    """Return the first cell of the row."""
    return str(row["name"]) if row["suite"] == "flow" else f"{row['name']} {row['dtype']}"


def make_table(report: dict[str, Any]) -> str:
    """Format the rows by suite, the ratios and the left-out candidates."""
    lines = [describe_machine(report["machine"]), "", *make_tables(report["rows"])]
    if ratios := report["ratios"]:
        lines += ["In short; x: the peer's time over fastflow's"]
        lines += [f"  {r['value']:9.1f} {r['unit']:7}  {r['name']}, {format_threads(r['threads'])}" for r in ratios]
        lines += [""]
    return "\n".join([*lines, *_list_left_out(report.get("skipped", []))])


def make_tables(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table for each comparison, and the meaning of the columns."""
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
    """Return processor or GPU, threads and ceilings."""
    gpu = machine["gpu"]
    who = gpu["name"] if gpu else f"{machine['processor']}, {machine['processors_usable']} processors"
    lines = [f"{who}; torch {machine['versions'].get('torch', 'absent')}"]
    for limit in machine.get("ceilings", []):
        rates = ", ".join(f"{level} {rate:.0f} GB/s" for level, rate in limit["gbs"].items())
        who = "" if gpu else f"{format_threads(limit['threads'])}: "
        if tiles := limit.get("tiles_gflops"):
            rates += ", tiles " + " and ".join(f"{dtype} {rate:.0f} GFLOP/s" for dtype, rate in tiles.items())
        product, fma = f"{limit['sgemm_gflops']:.0f}", limit.get("fma_gflops")  # earlier versions lack fma
        told = f"{fma:.0f} GFLOP/s (PyTorch's product {product})" if fma else f"PyTorch's product {product} GFLOP/s"
        lines.append(f"  {who}{told}, {rates}")
    if (others := machine["processors_used_by_others"]) is not None:
        advice = ": too busy, peers lose more by that than fastflow does; do not quote these ratios"
        lines.append(f"  other processes used {others:.2f} processors meanwhile{advice if is_busy(machine) else ''}")
    return "\n".join(lines)


def is_busy(machine: dict[str, Any]) -> bool:
    """Return whether other processes spoil the ratios."""
    others = machine["processors_used_by_others"]
    return others is not None and others > QUIET * machine["processors_usable"]


def _list_left_out(skipped: Sequence[Row]) -> list[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for entry in skipped:
        where = f", {format_threads(entry['threads'])}, B = {entry['batch']:,}" if "batch" in entry else ""
        names = found.setdefault((f"{entry['subject']}{where}", entry["reason"]), [])
        name = "everybody" if entry["name"] == "*" else entry["name"]
        names += [name] if name not in names else []
    return [f"left out: {where}: {', '.join(names)}: {reason}" for (where, reason), names in found.items()]


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def shorten(value: Any) -> Any:
    """Round floats to six significant digits, also inside lists and dictionaries."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in value.items()}
    return [shorten(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write ``report`` atomically."""
    write_text(str(path), json.dumps(shorten(report), indent=1, allow_nan=False) + "\n")
