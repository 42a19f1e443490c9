"""A benchmark's results as a plot to look at."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

from fastflow.bench.report.columns import Row, size, threads, together
from fastflow.bench.report.table import machine_line
from fastflow.errors import FastflowError, missing_extra
from fastflow.replacing import replace_bytes


def plot(report: dict[str, Any], path: Path) -> None:
    """Time against batch, log-log, a line for each candidate with its 20-80 % band; first subject and threads.

    Without the flow suite: bars for every comparison of the others.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("bench", "matplotlib", "--plot") from error
    if not (rows := report["rows"]):
        raise FastflowError("nothing was measured, so there is nothing to plot; see what was left out")
    flow = [row for row in rows if row["suite"] == "flow"]
    figure, data = Figure(layout="constrained"), BytesIO()
    if flow:
        _curves(flow, report["machine"], figure)
    else:
        _bars(rows, machine_line(report["machine"]).splitlines()[0], figure)
    figure.savefig(data, dpi=150 if flow else 110, format=path.suffix.removeprefix(".") or None)
    try:
        replace_bytes(path, data.getvalue())
    except OSError as error:
        raise FastflowError(f"{path} cannot be written: {error.strerror or error}") from error


def _curves(flow: Sequence[Row], machine: dict[str, Any], figure: Any) -> None:
    """A line for each candidate of the first subject and threads."""
    rows = [row for row in flow if (row["subject"], row["threads"]) == (flow[0]["subject"], flow[0]["threads"])]
    names = list(dict.fromkeys(row["name"] for row in rows))
    figure.set_size_inches(10, 6.2)
    axes = figure.subplots()
    for name in sorted(names, key=lambda name: -_relative(rows, name)):
        of_name = [row for row in rows if row["name"] == name]
        batches, style = [row["batch"] for row in of_name], _style(name, names)
        axes.plot(batches, [row["median_ms"] for row in of_name], label=name, markersize=4, **style)
        low, high = ([row[key] for row in of_name] for key in ("p20_ms", "p80_ms"))
        axes.fill_between(batches, low, high, color=style["color"], alpha=0.12, linewidth=0)
    floors = {row["batch"]: row["floor_ms"] for row in rows}
    axes.plot(list(floors), list(floors.values()), color="black", linestyle=":", label="floor of this machine")
    axes.set(xscale="log", yscale="log", xlabel="rows in a batch", ylabel="milliseconds a call, median (band: 20-80 %)")
    batches = sorted({row["batch"] for row in rows})
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    where = machine["gpu"]["name"] if machine["gpu"] else f"{machine['processor']}, {threads(rows[0]['threads'])}"
    axes.set_title(f"{rows[0]['subject']}\n{where}, torch {machine['versions'].get('torch', 'absent')}", fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)


def _relative(rows: Sequence[Row], name: str) -> float:
    """Mean of time over floor: where a candidate's line lies, for a legend in the lines' order."""
    values = [row["times_floor"] for row in rows if row["name"] == name]
    return sum(values) / len(values)


def _style(name: str, names: Sequence[str]) -> dict[str, Any]:
    """One colour a family, eager solid and the others broken; ours thick."""
    families = ("fastflow", "torch-ukp", "torch-lean", "torch-folded-state", "torch-folded", "torch")
    colours = ("#d62728", "#7f7f7f", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b")
    family = next((f for f in families if name.startswith(f)), "torch")
    same = [n for n in names if next((f for f in families if n.startswith(f)), "torch") == family]
    lines = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
    position = same.index(name)
    return {
        "color": colours[families.index(family)], "linestyle": lines[position % len(lines)],
        "marker": "osv^D*"[position % 6], "linewidth": 2.4 if name == "fastflow" else 1.2,
    }  # fmt: skip


def _bars(rows: Sequence[Row], caption: str, figure: Any) -> None:
    """One panel a comparison, a bar for each candidate, ours in red."""
    groups = [list(group) for _, group in groupby(rows, key=together)]
    across = min(3, len(groups))
    down = -(-len(groups) // across)
    tallest = max(map(len, groups))
    figure.set_size_inches(5.6 * across, (0.9 + 0.24 * tallest) * down + 0.6)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(groups) :]:
        panel.axis("off")
    for panel, group in zip(panels, groups, strict=False):
        group = sorted(group, key=lambda row: -float(row["median_ms"]))
        times = [row["median_ms"] for row in group]
        low = [row["median_ms"] - row["p20_ms"] for row in group]
        high = [row["p80_ms"] - row["median_ms"] for row in group]
        colours = ["#d62728" if row["name"].startswith("fastflow") else "#7f9fbf" for row in group]
        panel.barh([f"{row['name']} {row['dtype']}" for row in group], times, xerr=(low, high), color=colours)
        panel.set(xscale="log", xlabel="milliseconds, median (bar: 20-80 %)")
        panel.set_title(f"{size(group[0])}\n{group[0]['subject']}", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(axis="x", alpha=0.3)
    figure.suptitle(caption, fontsize=10)
