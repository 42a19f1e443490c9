"""Ratios of the measured rows: ours against each kind of peer, with the project's target if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
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
# (batch, aim) for our own median, microseconds
TIMES = {"cpu": ((1, 15.0),), "cuda": ((1, 8.0), (32, 10.0), (1024, 20.0), (1_000_000, 3000.0))}
FLOOR = (1024, 2.0)  # (batch, aim): multiples of the machine's floor


def flow_ratios(rows: Sequence[Row], device: str) -> list[dict[str, Any]]:
    """Entries {name, threads, value, unit, must, aim, reached}, for what was measured of the first subject in ``rows``.

    Ratios are of medians, unit "x", and reached when at least the bound (``must``, else ``aim``); times (unit "us") and
    multiples of the floor (unit "x floor") are reached when at most the aim. ``reached`` is None without a bound.
    """
    first = [row for row in rows if row["subject"] == rows[0]["subject"]]
    counts = list(dict.fromkeys(row["threads"] for row in first))
    return [
        {**entry, "threads": threads}
        for threads in counts
        for entry in _entries([row for row in first if row["threads"] == threads], device)
    ]


def _entries(rows: Sequence[Row], device: str) -> list[dict[str, Any]]:
    out = []
    for target in CPU if device == "cpu" else GPU:
        at = {row["name"]: row for row in rows if row["batch"] == target.batch}
        names = [name for name in at if not name.startswith("fastflow")] if target.peers == ANY else target.peers
        measured = [at[name] for name in names if name in at]
        if "fastflow" not in at or not measured:
            continue
        peer = min(measured, key=lambda row: row["median_ms"])
        value, bound = peer["median_ms"] / at["fastflow"]["median_ms"], target.must or target.aim
        out.append(
            {
                "name": f"flow B={target.batch}: fastflow against {target.against} ({peer['name']})",
                "value": value, "unit": "x", "must": target.must, "aim": target.aim,
                "reached": None if bound is None else value >= bound,
            }
        )  # fmt: skip
    for row in (row for row in rows if row["name"] == "fastflow"):
        own = f"flow B={row['batch']}: fastflow"
        out += [
            _at_most(f"{own}, median", row["median_ms"] * 1e3, "us", aim)
            for batch, aim in TIMES[device]
            if batch == row["batch"]
        ]
        if row["batch"] == FLOOR[0]:
            out.append(_at_most(f"{own} against the machine's floor", row["times_floor"], "x floor", FLOOR[1]))
    return out


def _at_most(name: str, value: float, unit: str, aim: float) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "must": None, "aim": aim, "reached": value <= aim}
