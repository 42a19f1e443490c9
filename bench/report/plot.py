"""A benchmark's results as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

from fastflow.atomic import replace_bytes
from fastflow.bench.report.table import Row, describe_machine, describe_size, find_table, format_threads, make_name
from fastflow.errors import FastflowError

OURS, PEERS = "#d62728", "#7f9fbf"


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw time against batch, a line a candidate with its 20-80 % band; bars without a flow."""
    from matplotlib.figure import Figure

    if not (rows := [row for row in report["rows"] if row["median_ms"] is not None]):
        raise FastflowError("nothing was measured, so there is nothing to plot; see what was left out")
    flow = [row for row in rows if row["suite"] == "flow"]
    figure, data = Figure(layout="constrained"), BytesIO()
    figure.suptitle(describe_machine(report["machine"]).splitlines()[0], fontsize=10)
    if flow:
        _draw_curves(flow, figure)
    else:
        _draw_bars(rows, figure)
    figure.savefig(data, dpi=110, format=path.suffix.removeprefix(".") or None)
    try:
        replace_bytes(path, data.getvalue())
    except OSError as error:
        raise FastflowError(f"{path} cannot be written: {error.strerror or error}") from error


def _draw_curves(flow: Sequence[Row], figure: Any) -> None:
    from matplotlib import colormaps

    # of the first subject and threads, the slowest first
    rows = [row for row in flow if (row["subject"], row["threads"]) == (flow[0]["subject"], flow[0]["threads"])]
    slowest = sorted(rows, key=lambda row: -float(row["median_ms"]) / row["batch"])
    figure.set_size_inches(10, 6.2)
    axes = figure.subplots()
    axes.set_prop_cycle(color=colormaps["tab20"](range(20)))
    for name in dict.fromkeys(row["name"] for row in slowest):
        of_name = [row for row in rows if row["name"] == name]
        batches, times, low, high = (
            [row[key] for row in of_name] for key in ("batch", "median_ms", "p20_ms", "p80_ms")
        )
        (line,) = axes.plot(batches, times, "o-", label=name, markersize=4, linewidth=2.4 if name == "fastflow" else 1)
        axes.fill_between(batches, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
    every = list(dict.fromkeys(row["batch"] for row in rows))
    axes.set(xscale="log", yscale="log", xlabel="rows in a batch", ylabel="milliseconds a call, median (band: 20-80 %)")
    axes.set_xticks(every, [f"{batch:,}" for batch in every])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set_title(f"{rows[0]['subject']}, {format_threads(rows[0]['threads'])}", fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)


def _draw_bars(rows: Sequence[Row], figure: Any) -> None:
    groups = [sorted(group, key=lambda row: -float(row["median_ms"])) for _, group in groupby(rows, key=find_table)]
    figure.set_size_inches(8, 0.6 + sum(0.9 + 0.24 * len(group) for group in groups))
    panels = figure.subplots(len(groups), squeeze=False, height_ratios=[2 + len(group) for group in groups])
    for panel, group in zip(panels[:, 0], groups, strict=True):
        times = [row["median_ms"] for row in group]
        low = [row["median_ms"] - row["p20_ms"] for row in group]
        high = [row["p80_ms"] - row["median_ms"] for row in group]
        colours = [OURS if row["name"].startswith("fastflow") else PEERS for row in group]
        panel.barh([make_name(row) for row in group], times, xerr=(low, high), color=colours)
        panel.set(xscale="log", xlabel="milliseconds, median (bar: 20-80 %)")
        panel.set_title(f"{describe_size(group[0])}\n{group[0]['subject']}", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(axis="x", alpha=0.3)
