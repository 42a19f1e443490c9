"""A ratio of the report: a figure of ours, with the project's bound if it has one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Key = tuple[str, str]  # name and dtype of a row
X = "x"  # the unit of a peer's time over ours


def entry(name: str, threads: int, value: float, unit: str, must: float | None = None, aim: float | None = None) -> Row:
    """A line of the report {name, threads, value, unit, must, aim, reached}.

    The bound is ``must``, else ``aim``. A ratio (unit "x") reaches it if it is at least as large, a figure of another
    unit if it is at most as large; ``reached`` is None without a bound.
    """
    bound = aim if must is None else must
    reached = None if bound is None else value >= bound if unit == X else value <= bound
    return {"name": name, "threads": threads, "value": value, "unit": unit, "must": must, "aim": aim,
            "reached": reached}  # fmt: skip


def against(
    where: str, at: Mapping[Key, Row], own: Key, peers: Iterable[Key], must: float | None = None,
    aim: float | None = None,
) -> list[Row]:  # fmt: skip
    """One entry, how many times the fastest of ``peers`` takes ``own``'s time; none if one of the two is missing."""
    measured = [at[peer] for peer in peers if peer in at]
    if own not in at or not measured:
        return []
    peer = min(measured, key=lambda row: float(row["median_ms"]))
    name = f"{where}: {' '.join(own)} against {peer['name']} {peer['dtype']}"
    return [entry(name, at[own]["threads"], peer["median_ms"] / at[own]["median_ms"], X, must, aim)]


def by_key(rows: Sequence[Row], **fields: Any) -> dict[Key, Row]:
    """The rows that have these ``fields``, by name and dtype."""
    return {(row["name"], row["dtype"]): row for row in rows if all(row[k] == v for k, v in fields.items())}
