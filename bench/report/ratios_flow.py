"""Ratios of the flow suite: ours against each kind of peer, with the project's target if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastflow.bench.report.ratios import Row, X, entry

ANY = ("",)  # stands for every peer


@dataclass(frozen=True)
class Target:
    """``fastflow`` at ``batch`` rows against the fastest of ``peers``; ``must`` and ``aim`` are least ratios."""

    batch: int
    against: str  # in words
    peers: tuple[str, ...]  # row names, the fastest that was measured counts
    must: float | None = None
    aim: float | None = None


# A bound on "unfused" or "folded" PyTorch is put to its every form; the lean and the state form are the hardest.
_CPU_MUSTS = {1: (40, 5), 1024: (5, 3)}
CPU = tuple(
    Target(batch, words, peers, must=must)
    for batch, (unfused, folded) in _CPU_MUSTS.items()
    for words, peers, must in (
        ("unfused PyTorch eager, lean", ("torch-lean-eager",), unfused),
        ("unfused PyTorch eager, the equations", ("torch-eager",), unfused),
        ("unfused PyTorch eager, the published port's shape", ("torch-ukp-eager",), unfused),
        ("folded PyTorch, the plan as it stands", ("torch-folded-eager",), folded),
        ("folded PyTorch, rewritten in state form", ("torch-folded-state-eager",), folded),
        ("the fastest peer of all, compiled ones included", ANY, None),
    )
)
_GPU_AIMS = {1: (40, 15, 150), 32: (35, 12, 120), 1024: (15, 8, 60), 1_000_000: (12, 12, 25)}
GPU = tuple(
    Target(batch, words, peers, aim=aim)
    for batch, (lean, graph, ukp) in _GPU_AIMS.items()
    for words, peers, aim in (
        ("unfused PyTorch eager, lean", ("torch-lean-eager",), lean),
        ("the same in a CUDA graph", ("torch-lean-graph",), graph),
        ("unfused PyTorch eager, the published port's shape", ("torch-ukp-eager",), ukp),
        ("folded PyTorch in a CUDA graph, faster form", ("torch-folded-graph", "torch-folded-state-graph"), None),
        ("the fastest peer of all, compiled ones included", ANY, None),
    )
)
# batch -> the aim for our own median, microseconds
TIMES = {"cpu": {1: 15.0}, "cuda": {1: 8.0, 32: 10.0, 1024: 20.0, 1_000_000: 3000.0}}
FLOOR = (1024, 2.0)  # (batch, aim): multiples of the machine's floor


def flow_ratios(rows: Sequence[Row], device: str) -> list[Row]:
    """The entries for what was measured of the first subject in ``rows``: ratios of medians, our times in microseconds
    and their multiples of the machine's floor."""
    first = [row for row in rows if row["subject"] == rows[0]["subject"]]
    counts = dict.fromkeys(row["threads"] for row in first)
    return [made for count in counts for made in _entries([r for r in first if r["threads"] == count], device)]


def _entries(rows: Sequence[Row], device: str) -> list[Row]:
    out = []
    for target in CPU if device == "cpu" else GPU:
        at = {row["name"]: row for row in rows if row["batch"] == target.batch}
        names = [name for name in at if not name.startswith("fastflow")] if target.peers == ANY else target.peers
        measured = [at[name] for name in names if name in at]
        if "fastflow" not in at or not measured:
            continue
        peer, own = min(measured, key=lambda row: float(row["median_ms"])), at["fastflow"]
        name = f"flow B={target.batch}: fastflow against {target.against} ({peer['name']})"
        value = peer["median_ms"] / own["median_ms"]
        out.append(entry(name, own["threads"], value, X, target.must, target.aim))
    for row in (row for row in rows if row["name"] == "fastflow"):
        what, count = f"flow B={row['batch']}: fastflow", row["threads"]
        if aim := TIMES[device].get(row["batch"]):
            out.append(entry(f"{what}, median", count, row["median_ms"] * 1e3, "us", aim=aim))
        if row["batch"] == FLOOR[0]:
            out.append(entry(f"{what} against the machine's floor", count, row["times_floor"], "x floor", aim=FLOOR[1]))
    return out
