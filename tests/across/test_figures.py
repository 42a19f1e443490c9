"""Figures of the tables of speed and quality: each is found, rounded, in the report that it comes from."""

import json
import re
from itertools import product
from statistics import fmean

import pytest

from fastflow.bench.research.study import read

from support.places import ROOT

DOCS = ROOT / "docs"
SPEED = (DOCS / "speed.md").read_text(encoding="utf-8")
ROWS = [
    line.strip("| \n").split(" | ") for line in SPEED.splitlines() if line.startswith("| ") and "](../bench/" in line
]
METHODS = (DOCS / "methods.md").read_text(encoding="utf-8")
QUALITY = re.findall(r"^\| ([^|]+) \| ([\d. /]+) \| ([\d. /]*)\|$", METHODS, re.MULTILINE)
FIGURE = re.compile(r"(?<![\w.,-])\d+(?:\.\d+)?(?![\w,.]*\d|\w)")
CASE = ("suite", "subject", "batch", "tokens", "threads")


def linked(cell: str) -> list[dict]:
    """The reports that a cell links to; of a table, the JSON of the same name."""
    paths = [DOCS / path for path in re.findall(r"\]\((\S+?)\)", cell)]
    return [json.loads(path.with_suffix(".json").read_text(encoding="utf-8")) for path in paths]


def measured(report: dict) -> set[float]:
    """Every ratio of the report, every time of one call in seconds and in microseconds, and the memory."""
    found = {number for ratio in report.get("ratios") or report["ranges"] for number in numbers(ratio)}
    rows = report.get("rows", [])
    for ours, other in product([row for row in rows if row["name"] == "fastflow"], rows):
        if all(ours[name] == other[name] for name in CASE):
            found.add(other["median_ms"] / ours["median_ms"])
    for row in rows:
        found |= {row["median_ms"] / 1e3, row["median_ms"] * 1e3, row.get("resident_mb") or 0.0}
    return found


def numbers(ratio: dict) -> list[float]:
    return [value for value in ratio.values() if isinstance(value, float)]


@pytest.mark.each
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_figure_is_in_a_linked_report(row):
    case, *speeds, sources = row
    known = set().union(*(measured(report) for report in linked(sources)))
    figures = [figure for cell in speeds for figure in FIGURE.findall(cell)]
    assert figures
    for figure in [*figures, *re.findall(r"\((\d+) µs\)", case)]:
        digits = len(figure.partition(".")[2])
        assert any(f"{value:.{digits}f}" == figure for value in known), f"{figure} is in no report of this row"


def test_the_table_is_read():
    assert len(ROWS) >= 8
    assert FIGURE.findall("0.99 to 1.5 ×, 2,758 of int8; 178 × and MiniLM-L6 1.7 ×") == ["0.99", "1.5", "178", "1.7"]


@pytest.mark.each
@pytest.mark.parametrize("row", QUALITY, ids=lambda row: row[0])
def test_every_figure_of_quality_is_the_mean_over_seeds(row):
    runs = {each["name"]: each["runs"] for each in read(ROOT / "bench" / "results" / "quality.json")["rows"]}
    name = row[0].partition(" (")[0].replace("`", "").removesuffix(", as in the paper")
    names = [name] if name.startswith("raw") else [f"{name}, target", f"{name}, corpus"]
    means = [
        " / ".join(f"{fmean(run['mean'][k] for run in runs[each]):.1f}" for k in ("all", "wmean")) for each in names
    ]
    assert [cell.strip() for cell in row[1:] if cell.strip()] == means


def test_the_table_of_quality_is_read():
    assert len(QUALITY) == 8


def test_the_readme_compares_by_the_figures_of_the_study():
    """Each row of the README's table is a row of compared.json, of the machine and commit in its caption."""
    page = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Compared with\n")[2].partition("\n## ")[0]
    (study,) = (
        run
        for run in read(ROOT / "bench" / "results" / "compared.json")["runs"]
        if run["machine"]["processor"] in page and run["machine"]["commit"] in page
    )
    names = ("package", "model", "dtype", "texts_per_s", "first_vector_s", "seven")
    known = {tuple(row[name] for name in names[:3]): [row[name] for name in names[3:]] for row in study["rows"]}
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| [a-z0-9-]+, .*\d", line)]
    assert len(rows) == len(known)
    for head, *figures in rows:
        package, model, dtype = [*head.replace("`", "").split(", "), "float32"][:3]
        values = known[package, model.replace("its table of all-MiniLM-L6-v2", "its table"), dtype]
        for figure, value in zip(figures, values, strict=True):
            digits = len(figure.partition(".")[2])
            assert f"{value:,.{digits}f}" == figure, head
