"""The tables of the report: for each suite its columns, the rows that stand in one table, and its title."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Cell = Callable[[Row], str]


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


def _shown(key: str, form: str | Callable[[Any], str]) -> Cell:
    """A cell with the row's ``key``, empty if the row has none."""
    write = form.format if isinstance(form, str) else form
    return lambda row: "" if row.get(key) is None else write(row[key])


def _load(row: Row) -> str:
    if row["share"] is None:
        return f"{row['batch']} at a time"
    return f"{row['share']:.0%}" + (f", lists of {row['batch']}" if row["batch"] > 1 else "")


@dataclass(frozen=True)
class Suite:
    """How the rows of a suite are shown: in these columns, below their size in words."""

    columns: dict[str, Cell]
    size: Callable[[Row], str]
    note: str = ""  # below the tables, in place of the columns' MEANING


TIMES: dict[str, Cell] = {
    "median": _shown("median_ms", duration),
    "20-80 %": lambda row: f"{duration(row['p20_ms'])} - {duration(row['p80_ms'])}",
    "runs": _shown("runs", "{}"),
}
# "ours" is added to a row: its time over fastflow's
SUITES = {
    "flow": Suite(
        TIMES | {
            "x ours": _shown("ours", "{:.1f}"), "GFLOP/s": _shown("gflops", "{:.1f}"), "GB/s": _shown("gbs", "{:.1f}"),
            "x floor": _shown("times_floor", "{:.1f}"), "max error": _shown("max_abs_err", "{:.1e}"),
            "x unfused": _shown("err_against_unfused", "{:.2f}"),
        },
        lambda row: f"B = {row['batch']:,}",
        "flow: GFLOP/s and GB/s count what the folded plan needs, whoever computes it; x floor is the time over the "
        "least that the measured ceilings allow;\nmax error is against float64, x unfused that error over the unfused "
        "equations' in float32.",
    ),
    "encoder": Suite(
        TIMES | {
            "x ours": _shown("ours", "{:.2f}"), "GFLOP/s": _shown("gflops", "{:.0f}"),
            "of peak": _shown("compute_fraction", "{:.0%}"), "GB/s": _shown("gbs", "{:.1f}"),
            "of reads": _shown("bandwidth_fraction", "{:.0%}"), "x floor": _shown("times_floor", "{:.1f}"),
            "cosine": _shown("least_cosine", "{:.6f}"),
        },
        lambda row: f"encoder {row['batch']} x {row['tokens']} tokens",
    ),
    "end-to-end": Suite(
        TIMES | {
            "x ours": _shown("ours", "{:.2f}"), "99 %": _shown("p99_ms", "{:.2f} ms"),
            "texts/s": _shown("texts_per_s", "{:,.0f}"), "GFLOP/s": _shown("gflops", "{:.0f}"),
            "of peak": _shown("compute_fraction", "{:.0%}"), "cosine": _shown("least_cosine", "{:.6f}"),
        },
        lambda row: f"end-to-end of {row['batch']:,} texts, {row['tokens']:,} tokens",
    ),
    "startup": Suite(
        TIMES | {
            "x ours": _shown("ours", "{:.2f}"), "resident": _shown("resident_mb", "{:.0f} MB"),
            "peak": _shown("peak_mb", "{:.0f} MB"), "anonymous": _shown("anonymous_mb", "{:.0f} MB"),
        },
        lambda row: "startup to the first vector",
    ),
    "serve": Suite(
        {
            "load": _load, "p50": _shown("median_ms", duration), "p99": _shown("p99_ms", duration),
            "texts/s": _shown("texts_per_s", "{:,.0f}"), "refused": _shown("refused", "{:,}"),
            "in (p99)": _shown("refused_p99_ms", duration), "failed": _shown("failed", "{:,}"),
            "sent late (p99)": _shown("lag_p99_ms", duration), "generator": _shown("generator_cpu", "{:.0%}"),
        },
        lambda row: "serve",
        "serve: load is a share of the Runtime's texts a second; generator: the processors that the load itself took.",
    ),
    "static": Suite(
        TIMES | {
            "x ours": _shown("ours", "{:.2f}"), "99 %": _shown("p99_ms", duration),
            "texts/s": _shown("texts_per_s", "{:,.0f}"), "x floor": _shown("times_floor", "{:.1f}"),
            "max error": _shown("max_abs_err", "{:.1e}"), "resident": _shown("resident_mb", "{:.0f} MB"),
            "anonymous": _shown("anonymous_mb", "{:.0f} MB"),
        },
        lambda row: "startup to the first vector" if row["tokens"] is None else
        f"static, {row['batch']:,} texts of {row['tokens']:,} tokens",
        "static: x floor is the time over the least to move the bytes of the tokens' rows, the texts and the vectors; "
        "max error is against float64.",
    ),
}  # fmt: skip
MEANING = {  # of a column
    "x ours": "x ours: the time over fastflow's in the same dtype",
    "GFLOP/s": "GFLOP/s count the encoder's products",
    "of peak": "of peak: GFLOP/s over the ceiling that was measured for that dtype, on a CPU AMX's tiles where there "
    "are any, else 1, 2 and 4 times float32's for float32, bfloat16 and int8; wrong where others kept the machine busy",
    "GB/s": "GB/s: the layers' weights once a call",
    "of reads": "of reads: GB/s over what the machine reads from memory",
    "x floor": "x floor: the time over the least that the ceilings of arithmetic and memory allow",
    "cosine": "cosine: the least of any text against PyTorch in float32",
    "anonymous": "memory: resident, its peak, without mapped files",
}


def together(row: Row) -> tuple[Any, ...]:
    """The fields that the rows of one table have in common."""
    same = (row["suite"], row["subject"], row["threads"])
    return same if row["suite"] == "serve" else (*same, row["batch"], row["tokens"])


def with_ours(rows: list[Row]) -> list[Row]:
    """The rows of one table, the fastest first, with their time over ours of the same dtype; serve's as they are.

    All rows of a flow are compared with our one row: their dtype is the mode of PyTorch's products.
    """
    suite = rows[0]["suite"]
    if suite == "serve":
        return rows

    def compared(row: Row) -> str:
        return "" if suite == "flow" else str(row["dtype"])

    own = {compared(row): row["median_ms"] for row in rows if row["name"] == "fastflow"}
    fastest = sorted(rows, key=lambda row: float(row["median_ms"]))
    return [row | ({"ours": row["median_ms"] / own[compared(row)]} if compared(row) in own else {}) for row in fastest]


def headings(row: Row) -> tuple[str, str]:
    """The title of the row's table and the head of its first column, which for a flow is the size."""
    title, size = f"{row['subject']}; {threads(row['threads'])}", SUITES[row["suite"]].size(row)
    return (title, size) if row["suite"] == "flow" else (f"{title}; {size}", "candidate")


def name_of(row: Row) -> str:
    """The candidate as the first column shows it."""
    return str(row["name"]) if row["suite"] == "flow" else f"{row['name']} {row['dtype']}"
