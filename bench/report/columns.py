"""The tables of the report: for each suite its columns, the rows of one table, and its title."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

Row = dict[str, Any]


def format_duration(ms: float) -> str:
    """Return three digits with a unit: 5.12 us, 12.3 ms, 1.25 s."""
    for scale, unit in ((1e-3, "us"), (1.0, "ms"), (1e3, "s")):
        if ms < 1000 * scale or unit == "s":
            break
    value = ms / scale
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def format_threads(count: int) -> str:
    """Return 1 thread, 2 threads."""
    return f"{count} thread{'s' * (count != 1)}"


def _format_load(row: Row) -> str:
    if row["share"] is None:
        return f"{row['batch']} at a time"
    return f"{row['share']:.0%}" + (f", lists of {row['batch']}" if row["batch"] > 1 else "")


class Suite(NamedTuple):
    """``size`` of a row in words; ``columns`` as COLUMN reads them; ``note`` below the tables replaces MEANING."""

    size: str
    columns: str
    note: str = ""


COLUMN = re.compile(r"(.+)=(\w+):(\S*)(.*)")  # head=key:format, and a unit after the format
FORMS = {  # besides Python's
    "time": lambda row, key: format_duration(row[key]),
    "quantiles": lambda row, key: f"{format_duration(row['p20_ms'])} - {format_duration(row['p80_ms'])}",
    "load": lambda row, key: _format_load(row),
}
TIMES = "median=median_ms:time, 20-80 %=p20_ms:quantiles, runs=runs:, "
# "ours" is added to a row: its time over fastflow's
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
}
MEANING = {  # of a column
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
    """Return the cell of each column, empty if the row lacks its key."""
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
    """Return the fields that the rows of one table have in common."""
    same = (row["suite"], row["subject"], row["threads"])
    return same if row["suite"] == "serve" else (*same, row["batch"], row["tokens"])


def compare_with_ours(rows: list[Row]) -> list[Row]:
    """Return the rows of one table, the fastest first, with their time over ours of the same dtype.

    Rows of serve stay as they are. All rows of a flow are compared with our one row.
    """
    suite = rows[0]["suite"]
    if suite == "serve":
        return rows

    def compared(row: Row) -> str:
        return "" if suite == "flow" else str(row["dtype"])

    own = {compared(row): row["median_ms"] for row in rows if row["name"] == "fastflow"}
    fastest = sorted(rows, key=lambda row: float(row["median_ms"]))
    return [row | ({"ours": row["median_ms"] / own[compared(row)]} if compared(row) in own else {}) for row in fastest]


def make_headings(row: Row) -> tuple[str, str]:
    """Return the title of the row's table and the head of its first column, which for a flow is the size."""
    title = f"{row['subject']}; {format_threads(row['threads'])}"
    return (title, describe_size(row)) if row["suite"] == "flow" else (f"{title}; {describe_size(row)}", "candidate")


def make_name(row: Row) -> str:
    """Return the candidate as the first column shows it."""
    return str(row["name"]) if row["suite"] == "flow" else f"{row['name']} {row['dtype']}"
