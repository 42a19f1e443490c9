"""The numbers of a file of bench/results that belong together: of a record, or of a table that its rows make.

Times and ratios of a run that the bench calls busy are no numbers that a page may quote.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from fastflow.bench.report.table import is_busy

Group = tuple[float, ...]
Row = dict[str, Any]
FIGURE = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-\d+)?")
KINDS = {  # of the sets of a study
    **dict.fromkeys(("banking77", "clinc150", "agnews", "agnews-titles", "trec"), "clusters"),
    **dict.fromkeys(("cranfield", "cisi", "npl", "scifact"), "documents"),
    **dict.fromkeys(("msrp", "quora-duplicates"), "duplicates"),
}
BASELINES = ("raw", "weights", "package", "as it is")  # candidates that others are compared with
TIMED = re.compile(r".*_(?:m?s|fraction)|ratio|times_floor|gflops|gbs")
PRINTED = (
    "gain", "max_abs_err", "least_cosine", "tokens", "median_ms", "p99_ms", "texts_per_s", "refused_p99_ms", "refused",
    "batch_ms",
)  # fmt: skip


@cache
def read_groups(path: Path) -> tuple[Group, ...]:
    """The groups of a JSON; of a text, the numbers of each line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return tuple(tuple(map(number, FIGURE.findall(line))) for line in text.splitlines())
    report = unpack(drop_busy_times(json.loads(text)))
    found = list(records(report))
    for rows in tables(report):
        if "step" in rows[0] or "median_ms" in rows[0]:
            found += side_by_side(rows)
        elif "server" in rows[0]:
            found += loads(rows)
        elif "value" in rows[0]:
            found += pivots(rows)
        elif isinstance(rows[0].get("runs"), list) and isinstance(rows[0]["runs"][0], dict):
            found += means_of_runs(rows)
    return tuple(found)


def number(text: str) -> float:
    return float(text.replace(",", ""))


def unpack(value: Any) -> Any:
    """Tables that are written as one list of names and lists of values, as lists of records."""
    if isinstance(value, list):
        return [unpack(each) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"names", "values"}:
        return [dict(zip(value["names"], row, strict=True)) for row in unpack(value["values"])]
    return {name: unpack(each) for name, each in value.items()}


def drop_busy_times(value: Any) -> Any:
    """A report without the times and ratios of its busy runs; their sizes and scores stay."""
    if isinstance(value, list):
        return [drop_busy_times(each) for each in value]
    if not isinstance(value, dict):
        return value
    machine = value.get("machine")
    if isinstance(machine, dict) and is_busy({"processors_used_by_others": None} | machine):
        return drop_times({name: part for name, part in value.items() if name != "ratios"})
    return {name: drop_busy_times(part) for name, part in value.items()}


def drop_times(value: Any) -> Any:
    if isinstance(value, list):
        return [drop_times(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: drop_times(part) for name, part in value.items() if not TIMED.fullmatch(name)}


def tables(value: Any) -> Iterator[list[Row]]:
    """The lists of records within ``value``."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        yield value
    for each in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from tables(each)


def records(value: Any) -> Iterator[Group]:
    """The numbers of each object and of each list of a JSON."""
    each = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    own = [v for v in each if isinstance(v, int | float)]
    lists = [v for part in each if isinstance(part, list) and isinstance(value, dict) for v in part]
    yield tuple(float(v) for v in [*own, *lists] if isinstance(v, int | float))
    for v in each:
        yield from records(v)


def pivots(rows: list[Row]) -> Iterator[Group]:
    """The lines of every table that rows with a ``value`` make: means over seeds, over sets, and gains over a baseline.

    A line has the values over one field, the others being equal.
    """
    names = [name for name in rows[0] if name not in ("value", "seed")]
    cells = average((tuple(row[name] for name in names), row["value"]) for row in rows)
    for at in range(len(names)):
        lines: dict[Any, list[float]] = defaultdict(list)
        for key, value in cells.items():
            lines[key[:at] + key[at + 1 :]].append(value)
        yield from map(tuple, lines.values())
    yield from over_sets(cells, names)


def average(pairs: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    found: dict[Any, list[float]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: fmean(values) for key, values in found.items()}


def over_sets(cells: dict[Any, float], names: list[str]) -> Iterator[Group]:
    """For each table and candidate the means of each kind of set and of all, and what they gain over each baseline."""
    if "set" not in names:
        return
    place, who = names.index("set"), next(i for i, name in enumerate(names) if name in ("candidate", "background"))
    tables: dict[Any, dict[Any, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for key, value in cells.items():
        rest = tuple(part for i, part in enumerate(key) if i not in (place, who))
        tables[rest][key[who]][key[place]] = value
    for scores in tables.values():
        means = {name: summarize(values) for name, values in scores.items()}
        yield from ((*means[name], *values.values()) for name, values in scores.items())
        for at in range(len(next(iter(means.values())))):
            yield tuple(group[at] for group in means.values() if at < len(group))
        for base in BASELINES:
            if base in scores:
                rows = [(*gains(values, scores[base]), least_gain(values, scores)) for values in scores.values()]
                yield from rows
                yield tuple(row[-5] for row in rows)


def summarize(values: dict[str, float]) -> Group:
    """The mean of each kind of set, the mean of all sets, and that of the kinds."""
    kinds = average((KINDS.get(name, "STS"), value) for name, value in values.items())
    order = [kinds[kind] for kind in ("STS", "clusters", "documents", "duplicates") if kind in kinds]
    return (*order, fmean(values.values()), fmean(order))


def gains(values: dict[str, float], base: dict[str, float]) -> Group:
    """Gains over ``base``: of each kind, the least, the largest, and on how many of how many sets there is one."""
    each = {name: value - base[name] for name, value in values.items() if name in base}
    above = sum(value > 0 for value in each.values())
    return (*summarize(each), min(each.values()), max(each.values()), above, len(each))


def least_gain(values: dict[str, float], scores: dict[str, dict[str, float]]) -> float:
    """The least gain over the better of raw pooling and the weights, by set."""
    bases = [scores[base] for base in ("raw", "weights", "as it is") if base in scores]
    return min(value - max((base.get(name, value) for base in bases), default=value) for name, value in values.items())


def means_of_runs(rows: list[Row]) -> Iterator[Group]:
    """The mean over the runs of each row: of the sets' measures, and of their mean."""
    for row in rows:
        cells = average((path, value) for run in row["runs"] for path, value in leaves(run))
        yield tuple(cells.values())
        yield from (tuple(v for path, v in cells.items() if path[0] == head) for head in {path[0] for path in cells})


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    for name, each in value.items():
        if isinstance(each, dict):
            yield from leaves(each, (*path, name))
        elif isinstance(each, int | float):
            yield (*path, name), each


def side_by_side(rows: list[Row]) -> list[Group]:
    """The rows of a report that a page sets side by side: one step of the flow for two batches or dtypes, one load
    of two servers; with the time over that of the kernel as shipped, and with the share of refused requests.
    """
    case = itemgetter("ladder", "batch")
    shipped = {case(row): row["median_ms"] for row in rows if row.get("step") == "as shipped, float32"}
    found: dict[Any, list[float]] = {}
    for row in rows:
        batch = None if row.get("ladder") == "flow" else row.get("batch")
        group = found.setdefault((row.get("ladder"), without_dtype(row), row.get("share"), batch), [])
        group += [float(row[name]) for name in PRINTED if row.get(name) is not None]
        if "ladder" in row and case(row) in shipped:
            group.append(row["median_ms"] / shipped[case(row)])
        if row.get("refused"):
            group.append(row["refused"] / (row["refused"] + row["runs"]))
    return [tuple(group) for group in found.values()]


def loads(rows: list[Row]) -> list[Group]:
    """One burst of requests by each server: the share of failed requests, seconds of the median and p99, answers."""
    found: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        share = row["failed"] / row["requests"]
        found[row["model"], row["requests"]] += [share, row["p50_s"], row["p99_s"], row["texts_per_s"]]
    return [tuple(group) for group in found.values()]


def without_dtype(row: Row) -> str:
    """The step of a row of the ladder; those that leave a part out are printed for two dtypes."""
    step = str(row.get("step"))
    return step.rpartition(", ")[0] if step.startswith("without") and "," in step else step


def matches(figure: str, value: float) -> bool:
    """Whether ``figure`` is ``value``, a share in per cent too, rounded to the figure's digits."""
    if "e" in figure:
        return f"{value:.{len(figure.partition('.')[2].partition('e')[0])}e}" == figure
    half = 0.5 * 10.0 ** -len(figure.partition(".")[2]) + 1e-9
    return abs(value - number(figure)) <= half or (value <= 1 and abs(100 * value - number(figure)) <= half)


def held(figures: list[str], group: Group) -> frozenset[int]:
    """The positions of ``figures`` that ``group`` has, each of its numbers used once."""
    left, found = list(group), set()
    for at, figure in enumerate(figures):
        if fitting := [value for value in left if matches(figure, value)]:
            left.remove(min(fitting, key=lambda value: abs(value - number(figure))))
            found.add(at)
    return frozenset(found)


def found_together(figures: list[str], files: Iterable[Path], most: int = 1) -> bool:
    """Whether ``most`` groups of the files have all figures; only a table has signs."""
    groups = {group for path in set(files) for group in read_groups(path)}
    parts = {held(figures, group if most == 1 else tuple(map(abs, group))) for group in groups}
    wanted = frozenset(range(len(figures)))
    return any(frozenset().union(*chosen) == wanted for chosen in combinations([*parts, frozenset()], most))
