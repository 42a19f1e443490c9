"""Figures of the tables of speed and quality: each printed figure is its own cell of a report, rounded.

A report that the bench marks as busy, and a table that does not name its commit, cannot be quoted.
"""

import json
import re
from collections.abc import Callable
from statistics import fmean

import pictures
import pytest

from fastflow.bench.report.table import is_busy
from fastflow.bench.research.study import read

from support.places import ROOT

DOCS, RESULTS = ROOT / "docs", ROOT / "bench" / "results"
SPEED = (DOCS / "speed.md").read_text(encoding="utf-8")
METHODS = (DOCS / "methods.md").read_text(encoding="utf-8")
PAPER = "### The paper's table and ours"
CELLS = re.compile(r"^\| ([^|]+) \| ([\d. /]+) \| ([\d. /]*)\|$", re.MULTILINE)
QUALITY = CELLS.findall(METHODS.partition(PAPER)[0])
FIGURE = re.compile(r"(?<![\w.,-])\d+(?:\.\d+)?(?![\w,.]*\d|\w)")
DTYPES = {"cpu": ("float32", "bfloat16", "int8"), "gpu": ("float32", "float16", "bfloat16")}
ENGINES = {  # as a page names them
    "ONNX Runtime": ("onnxruntime", "onnxruntime-plain"), "OpenVINO": ("openvino",), "PyTorch": ("torch-eager",),
    "tokenizers and NumPy": ("tokenizers-numpy",), "Sentence Transformers": ("sentence-transformers",),
}  # fmt: skip
REWRITES = ("torch-folded-eager", "torch-folded-state-eager", "torch-folded-state-compile")
Report = dict
Values = list[float]


def linked(cell: str) -> list[tuple[str, Report]]:
    """(text of the link, report) for each link of a cell; of a table, the JSON of the same name."""
    links = re.findall(r"\[([^\]]+)\]\((\S+?)\)", cell)
    return [(text, json.loads((DOCS / to).with_suffix(".json").read_text(encoding="utf-8"))) for text, to in links]


def medians(report: Report, **where: object) -> dict[tuple[str, str], float]:
    """The milliseconds of each engine and dtype in the rows with these fields, two threads of a CPU."""
    rows = [row for row in report["rows"] if row["threads"] in (2, 16)]
    found = [row for row in rows if all(row[name] == value for name, value in where.items())]
    assert len({(row["name"], row["dtype"]) for row in found}) == len(found) > 0, where
    return {(row["name"], row["dtype"]): row["median_ms"] for row in found}


def fastest(times: dict[tuple[str, str], float], names: tuple[str, ...]) -> float:
    return min(value for (name, _), value in times.items() if name in names)


def pick(report: Report, pattern: str) -> Values:
    """The values of the ratios whose names match, of two threads."""
    return [each["value"] for each in report["ratios"] if each["threads"] != 1 and re.search(pattern, each["name"])]


def of_texts(_: str, report: Report) -> Values:
    """Each dtype to the best engine, and to Sentence Transformers in float32."""
    best = [pick(report, rf"wide: fastflow {dtype} against (?!sentence)")[0] for dtype in DTYPES["cpu"]]
    teacher = [pick(report, rf"wide: fastflow {dtype} against sentence")[0] for dtype in DTYPES["cpu"]]
    return best + teacher


def of_static(case: str, report: Report) -> Values:
    sizes = ({"batch": 2758}, {"tokens": 12}, {"tokens": None})
    every = [medians(report, **size) for size in sizes]
    return [fastest(times, ENGINES.get(case, (case,))) / times["fastflow", "float32"] for times in every]


def of_encoder(_: str, report: Report) -> Values:
    values = [pick(report, rf": fastflow {dtype} against (?!the machine)") for dtype in DTYPES["cpu"]]
    assert {len(each) for each in values} == {6}
    return [bound for each in values for bound in (min(each), max(each))]


def of_pairs(case: str, report: Report) -> Values:
    tokens = case.removeprefix("of ").removesuffix(" tokens")
    return [pick(report, rf"rerank 100 x {tokens}: fastflow {dtype}")[0] for dtype in DTYPES["cpu"]]


def of_duplicates(case: str, report: Report) -> Values:
    """Our seconds, and the ratio to each peer that was timed."""
    size = int(case.partition(" (")[0].replace(",", ""))
    times = medians(report, subject="vectors to near pairs", batch=size)
    ours = times.pop(("fastflow", "float32"))
    order = "semhash", "faiss", "numpy", "paraphrase-mining", "community-detection"
    return [ours / 1e3, *(times[name, "float32"] / ours for name in order if (name, "float32") in times)]


def of_start(case: str, report: Report) -> Values:
    (subject,) = {row["subject"] for row in report["rows"] if ("BERT-base" in row["subject"]) == (case == "BERT-base")}
    times = medians(report, subject=subject)
    own = [("fastflow", dtype) for dtype in DTYPES["cpu"]]
    peers = [("onnxruntime", "float32"), ("onnxruntime", "int8"), ("sentence-transformers", "float32")]
    return [times[key] / 1e3 for key in (*own, *peers) if key in times]


def of_memory(report: Report) -> Values:
    order = [*(("fastflow", dtype) for dtype in DTYPES["cpu"]), ("onnxruntime", "int8")]
    memory = {(r["name"], r["dtype"]): r["resident_mb"] for r in report["rows"] if "BERT-base" in r["subject"]}
    return [memory[key] for key in (*order, ("sentence-transformers", "float32"))]


def of_flow(case: str, report: Report, ranges: Report | None = None) -> Values:
    """Our time of one vector, unfused PyTorch, the leanest (its least and greatest of several runs), the rewrite."""
    batch = 1 if ", one" in case else 1024
    word = "recolour" if case.startswith("default") else "flow(3x3"
    (subject,) = {row["subject"] for row in report["rows"] if word in row["subject"]}
    times = {name: value for (name, _), value in medians(report, subject=subject, batch=batch).items()}
    ours = times["fastflow"]
    lean = [each for each in (ranges or {}).get("ranges", []) if f"B={batch}: fastflow against unfused" in each["name"]]
    middle = [bound for each in lean for bound in (each["least"], each["largest"])] or [
        times["torch-lean-eager"] / ours
    ]
    rewrite = min(times[name] for name in REWRITES if name in times)
    return [*[ours * 1e3] * (batch == 1), times["torch-eager"] / ours, *middle, rewrite / ours]


def of_gpu_flow(case: str, report: Report) -> Values:
    size = case.partition(" (")[0]
    batch = 1 if size == "one" else int(size.replace(",", ""))
    (median,) = pick(report, rf"B={batch}: fastflow, median")
    peers = ("unfused PyTorch eager, lean", "the same in a CUDA graph", "the fastest peer")
    return [
        median / (1e3 if "ms)" in case else 1),
        *(pick(report, f"B={batch}: .*against {peer}")[0] for peer in peers),
    ]


def of_gpu_encoder(case: str, report: Report) -> Values:
    shape = case.partition(", ")[2].replace(" × ", "x")
    return [
        pick(report, f"encoder {shape}: fastflow {dtype} against torch-graph {dtype}")[0] for dtype in DTYPES["gpu"]
    ]


def of_gpu_texts(case: str, report: Report) -> Values:
    times = medians(report, suite="end-to-end", batch=2758 if "2,758" in case else 1)
    return [times["sentence-transformers", dtype] / times["fastflow", dtype] for dtype in DTYPES["gpu"]]


TABLES: dict[str, Callable[..., Values]] = {  # the head of a table to the values of a row
    "model, machine | float32 to best": of_texts,
    "other engine | 2,758 sentences": of_static,
    "model | float32, least": of_encoder,
    "documents | float32 to best": of_pairs,
    "texts | SemHash": of_duplicates,
    "model | fastflow float32": of_start,
    "fastflow float32 | bfloat16": of_memory,
    "flow, vectors | unfused PyTorch": of_flow,
    "flow, vectors | leanest": of_gpu_flow,
    "model, texts × tokens | float32": of_gpu_encoder,
    "model, texts of STSb | float32": of_gpu_texts,
}


def tables(page: str) -> list[tuple[str, str]]:
    """(head, row) for every row of the page's tables."""
    blocks = [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)]
    heads = [" | ".join(re.split(r" *\| *", block[0].strip("| "))[:2]) for block in blocks]
    return [(head, row) for head, block in zip(heads, blocks, strict=True) for row in block[2:]]


def split(head: str, row: str) -> tuple[list[str], Values]:
    """The figures of a row as they are printed, and the values that its reports have for them."""
    case, *cells, sources = [cell.strip() for cell in row.strip().strip("|").split("|")]
    found = [report for _, report in linked(sources)]
    if TABLES[head] is of_memory:
        return FIGURE.findall(" ".join((case, *cells))), of_memory(*found)
    bracket = re.findall(r"\((\d+(?:\.\d+)?) [µm]?s\)", case)
    return [*bracket, *FIGURE.findall(" ".join(cells))], TABLES[head](case, *found)


def differ(figures: list[str], values: Values) -> list[str]:
    """The printed figures that are not their value, rounded to their digits."""
    assert len(figures) == len(values) > 0, f"{figures} for {values}"
    digits = [len(figure.partition(".")[2]) for figure in figures]
    return [
        f"{figure}: {value:g}"
        for figure, value, d in zip(figures, values, digits, strict=True)
        if f"{value:.{d}f}" != figure
    ]


ROWS = tables(SPEED)


@pytest.mark.each
@pytest.mark.parametrize(("head", "row"), ROWS, ids=[row.strip("| ").partition(" |")[0] for _, row in ROWS])
def test_every_figure_is_its_own_cell(head, row):
    assert differ(*split(head, row)) == []


@pytest.mark.parametrize("head", TABLES)
def test_a_figure_one_step_off_is_noticed_in_every_kind_of_table(head):
    rows = [row for each, row in ROWS if each == head]
    assert rows
    for figures, values in (split(head, row) for row in rows):
        for at, figure in enumerate(figures):
            digits = len(figure.partition(".")[2])
            for step in (-1, 1):
                other = f"{float(figure) + step * 10**-digits:.{digits}f}"
                assert len(differ([*figures[:at], other, *figures[at + 1 :]], values)) == 1


@pytest.mark.each
@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=lambda row: row.strip("| ").partition(" |")[0])
def test_a_row_of_speed_names_its_commit_and_is_of_a_quiet_machine(row):
    for text, report in linked(row):
        machine = report.get("machine", report)
        assert text == machine["commit"]
        assert not is_busy({"processors_used_by_others": None} | machine)


def test_every_result_of_a_machine_names_its_commit_and_no_busy_run_is_kept():
    files = [path for path in RESULTS.glob("*/*.json") if path.name != "table.json"]
    kept = {path: json.loads(path.read_text(encoding="utf-8")) for path in files}
    machines = {path: report.get("machine", report) for path, report in kept.items()}
    assert [path.name for path, machine in machines.items() if not machine["commit"]] == []
    loads = {path: machine for path, machine in machines.items() if "processors_used_by_others" in machine}
    assert len(loads) > 10
    assert [path.name for path, machine in loads.items() if is_busy(machine)] == []
    assert is_busy({"processors_used_by_others": 0.43, "processors_usable": 2})


def test_the_words_of_speed_have_the_figures_of_the_static_run():
    report = json.loads((RESULTS / "xeon-amx" / "static.json").read_text(encoding="utf-8"))
    one, start = (medians(report, **size)["fastflow", "float32"] for size in ({"tokens": 12}, {"tokens": None}))
    assert f"({one * 1e3:.1f} µs)" in SPEED
    assert f"({start:.0f} ms)" in SPEED


@pytest.mark.each
@pytest.mark.parametrize("row", QUALITY, ids=lambda row: row[0])
def test_every_figure_of_quality_is_the_mean_over_seeds(row):
    runs = {each["name"]: each["runs"] for each in read(ROOT / "bench" / "results" / "quality.json")["rows"]}
    name = row[0].partition(" (")[0].replace("`", "").removesuffix(", as in the paper, started from the data")
    names = [name] if name.startswith("raw") else [f"{name}, target", f"{name}, corpus"]
    means = [
        " / ".join(f"{fmean(run['mean'][k] for run in runs[each]):.1f}" for k in ("all", "wmean")) for each in names
    ]
    assert [cell.strip() for cell in row[1:] if cell.strip()] == means


PUBLISHED = {  # BERT-base on the seven sets: (a) Li et al. 2020, (b) Su et al. 2021
    "last layer (a)": (49.07, 55.92, 54.75, 62.75, 65.19, 47.29, 58.21),
    "first-last (a)": (57.84, 61.95, 62.48, 70.95, 69.81, 59.04, 63.75),
    "flow, target (a)": (63.48, 72.14, 68.42, 73.77, 75.37, 70.72, 63.11),
    "whiten, target (b)": (63.62, 73.02, 69.23, 74.52, 72.15, 71.34, 60.6),
}


def test_the_papers_table_has_published_means_and_our_wmean():
    found = CELLS.findall(METHODS.partition(PAPER)[2])
    ours = {
        row["name"]: fmean(run["mean"]["wmean"] for run in row["runs"])
        for row in read(RESULTS / "quality.json")["rows"]
    }
    wanted = {
        "last layer": ("last layer (a)", "raw, mean of the last layer"),
        "first-last": ("first-last (a)", "raw, first-last"),
        "`--preset whitening`, on the target": ("whiten, target (b)", "whiten, target"),
        "`--preset paper`, on the target": ("flow, target (a)", "flow, target, glorot start"),
    }
    rows = {name: (f"{fmean(PUBLISHED[theirs]):.1f}", f"{ours[own]:.1f}") for name, (theirs, own) in wanted.items()}
    assert {name: (first.strip(), second.strip()) for name, first, second in found} == rows


def test_limits_of_duplicates_are_those_of_the_study():
    """A cell has precision and recall x100."""
    page = (ROOT / "docs" / "duplicates.md").read_text(encoding="utf-8").partition("## Which limit")[2]
    blocks = [block.splitlines() for block in page.split("\n\n") if block.startswith("| limit")]
    rows = read(RESULTS / "duplicate-limits.json")["rows"]
    assert len(blocks) == len(rows["static"]) == 3
    for name, (head, _, *lines) in zip(rows["static"], blocks, strict=True):
        models = [cell.strip(" `") for cell in head.strip("|").split("|")[1:]]
        assert models == list(rows)
        wanted = [
            [f"{row['limit']:g}", *(f"{100 * rows[m][name][at][k]:.0f}" for m in rows for k in ("precision", "recall"))]
            for at, row in enumerate(rows["static"][name])
        ]
        assert [re.findall(r"[\d.]+", line) for line in lines] == wanted


def test_the_tables_are_read():
    assert {head for head, _ in ROWS} == set(TABLES)
    assert len(QUALITY) == 8
    assert FIGURE.findall("0.99 to 1.5 ×, 2,758 of int8; 178 × and MiniLM-L6 1.7 ×") == ["0.99", "1.5", "178", "1.7"]


def test_the_readme_compares_by_the_figures_of_the_study():
    """The README's times are of the quiet run in its caption, its Spearman of the run that scored the model."""
    page = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Compared with\n")[2].partition("\n## ")[0]
    runs = read(RESULTS / "compared.json")["runs"]
    (timed,) = (run for run in runs if run["machine"]["commit"] in page)
    assert not is_busy(timed["machine"])
    assert timed["machine"]["processor"].startswith("Intel(R) Xeon")
    known: dict[tuple[str, str, str], list[float | None]] = {}
    for run in runs:
        for row in run["rows"]:
            values = known.setdefault((row["package"], row["model"], row["dtype"]), [None] * 3)
            if run is timed:
                values[:2] = row["texts_per_s"], row["first_vector_s"]
            values[2] = row["seven"] if values[2] is None else values[2]
    rows = [line.split("|")[1:-1] for line in page.splitlines() if re.match(r"\| [a-z0-9-]+, .*\d", line)]
    published = [row for row in rows if "published" in row[0]]
    assert len(published) == 1
    assert "from model2vec's repository, not measured here" in page
    rows = [row for row in rows if row not in published]
    assert len(rows) == len(known) - 1  # untuned, of the next test
    for head, *cells in rows:
        package, model, dtype = [*head.strip().replace("`", "").split(", "), "float32"][:3]
        values = known[package, model, dtype]
        pairs = list(zip(map(str.strip, cells), values, strict=True))
        assert [cell for cell, value in pairs if cell and f"{value:,.{len(cell.partition('.')[2])}f}" != cell] == []
        assert any(cell for cell, _ in pairs)
    near = json.loads((RESULTS / "zen5" / "duplicates.json").read_text(encoding="utf-8"))
    ours, semhash, *_ = of_duplicates("1,000,000 (", near)
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n```")[0]
    speed = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8").partition("float32 to Sentence Transformers")[2]
    ratios = [float(row.split("|")[5]) for row in speed.partition("\n\n")[0].splitlines() if re.match(r"\| [A-Z]", row)]
    assert f"{min(ratios)} to {max(ratios)} times as fast" in first
    assert f"of 1,000,000 vectors take {ours:.0f} s, and SemHash {semhash:.1f} times as long" in page


def test_the_readme_has_the_scores_of_the_bert_without_labels():
    page = (
        (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .partition("## A BERT without labels\n")[2]
        .partition("\n## ")[0]
    )
    runs = {row["name"]: row["runs"] for row in read(RESULTS / "quality.json")["rows"]}
    (untuned,) = (
        row["seven"]
        for run in read(RESULTS / "compared.json")["runs"]
        for row in run["rows"]
        if row["model"] == "untuned" and row["seven"] is not None
    )
    closed = [fmean(run["mean"]["all"] for run in runs[name]) for name in ("raw, first-last", "whiten, target")]
    figures = re.findall(r"^\| .* \| ([\d.]+) \|$", page, re.M)
    assert figures == [f"{value:.1f}" for value in (*closed, untuned)]


def test_the_pictures_are_of_quiet_runs_and_kept_cosines():
    rows = pictures.read_rows()
    assert [row["package"] for row in rows] == ["fastembed", "sentence-transformers", "fastflow"]
    assert {row["dtype"] for row in rows} == {"float32"}
    kept = {(row["vectors"], row["pairs"]): row for row in read(RESULTS / "cosines.json")["rows"]}
    assert all(len(row["counts"]) == pictures.BINS for row in kept.values())
    gap = {when: kept[when, "similar"]["mean"] - kept[when, "random"]["mean"] for when in ("raw", "calibrated")}
    assert gap["calibrated"] > gap["raw"] > 0
    assert kept["calibrated", "random"]["mean"] < 0.1 < kept["raw", "random"]["mean"]
