"""Table and ratios of the serve suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from fastflow.bench.report.ratios_encoder import at_most

Row = dict[str, Any]
SATURATED, HALF, OVERLOADED = 0.9, 3.0, 50.0  # of the Runtime's texts; times a batch; ms until a refusal
FLOODED = 3.0  # times a batch: the admitted wait for the one that runs and are in the next


def serve_ratios(rows: Sequence[Row]) -> list[Row]:
    """Ours against the Runtime alone, by subject: throughput, p99 at half load and in overload, and refusals."""
    out: list[Row] = []
    for subject, group in groupby(rows, key=lambda row: row["subject"]):
        found = list(group)
        alone = next(row for row in found if row["name"] == "Runtime alone" and row["batch"] > 1)
        ours = [row for row in found if row["name"] == "fastflow"]
        where, threads = f"serve, {subject}", alone["threads"]
        for row in ours:
            if row["batch"] > 1:
                share = row["texts_per_s"] / alone["texts_per_s"]
                name = f"{where}: lists of {row['batch']}, texts a second over the Runtime's own"
                judged = {"must": SATURATED, "aim": None, "reached": share >= SATURATED}
                out.append({"name": name, "threads": threads, "value": share, "unit": "x", **judged})
            elif row["share"] == 0.5:
                times = row["p99_ms"] / row["batch_ms"]
                name = f"{where}: p99 of one text at half load, in the kernel's batches"
                out.append(at_most(name, threads, times, "batches", HALF, None))
            elif row["share"] > 1 and row["refused_p99_ms"] is not None:
                name = f"{where}: p99 of a refusal at {row['share']:.0%}"
                out.append(at_most(name, threads, row["refused_p99_ms"], "ms", OVERLOADED, None))
                times = row["p99_ms"] / row["batch_ms"]
                name = f"{where}: p99 of the admitted at {row['share']:.0%}, in the kernel's batches"
                out.append(at_most(name, threads, times, "batches", FLOODED, None))
                for usual in (each for each in ours if each["batch"] == 1 and each["share"] == 0.9):
                    name = f"{where}: p99 of the admitted at {row['share']:.0%}, over that at 90%"
                    out.append(at_most(name, threads, row["p99_ms"] / usual["p99_ms"], "x", None, 1.0))
    return out


def table(rows: Sequence[Row], aligned: Callable[[Sequence[tuple[str, ...]]], list[str]], duration: Any) -> list[str]:
    """Lines for ``rows``, by subject, in the order they were measured."""
    columns = (
        "candidate",
        "load",
        "p50",
        "p99",
        "texts/s",
        "refused",
        "in (p99)",
        "failed",
        "sent late (p99)",
        "generator",
    )
    lines = []
    for subject, group in groupby(rows, key=lambda row: row["subject"]):
        cells = [_cells(row, duration) for row in group]
        lines += [f"{subject}; {rows[0]['threads']} threads; serve", *aligned([columns, *cells]), ""]
    note = (
        "serve: load is a share of the Runtime's texts a second; generator: the processors that the load itself took."
    )
    return [*lines, note, ""] if rows else []


def _cells(row: Row, duration: Any) -> tuple[str, ...]:
    times = (duration(row["median_ms"]), duration(row["p99_ms"]), f"{row['texts_per_s']:,.0f}")
    if row["share"] is None:
        return (f"{row['name']} {row['dtype']}", f"{row['batch']} at a time", *times, "", "", "", "", "")
    load = f"{row['share']:.0%}" + (f", lists of {row['batch']}" if row["batch"] > 1 else "")
    refused = "" if row["refused_p99_ms"] is None else duration(row["refused_p99_ms"])
    return (
        f"{row['name']} {row['dtype']}", load, *times, f"{row['refused']:,}", refused, f"{row['failed']:,}",
        duration(row["lag_p99_ms"]), f"{row['generator_cpu']:.0%}",
    )  # fmt: skip
