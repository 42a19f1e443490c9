"""Several models on the same tasks: a column a model, the best marked, with paired intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastflow.evaluation.analyses import Draws, interval_of
from fastflow.evaluation.evaluate import SEVEN, Pairs, Task, draws, embed, score, similarities

Measured = dict[tuple[str, str], tuple[float, Draws]]  # (set, measure) -> value and draws


def measure_all(encoder: Any, tasks: Sequence[Task]) -> Measured:
    """Measure ``tasks`` with one model: values x100, and draws that fit those of every other model."""
    found: Measured = {}
    for number, task in enumerate(tasks):
        if isinstance(task, Pairs):
            cosines = similarities(encoder.encode, task)
            row, drawn = score(task, cosines), draws(task, cosines, number)
            keys = ("all",) if np.array_equal(drawn["all"], drawn["wmean"], equal_nan=True) else ("all", "wmean")
            found |= {(task.name, key): (row[key], drawn[key]) for key in keys}
        else:
            measures = task.measures(embed(encoder, task))
            found |= {(task.name, name): (each.value, each.draws()) for name, each in measures.items()}
    sets = [name for name, measure in found if measure == "all"]
    chosen = [found[name, "all"] for name in (SEVEN if set(SEVEN) <= set(sets) else sets)]
    if len(chosen) > 1:
        values, drawn_of = zip(*chosen, strict=True)
        found[f"mean of {len(chosen)}", "all"] = float(np.mean(values)), np.mean(drawn_of, axis=0)
    return found


def compare(models: dict[str, Measured]) -> list[dict[str, Any]]:
    """Return a row for each measure: ``values`` by model, the ``best``, and the 95 % interval of its lead over each."""
    rows = []
    for place in next(iter(models.values())):
        of = {name: found[place] for name, found in models.items()}
        values = {name: round(value, 2) for name, (value, _) in of.items()}
        top = max((value for value in values.values() if value == value), default=np.nan)
        best = [name for name, value in values.items() if value == top]
        leads = {
            name: [round(end, 2) for end in interval_of(of[best[0]][1] - drawn, of[best[0]][0] - value)]
            for name, (value, drawn) in of.items()
            if best and name not in best
        }
        rows.append({"set": place[0], "measure": place[1], "values": values, "best": best, "leads": leads})
    return rows


def format_rows(rows: Sequence[dict[str, Any]]) -> str:
    """Format ``compare``'s rows; behind each other value stands how far below the best it is."""
    heads = ["set", "measure", *rows[0]["values"]]
    lines = [heads]
    for row in rows:
        cells = [row["set"], row["measure"]]
        for name, value in row["values"].items():
            low, high = row["leads"].get(name, (0.0, 0.0))
            cells.append(f"{value:.2f} *" if name in row["best"] else f"{value:.2f} ({-high:+.1f} to {-low:+.1f})")
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    note = "*: the best. In brackets: the 95 % interval of the distance to it; with 0 inside, both may be level."
    return "\n".join([*table, note])
