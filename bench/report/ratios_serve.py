"""Ratios of the serve suite."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from fastflow.bench.report.ratios import Row, X, entry

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
                out.append(entry(name, threads, share, X, SATURATED))
            elif row["share"] == 0.5:
                times = row["p99_ms"] / row["batch_ms"]
                name = f"{where}: p99 of one text at half load, in the kernel's batches"
                out.append(entry(name, threads, times, "batches", HALF))
            elif row["share"] > 1 and row["refused_p99_ms"] is not None:
                name = f"{where}: p99 of a refusal at {row['share']:.0%}"
                out.append(entry(name, threads, row["refused_p99_ms"], "ms", OVERLOADED))
                times = row["p99_ms"] / row["batch_ms"]
                name = f"{where}: p99 of the admitted at {row['share']:.0%}, in the kernel's batches"
                out.append(entry(name, threads, times, "batches", FLOODED))
                for usual in (each for each in ours if each["batch"] == 1 and each["share"] == 0.9):
                    name = f"{where}: p99 of the admitted at {row['share']:.0%}, over that at 90%"
                    out.append(entry(name, threads, row["p99_ms"] / usual["p99_ms"], "of 90%", aim=1.0))
    return out
