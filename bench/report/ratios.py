"""The ratios of a run: figures of ours for each suite, with the project's bounds if they have one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

Row = dict[str, Any]
X = "x"  # the unit of a peer's time over ours
FASTEST = "the fastest peer of all, compiled ones included"
# device -> (peers in words, their rows, of which the fastest counts, batch -> the least ratio; FASTEST: all, no bound)
# A bound on "unfused" or "folded" PyTorch is put to its every form; the lean and the state form are the hardest.
FLOW: dict[str, tuple[tuple[str, tuple[str, ...], dict[int, int | None]], ...]] = {
    "cpu": (
        ("unfused PyTorch eager, lean", ("torch-lean-eager",), {1: 40, 1024: 5}),
        ("unfused PyTorch eager, the equations", ("torch-eager",), {1: 40, 1024: 5}),
        ("unfused PyTorch eager, the published port's shape", ("torch-ukp-eager",), {1: 40, 1024: 5}),
        ("folded PyTorch, the plan as it stands", ("torch-folded-eager",), {1: 5, 1024: 3}),
        ("folded PyTorch, rewritten in state form", ("torch-folded-state-eager",), {1: 5, 1024: 3}),
        (FASTEST, (), {}),
    ),
    "cuda": (
        ("unfused PyTorch eager, lean", ("torch-lean-eager",), {1: 40, 32: 35, 1024: 15, 1_000_000: 12}),
        ("the same in a CUDA graph", ("torch-lean-graph",), {1: 15, 32: 12, 1024: 8, 1_000_000: 12}),
        (
            "unfused PyTorch eager, the published port's shape", ("torch-ukp-eager",),
            {1: 150, 32: 120, 1024: 60, 1_000_000: 25},
        ),
        ("folded PyTorch in a CUDA graph, faster form", ("torch-folded-graph", "torch-folded-state-graph"), {}),
        (FASTEST, (), {}),
    ),
}  # fmt: skip
# device -> batch -> the aim for our own median, microseconds
TIMES = {"cpu": {1: 15.0}, "cuda": {1: 8.0, 32: 10.0, 1024: 20.0, 1_000_000: 3000.0}}
FLOOR = (1024, 2.0)  # (batch, aim): multiples of the machine's floor
SATURATED, HALF, OVERLOADED = 0.9, 3.0, 50.0  # of the Runtime's texts; times a batch; ms until a refusal
FLOODED = 3.0  # times a batch: the admitted wait for the one that runs and are in the next


def entry(name: str, threads: int, value: float, unit: str, must: float | None = None, aim: float | None = None) -> Row:
    """A line of the report {name, threads, value, unit, must, aim, reached}.

    The bound is ``must``, else ``aim``. A ratio (unit "x") reaches it if it is at least as large, a figure of another
    unit if it is at most as large; ``reached`` is None without a bound.
    """
    bound = aim if must is None else must
    reached = None if bound is None else value >= bound if unit == X else value <= bound
    return {"name": name, "threads": threads, "value": value, "unit": unit, "must": must, "aim": aim,
            "reached": reached}  # fmt: skip


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
    out, bound = [], "must" if device == "cpu" else "aim"
    for batch in FLOW[device][0][2]:
        at = {row["name"]: row for row in rows if row["batch"] == batch}
        for words, peers, least in FLOW[device]:
            peer = fastest(at, peers or [name for name in at if not name.startswith("fastflow")])
            if peer is not None and (own := at.get("fastflow")):
                name = f"flow B={batch}: fastflow against {words} ({peer['name']})"
                value = peer["median_ms"] / own["median_ms"]
                out.append(entry(name, own["threads"], value, X, **{bound: least.get(batch)}))
    for row in (row for row in rows if row["name"] == "fastflow"):
        what, count = f"flow B={row['batch']}: fastflow", row["threads"]
        if aim := TIMES[device].get(row["batch"]):
            out.append(entry(f"{what}, median", count, row["median_ms"] * 1e3, "us", aim=aim))
        if row["batch"] == FLOOR[0]:
            out.append(entry(f"{what} against the machine's floor", count, row["times_floor"], "x floor", aim=FLOOR[1]))
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
                add(f"lists of {row['batch']}, texts a second over the Runtime's own", texts, X, SATURATED)
            elif share == 0.5:
                times = row["p99_ms"] / row["batch_ms"]
                add("p99 of one text at half load, in the kernel's batches", times, "batches", HALF)
            elif share > 1 and row["refused_p99_ms"] is not None:
                add(f"p99 of a refusal at {share:.0%}", row["refused_p99_ms"], "ms", OVERLOADED)
                times = row["p99_ms"] / row["batch_ms"]
                add(f"p99 of the admitted at {share:.0%}, in the kernel's batches", times, "batches", FLOODED)
                for usual in (each for each in ours if each["batch"] == 1 and each["share"] == 0.9):
                    times = row["p99_ms"] / usual["p99_ms"]
                    add(f"p99 of the admitted at {share:.0%}, over that at 90%", times, "of 90%", None, 1.0)
    return out
