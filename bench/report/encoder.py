"""Table and plot of the suites that run the whole encoder: encoder, end-to-end and startup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

Row = dict[str, Any]
Cell = Callable[[Row], str]
MEANING = {  # of a column, printed below the tables that have it
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


def table(rows: Sequence[Row], aligned: Callable[[Sequence[tuple[str, ...]]], list[str]], duration: Any) -> list[str]:
    """Lines for ``rows``, by suite, subject and shape, the fastest first; ``x ours`` is over ours of the same dtype."""
    lines, shown = [], set()
    for (suite, subject, batch, tokens), group in groupby(rows, key=shape):
        of_shape = sorted(group, key=lambda row: float(row["median_ms"]))
        own = {row["dtype"]: row["median_ms"] for row in of_shape if row["name"] == "fastflow"}
        columns: dict[str, Cell] = {
            "median": lambda r: duration(r["median_ms"]),
            "20-80 %": lambda r: f"{duration(r['p20_ms'])} - {duration(r['p80_ms'])}",
            "runs": lambda r: str(r["runs"]),
            "x ours": lambda r, own=own: f"{r['median_ms'] / own[r['dtype']]:.2f}" if r["dtype"] in own else "",  # type: ignore[misc]
            **COLUMNS[suite],
        }
        columns = {name: cell for name, cell in columns.items() if any(cell(row) for row in of_shape)}
        shown |= set(columns)
        title = f"{subject}; {rows[0]['threads']} threads; {suite} {heading(suite, batch, tokens)}"
        cells = [(" ".join((row["name"], row["dtype"])), *(cell(row) for cell in columns.values())) for row in of_shape]
        lines += [title, *aligned([("candidate", *columns), *cells]), ""]
    return [*lines, *(f"{said}." for column, said in MEANING.items() if column in shown), ""] if rows else []


def shape(row: Row) -> tuple[str, str, int, int | None]:
    """The common fields of one comparison."""
    return row["suite"], row["subject"], row["batch"], row["tokens"]


def heading(suite: str, batch: int, tokens: int | None) -> str:
    """The size in words."""
    if suite == "encoder":
        return f"{batch} x {tokens} tokens"
    return f"of {batch:,} texts, {tokens:,} tokens" if suite == "end-to-end" else "to the first vector"


COLUMNS: dict[str, dict[str, Cell]] = {
    "encoder": {
        "GFLOP/s": lambda r: f"{r['gflops']:.0f}",
        "of peak": lambda r: f"{r['compute_fraction']:.0%}",
        "GB/s": lambda r: f"{r['gbs']:.1f}",
        "of reads": lambda r: f"{r['bandwidth_fraction']:.0%}",
        "x floor": lambda r: f"{r['times_floor']:.1f}",
        "cosine": lambda r: f"{r['least_cosine']:.6f}",
    },
    "end-to-end": {
        "99 %": lambda r: f"{r['p99_ms']:.2f} ms" if "p99_ms" in r else "",
        "texts/s": lambda r: f"{r['texts_per_s']:,.0f}",
        "GFLOP/s": lambda r: f"{r['gflops']:.0f}",
        "of peak": lambda r: f"{r['compute_fraction']:.0%}" if "compute_fraction" in r else "",
        "cosine": lambda r: f"{r['least_cosine']:.6f}",
    },
    "startup": {
        "resident": lambda r: megabytes(r["resident_mb"]),
        "peak": lambda r: megabytes(r["peak_mb"]),
        "anonymous": lambda r: megabytes(r["anonymous_mb"]),
    },
}


def megabytes(value: float | None) -> str:
    """Whole megabytes, empty if the system gives none."""
    return "" if value is None else f"{value:.0f} MB"


def figure(rows: Sequence[Row], caption: str) -> Any:
    """A matplotlib figure: one panel a comparison, a bar for each candidate, ours in red."""
    from matplotlib.figure import Figure

    groups = [list(group) for _, group in groupby(rows, key=shape)]
    across = min(3, len(groups))
    down = -(-len(groups) // across)
    tallest = max(map(len, groups))
    made = Figure(figsize=(5.6 * across, (0.9 + 0.24 * tallest) * down + 0.6), layout="constrained")
    panels = made.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(groups) :]:
        panel.axis("off")
    for panel, group in zip(panels, groups, strict=False):
        group = sorted(group, key=lambda row: -float(row["median_ms"]))
        times = [row["median_ms"] for row in group]
        low = [row["median_ms"] - row["p20_ms"] for row in group]
        high = [row["p80_ms"] - row["median_ms"] for row in group]
        colours = ["#d62728" if row["name"].startswith("fastflow") else "#7f9fbf" for row in group]
        panel.barh([f"{row['name']} {row['dtype']}" for row in group], times, xerr=(low, high), color=colours)
        suite, subject, batch, tokens = shape(group[0])
        panel.set(xscale="log", xlabel="milliseconds, median (bar: 20-80 %)")
        panel.set_title(f"{suite} {heading(suite, batch, tokens)}\n{subject}", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(axis="x", alpha=0.3)
    made.suptitle(caption, fontsize=10)
    return made
