"""Figures of docs/: each that claims a measurement is found in a file of bench/results that its paragraph links to.

A claim is a decimal, or a number with a unit, in prose or in a table; of a table with a source also every other number.
A table may have its link in the paragraph before it. So that a wrong figure does not pass by chance, the figures of a
row are found together, in one row, paragraph or record of a file, and those of a sentence in two. The other way to give
a source is the machine with the commit or date. What is no measurement is in LIMITS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache, reduce
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from support.places import ROOT

GENERATED = {"api.md", "commands.md", "billion-rows.md"}  # from docstrings, help and measured rates; tested elsewhere
RATIOS = {"speed.md"}  # of test_figures.py
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED | RATIOS]
UNITS = "×|ms|µs|s|seconds|minutes|hours|kB|KiB|MB|MiB|GB|GiB|%|points?|times"
NUMBER = r"(?<![\w.,/^-])\d+(?:,\d{3})*(?:\.\d+)?(?:e-\d+)?(?![\w/]|[.,]\d)"
FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-\d+)?")
CLAIM = re.compile(
    rf"(?<![\w.,/^-])(?:\d+(?:,\d{{3}})*\.\d+(?:e-\d+)?(?![\w/.]|,\d)|\d+(?:,\d{{3}})*(?= (?:{UNITS})(?!\w)))"
)
SOURCE = re.compile(r"\]\((?:\.\./bench/results/|\.\./fastflow/(?=static/)|\.\./fastflow/default/)(\S+?)\)")
STATED = re.compile(r"(?:Zen [34]|Xeon)[^|]*(?:commit [0-9a-f]{7}|\b20\d\d-\d\d-\d\d)")
PRINTED = (
    "gain",
    "max_abs_err",
    "least_cosine",
    "tokens",
    "median_ms",
    "p99_ms",
    "texts_per_s",
    "refused_p99_ms",
    "refused",
    "batch_ms",
)
Group = tuple[float, ...]

LIMITS: dict[str, tuple[str, ...]] = {  # settings, bounds and counts by arithmetic, as the page has them
    "calibrate.md": ("a cosine of about 0.1, by design",),
    "embed.md": (
        "of 12,000 texts (34 %), ", "read up to 256 MB", "that 1 % of the texts are", "at least 5 % of 200 or more",
    ),
    "deploy.md": ("has taken longer than 60 s",),
    "inputs.md": ("of over 16 MB",),
    "evaluate.md": ("with k1 1.2, b 0.75 and", "the percentiles 2.5 and 97.5", "the 95 % interval of the lead",
                    "have their 95 % intervals"),
    "export.md": ("a least cosine of 0.95 to float32",),
    "kernels.md": (
        "38 % fewer at width 256", "at most 32 graphs and 2 GiB", "8 texts of 32 tokens",
        "32 texts of 32 tokens", "| flow, 1,024 vectors |", "below 1.05 proves no gain",
        "over 1 % (before the calibration in float16 10 %, in bfloat16 25 %)",
    ),
    "methods.md": (
        "a/(a+p), a = 0.0005", "+ 20 times its share", "(58 kB, [background.py]", "| 0.5; 0.75 with", "| 0.1; 0 with",
        "at least 30 % of its first", "is below 0.3",
        *(f"| {row} | " for row in (  # two rows of quality.md in one: test_figures.py
            "standardize", "nullspace", "whiten", "flow, as in the paper ([options](calibrate.md#choose))",
            "token weights alone (`--method none`)", "the default of `fastflow-train`, but fitted to all texts",
        )),
    ),
    "models.md": ("at least 0.9995, else float32", "A cosine under 0.99 is an error"),
    "search.md": ("1.0 GB; of a", "0.3 or 0.04 GB", "| 0.3 GB |", "as int8 codes, 0.3 GB for", "as float32, 1.0 GB",
                  "0.1 for the model in"),
    "sentence-transformers.md": ("under 0.99 is an error",),
    "serve-clients.md": ("waits 10 s after any error, and then 60 s",),
    "serve.md": ("| 10 s |", "| 60 s |", "| 30 s |", "| 16 MiB |", "| 64 MiB |", "| 64 KiB |", "for up to 60 s"),
}  # fmt: skip


def blocks(text: str) -> list[str]:
    """The paragraphs and tables of a page, without its code."""
    return re.split(r"\n\s*\n", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))


def is_table(block: str) -> bool:
    return block.lstrip().startswith("|")


def units(block: str) -> list[str]:
    """The parts of a block whose figures belong together: the rows of a table, the sentences of a paragraph."""
    if is_table(block):
        return block.strip().splitlines()[2:]
    joined = " ".join(block.split())
    return re.split(r"(?<=[.:;])\s+(?=[^a-z\d])", joined)


def plain(text: str) -> str:
    """Without targets of links, code and what looks like a version or a name of a set."""
    text = re.sub(r"`[^`]*`", "`", re.sub(r"\]\([^)]*\)", "]", text))
    return re.sub(r"STS1\d(?:-1\d)?|(?:Ray|Python|Transformers|Zen|transformers|model2vec) \d[\d.]*", "", text)


def claims(unit: str, table: bool) -> list[str]:
    """The figures of a sentence that claim a measurement; of a row of a table with a source all but those of its first
    cell.
    """
    if not table:
        return CLAIM.findall(plain(unit))
    cells = unit.strip().strip("|").split("|")
    return re.findall(NUMBER, plain(" | ".join(cells[1:])))


def sources(page: list[str], at: int) -> list[str]:
    """The files that block ``at`` links to."""
    return SOURCE.findall(lead(page, at))


def lead(page: list[str], at: int) -> str:
    """Block ``at``; of a table with the paragraph before it."""
    return "\n".join(page[max(0, at - is_table(page[at])) : at + 1])


@cache
def groups(name: str) -> tuple[Group, ...]:
    """The numbers of a source that belong together: of a row or paragraph of a page, or of a record of a JSON."""
    places = (ROOT / folder / name for folder in ("bench/results", "fastflow/default", "fastflow"))
    path = next(place for place in places if place.is_file())
    text, found = path.read_text(encoding="utf-8"), []
    if path.suffix == ".json":
        report = json.loads(text)
        return tuple(side_by_side(report["rows"]) if "rows" in report else records(report))
    for block in blocks(text):
        whole = path.suffix == ".md" and not is_table(block)
        found += [tuple(map(number, FIGURE.findall(part))) for part in ([block] if whole else block.splitlines())]
        found += means(block) if is_table(block) else []
    return tuple(found)


def number(text: str) -> float:
    return float(text.replace(",", ""))


def records(value: Any) -> list[Group]:
    """The numbers of each object of a JSON."""
    each = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    own = tuple(float(v) for v in each if isinstance(v, int | float))
    return [*([own] if isinstance(value, dict) else []), *(group for v in each for group in records(v))]


def side_by_side(rows: list[dict[str, Any]]) -> list[Group]:
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


def without_dtype(row: dict[str, Any]) -> str:
    """The step of a row of the ladder; those that leave a part out are printed for two dtypes."""
    step = str(row.get("step"))
    return step.rpartition(", ")[0] if step.startswith("without") and "," in step else step


def means(table: str) -> list[Group]:
    """The mean of each column of a table, to a digit: of the rows whose names have a comma, and of the others."""
    found = []
    for comma in (True, False):
        rows = [row for row in units(table) if ("," in row.split("|")[1]) is comma]
        cells = [[re.match(r"\d+\.\d+", cell.strip()) for cell in row.strip("| ").split("|")] for row in rows]
        columns = [[float(cell[0]) for cell in column if cell] for column in zip(*cells, strict=False)]
        found.append(tuple(round(fmean(column), 1) for column in columns if column))
    return found


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
        if (value := next((value for value in left if matches(figure, value)), None)) is not None:
            left.remove(value)
            found.add(at)
    return frozenset(found)


def found_together(figures: list[str], files: list[str], most: int) -> bool:
    """Whether ``most`` groups of the files have all figures."""
    parts = {held(figures, group) for name in files for group in groups(name)}
    wanted = frozenset(range(len(figures)))
    return any(frozenset().union(*chosen) == wanted for chosen in combinations([*parts, frozenset()], most))


def claimed(page: Path) -> Iterator[tuple[str, list[str], list[str], int]]:
    """(sentence or row, its figures, their files, in how many groups) for each that claims a measurement."""
    parts = blocks(page.read_text(encoding="utf-8"))
    for at, block in enumerate(parts):
        if STATED.search(" ".join(lead(parts, at).split())):
            continue
        files, table = sources(parts, at), is_table(block)
        for unit in units(block):
            text = reduce(lambda text, limit: text.replace(limit, ""), LIMITS.get(page.name, ()), unit)
            if figures := claims(text, table and bool(files)):
                yield unit, figures, files, 1 if table else 2


@pytest.mark.each
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_measured_figure_has_a_source(page):
    without = [unit for unit, figures, files, most in claimed(page) if not found_together(figures, files, most)]
    assert without == []


@pytest.mark.slow
def test_a_changed_figure_is_noticed():
    """Each figure, a few steps of its last digit off; some of them are in the same file by chance."""
    noticed = []
    for _, figures, files, most in (each for page in PAGES for each in claimed(page)):
        for at, figure in enumerate(figures):
            digits = len(figure.partition(".")[2])
            for step in (3, 7) if "e" not in figure else ():
                other = f"{number(figure) + step * 10**-digits:,.{digits}f}"
                noticed.append(not found_together([*figures[:at], other, *figures[at + 1 :]], files, most))
    assert len(noticed) > 400
    assert sum(noticed) / len(noticed) > 0.88  # the rest: small figures of large tables


def test_claims_are_seen():
    assert claims("It takes 21 ms, 1,234.5 of them, and 3 × as long as `x = 0.5`; see STS12-14.", False) == [
        "21", "1,234.5", "3"
    ]  # fmt: skip
    assert claims("| 4 layers | 65.1 / 7 | [page](../bench/results/a-1.md) |", True) == ["65.1", "7"]
    assert STATED.search("(two cores of a Zen 4, commit cc6a3dc)")
    assert not STATED.search("two cores of a Zen 4")
    assert sources(["Of [x](../bench/results/x.md):", "| a |\n| --- |\n| 1.5 |", "1.5 s"], 1) == ["x.md"]
    assert sources(["Of [x](../bench/results/x.md):", "1.5 s"], 1) == []


def test_limits_are_in_their_pages():
    for name, limits in LIMITS.items():
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        rows = [unit for block in blocks(text) for unit in units(block)]
        assert [limit for limit in limits if not any(limit in row for row in rows)] == []
