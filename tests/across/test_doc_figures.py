"""Figures of docs/ and of the verdicts: each that claims a measurement is in a JSON that its paragraph names.

A claim is a decimal, or a number with a unit, in prose or in a table; of a table with a source also every other number.
A source is a link to a file of bench/results, or to a section of verdicts.md, which links to its files. A table may
have its link in the paragraph before it. So that a wrong figure does not pass by chance, the figures of a row are found
in one group of numbers (tests/support/figures.py), those of a sentence in two. The other way to give a source is the
machine with the commit or date. What is no measurement is in LIMITS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path

import pytest

from support.figures import found_together, number, read_groups
from support.places import ROOT

RESULTS = ROOT / "bench" / "results"
VERDICTS = RESULTS / "verdicts.md"
GENERATED = {"api.md", "commands.md"}  # from docstrings and help
RATIOS = {"speed.md", "duplicates.md"}  # of test_figures.py
PAGES = [*(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED | RATIOS), VERDICTS]
UNITS = "×|ms|µs|s|seconds|minutes|hours|kB|KiB|MB|MiB|GB|GiB|%|points?|times"
NUMBER = r"(?<![\w.,/^+-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-\d+)?(?![\w/]|[.,]\d)"
CLAIM = re.compile(
    rf"(?<![\w.,/^-])(?:\d+(?:,\d{{3}})*\.\d+(?:e-\d+)?(?![\w/.]|,\d)|\d+(?:,\d{{3}})*(?= (?:{UNITS})(?!\w)))"
)
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")
STATED = re.compile(r"(?:Zen [34]|Xeon)[^|]*(?:commit [0-9a-f]{7}|\b20\d\d-\d\d-\d\d)")

LIMITS: dict[str, tuple[str, ...]] = {  # settings, bounds and counts by arithmetic, as the page has them
    "calibrate.md": ("a cosine of about 0.1, by design",),
    "embed.md": (
        "of 12,000 texts (34 %), ", "read up to 256 MB",
        "over 16 MB",
    ),
    "large-files.md": ("| 100 MB |", "are 384 GB as int8", "four times as much"),
    "deploy.md": ("has taken longer than 60 s",),
    "evaluate.md": ("the percentiles 2.5 and 97.5", "the 95 % interval of the lead",
                    "have their 95 % intervals"),
    "export.md": ("a least cosine of 0.95 to float32",),
    "kernels.md": (
        "3.35 TB/s", "495 TFLOP/s", "two thirds of 12.5 ms", "some 100 µs", "1.1 to 1.5 of 12.3 ms",
        "256 × 128 tokens", "| plain, 768 | 1.8 | 1.9 | 1.7 |", "| packaged, 768 | 1.8 | 19.4 | 13.1 |",
        "| packaged, 256 | 0.6 | 6.5 | 3.2 |",  # kernels/test_triton.py
        "at most 32, of 2 GiB together", "8 texts of 32 tokens", "32 texts of 32 tokens", "| flow, 1,024 vectors |",
        "below 1.05 proves no gain",
        "over 1 % of a vector's length (encoder and pooling in float16 10 %, in bfloat16 25 %)",
        "predicts (100 %: always", "| 100 % | 100 % | 100 % | 98 % |",  # rows of several processors: test_results.py
        "| 88.9 % | 88.9 % | 88.9 % |", "| 85.7 % | 88.9 % | 88.9 % |",
    ),
    "methods.md": (
        "a/(a+p), a = 0.0005", "+ 20 times its share", "(58 kB, [background.py]", "| 0.5; 0.75 with", "| 0.1; 0 with",
        "at least 30 % of its first", "is below 0.3",
        *(f"| {row} | " for row in (  # two rows of quality.json in one: test_figures.py
            "standardize", "nullspace", "whiten",
            "flow, as in the paper, started from the data ([options](calibrate.md#choose))",
            "last layer", "first-last", "`--preset whitening`, on the target", "`--preset paper`, on the target",
            "token weights alone (`--method none`)", "the default of `fastflow-train`, but fitted to all texts",
        )),
    ),
    "models.md": ("at least 0.9995, else float32", "A cosine under 0.99 is an error"),
    "search.md": ("1.0 GB; of a", "0.3 or 0.04 GB", "| 0.3 GB |", "as int8 codes, 0.3 GB for", "as float32, 1.0 GB",
                  "0.1 for the packaged model", "nDCG@10 × 100",
                  "w is 0.6 for token tables, 0.8 for `untuned`, 0.4 for"),
    "sentence-transformers.md": ("under 0.99 is an error",),
    "serve-clients.md": ("waits 10 s after any error, and then 60 s",),
    "serve.md": ("| 10 s |", "| 60 s |", "| 30 s |", "| 16 MiB |", "| 64 MiB |", "| 64 KiB |", "for up to 60 s"),
    "vectors.md": ("is below 0.2",),
    "verdicts.md": ("the limit is 0.3", "at most 1.4 pieces on average", "| spectrum 0.", "at least 3 %",
                    "at most 0.1 points", "would need 3 GiB", "if 5 % of its texts", "that 1 % of the"),
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


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@cache
def sections() -> dict[str, tuple[Path, ...]]:
    """The files that each section of the verdicts links to, by its anchor."""
    parts = re.split(r"^#+ (.*)$", VERDICTS.read_text(encoding="utf-8"), flags=re.M)
    return {slug(head): files_in(text, VERDICTS) for head, text in zip(parts[1::2], parts[2::2], strict=True)}


def files_in(text: str, page: Path) -> tuple[Path, ...]:
    """The files with figures that ``text`` links to: JSON, its page or table, a card, or the JSON of a section."""
    found: list[Path] = []
    for name, anchor in LINK.findall(text):
        path = (page.parent / name).resolve()
        if path == VERDICTS and anchor and page != VERDICTS:
            found += sections()[anchor]
        elif path.suffix == ".md" and path.with_suffix(".json").is_file():
            found.append(path.with_suffix(".json"))
        elif path.suffix in (".json", ".txt") or (path.name == "README.md" and path.parent != ROOT):
            found.append(path)
    return tuple(found)


def lead(page: list[str], at: int) -> str:
    """Block ``at``; of a table with the paragraph before it."""
    return "\n".join(page[max(0, at - is_table(page[at])) : at + 1])


def claimed(page: Path) -> Iterator[tuple[str, list[str], tuple[Path, ...], int]]:
    """(sentence or row, its figures, their files, in how many groups) for each that claims a measurement."""
    text = page.read_text(encoding="utf-8")
    for section in re.split(r"^(?=#+ )", text, flags=re.M) if page == VERDICTS else [text]:
        parts = blocks(section)
        for at, block in enumerate(parts):
            if STATED.search(" ".join(lead(parts, at).split())):
                continue
            files, table = files_in(lead(parts, at) if page != VERDICTS else section, page), is_table(block)
            for unit in units(block):
                rest = reduce(lambda text, limit: text.replace(limit, ""), LIMITS.get(page.name, ()), unit)
                if figures := claims(rest, table and bool(files)):
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
    assert len(noticed) > 800
    assert sum(noticed) / len(noticed) > 0.88  # the rest: small figures of large tables


def test_claims_are_seen():
    assert claims("It takes 21 ms, 1,234.5 of them, and 3 × as long as `x = 0.5`; see STS12-14.", False) == [
        "21", "1,234.5", "3"
    ]  # fmt: skip
    assert claims("| 4 layers | 65.1 / 7 | -0.3 | [page](../bench/results/a-1.md) |", True) == ["65.1", "7", "-0.3"]
    assert STATED.search("(two cores of a Zen 4, commit cc6a3dc)")
    assert not STATED.search("two cores of a Zen 4")
    page = ROOT / "docs" / "page.md"
    assert files_in("[a](../bench/results/tasks.json), [b](embed.md)", page) == (RESULTS / "tasks.json",)
    assert files_in("[a](../bench/results/verdicts.md#bursts-of-requests)", page) == (RESULTS / "serve-burst.json",)
    assert found_together(["78.9", "60.0"], sections()["encoders-tuned-for-similarity"])
    assert not found_together(["78.9", "61.0"], sections()["encoders-tuned-for-similarity"])


def test_a_time_of_a_busy_run_has_no_source(tmp_path):
    run = {"machine": {"processors_usable": 2, "processors_used_by_others": 0.43}, "rows": [{"s_s": 12.5, "mb": 7.5}]}
    for used, found in ((0.43, [(7.5,)]), (0.1, [(12.5, 7.5)])):
        run["machine"]["processors_used_by_others"] = used
        path = tmp_path / f"{used}.json"
        path.write_text(json.dumps({"runs": [run]}), encoding="utf-8")
        assert [group for group in read_groups(path) if 7.5 in group] == found


def test_limits_are_in_their_pages():
    for page in PAGES:
        rows = [unit for block in blocks(page.read_text(encoding="utf-8")) for unit in units(block)]
        assert [limit for limit in LIMITS.get(page.name, ()) if not any(limit in row for row in rows)] == []
    assert set(LIMITS) <= {page.name for page in PAGES}
