"""The ratios of a run: a peer's time over ours; of the flow also times and floors, of the server times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

Row = dict[str, Any]
X = "x"  # the unit of a peer's time over ours
BATCHES = {"cpu": (1, 1024), "cuda": (1, 32, 1024, 1_000_000)}  # those compared, by device
# device -> (peers in words, their rows, of which the fastest counts; none: those of everybody)
FLOW: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "cpu": (
        ("unfused PyTorch eager, lean", ("torch-lean-eager",)),
        ("unfused PyTorch eager, the equations", ("torch-eager",)),
        ("unfused PyTorch eager, the published port's shape", ("torch-ukp-eager",)),
        ("folded PyTorch, the plan as it stands", ("torch-folded-eager",)),
        ("folded PyTorch, rewritten in state form", ("torch-folded-state-eager",)),
        ("the fastest peer of all, compiled ones included", ()),
    ),
    "cuda": (
        ("unfused PyTorch eager, lean", ("torch-lean-eager",)),
        ("the same in a CUDA graph", ("torch-lean-graph",)),
        ("unfused PyTorch eager, the published port's shape", ("torch-ukp-eager",)),
        ("folded PyTorch in a CUDA graph, faster form", ("torch-folded-graph", "torch-folded-state-graph")),
        ("the fastest peer of all, compiled ones included", ()),
    ),
}


def entry(name: str, threads: int, value: float, unit: str) -> Row:
    """A line of the report."""
    return {"name": name, "threads": threads, "value": value, "unit": unit}


def fastest(at: Mapping[Any, Row], peers: Iterable[Any]) -> Row | None:
    """The row of ``at`` with the least time among those of ``peers``; None if none was measured."""
    return min((at[peer] for peer in peers if peer in at), key=lambda row: float(row["median_ms"]), default=None)


def flow_ratios(rows: Sequence[Row], device: str) -> list[Row]:
    """The entries for what was measured of the first subject in ``rows``: ratios of medians, our times in microseconds
    and their multiples of the machine's floor."""
    first = [row for row in rows if row["subject"] == rows[0]["subject"]]
    counts = dict.fromkeys(row["threads"] for row in first)
    return [made for count in counts for made in _of_flow([r for r in first if r["threads"] == count], device)]


def _of_flow(rows: Sequence[Row], device: str) -> list[Row]:
    out = []
    for batch in BATCHES[device]:
        at = {row["name"]: row for row in rows if row["batch"] == batch}
        if (own := at.get("fastflow")) is None:
            continue
        what, count = f"flow B={batch}: fastflow", own["threads"]
        for words, peers in FLOW[device]:
            if (peer := fastest(at, peers or [name for name in at if not name.startswith("fastflow")])) is not None:
                name = f"{what} against {words} ({peer['name']})"
                out.append(entry(name, count, peer["median_ms"] / own["median_ms"], X))
        out.append(entry(f"{what}, median", count, own["median_ms"] * 1e3, "us"))
        out.append(entry(f"{what} against the machine's floor", count, own["times_floor"], "x floor"))
    return out


def serve_ratios(rows: Sequence[Row]) -> list[Row]:
    """Ours against the Runtime alone, by subject: throughput, p99 at half load and in overload, and refusals."""
    out: list[Row] = []
    for subject, group in groupby(rows, key=lambda row: row["subject"]):
        found = list(group)
        alone = next(row for row in found if row["name"] == "Runtime alone" and row["batch"] > 1)
        ours = [row for row in found if row["name"] == "fastflow"]

        def add(what: str, *figure: Any, where: str = f"serve, {subject}", threads: int = alone["threads"]) -> None:
            out.append(entry(f"{where}: {what}", threads, *figure))

        for row in ours:
            share = row["share"]
            if row["batch"] > 1:
                texts = row["texts_per_s"] / alone["texts_per_s"]
                add(f"lists of {row['batch']}, texts a second over the Runtime's own", texts, X)
            elif share == 0.5:
                add("p99 of one text at half load, in the kernel's batches", row["p99_ms"] / row["batch_ms"], "batches")
            elif share > 1 and row["refused_p99_ms"] is not None:
                add(f"p99 of a refusal at {share:.0%}", row["refused_p99_ms"], "ms")
                times = row["p99_ms"] / row["batch_ms"]
                add(f"p99 of the admitted at {share:.0%}, in the kernel's batches", times, "batches")
                for usual in (each for each in ours if each["batch"] == 1 and each["share"] == 0.9):
                    times = row["p99_ms"] / usual["p99_ms"]
                    add(f"p99 of the admitted at {share:.0%}, over that at 90%", times, "of 90%")
    return out
