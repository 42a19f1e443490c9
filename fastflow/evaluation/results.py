"""The results of tasks that are not scored pairs: rows for JSON, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastflow.evaluation.evaluate import OtherTask, embed
from fastflow.evaluation.retrieval import Retrieval


def evaluate_tasks(encoder: Any, tasks: Sequence[OtherTask]) -> list[dict[str, Any]]:
    """A row for each task: its set, kind and size, and ``measures``: the value and interval of each, and BM25's value
    if the task is retrieval. ``encoder`` has the calls of a Runtime."""
    rows = []
    for task in tasks:
        measures: dict[str, dict[str, Any]] = {}
        for name, found in task.measures(embed(encoder, task)).items():
            low, high = found.interval()
            measures[name] = {"value": round(found.value, 2), "interval": [round(low, 2), round(high, 2)]}
        if isinstance(task, Retrieval):
            for name, found in task.bm25().items():
                measures[name]["bm25"] = round(found.value, 2)
        rows.append({"set": task.name, "kind": task.kind, **task.size, "measures": measures})
    return rows


def tasks_table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of ``evaluate_tasks`` as aligned text, a line for each set and measure."""
    width = max(13, *(len(row["set"]) for row in rows)) + 1
    lines = [f"{'set':{width}}{'measure':11}{'value':>7}{'95 % interval':>18}{'BM25':>8}"]
    for row in rows:
        for name, found in row["measures"].items():
            low, high = found["interval"]
            bm25 = f"{found['bm25']:8.2f}" if "bm25" in found else ""
            lines.append(f"{row['set']:{width}}{name:11}{found['value']:7.2f}{f'{low:.2f} to {high:.2f}':>18}{bm25}")
    return "\n".join(lines)
