"""Published Spearman ×100 (wmean) on other encoders, for comparison; they were not measured here."""

from __future__ import annotations

from fastflow.bench.research.study import make_table

SOURCES = {"a": "Li et al., EMNLP 2020, tables 2 and 3", "b": "Su et al., 2021 (arXiv 2103.15316), table 1"}
# (name, source, STS12, STS13, STS14, STS15, STS16, STS-B, SICK-R); fitted on target sentences, or on NLI sentences
ROWS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("BERT-base, last layer", "a", (49.07, 55.92, 54.75, 62.75, 65.19, 47.29, 58.21)),
    ("BERT-base, first-last", "a", (57.84, 61.95, 62.48, 70.95, 69.81, 59.04, 63.75)),
    ("BERT-base, flow, target", "a", (63.48, 72.14, 68.42, 73.77, 75.37, 70.72, 63.11)),
    ("BERT-base, flow, NLI", "a", (59.54, 64.69, 64.66, 72.92, 71.84, 58.56, 65.44)),
    ("BERT-base, whiten, target", "b", (63.62, 73.02, 69.23, 74.52, 72.15, 71.34, 60.6)),
    ("BERT-base, whiten, NLI", "b", (61.69, 65.70, 66.02, 75.11, 73.11, 68.19, 63.6)),
    ("BERT-large, last layer", "a", (46.89, 53.32, 49.27, 56.54, 61.63, 46.99, 53.74)),
    ("BERT-large, first-last", "a", (57.68, 61.37, 61.02, 68.04, 70.32, 59.56, 60.22)),
    ("BERT-large, flow, target", "a", (65.20, 73.39, 69.42, 74.92, 77.63, 72.26, 62.50)),
    ("BERT-large, flow, NLI", "a", (61.72, 66.05, 66.34, 74.87, 74.47, 68.09, 64.62)),
)


def make_section(columns: list[str]) -> list[str]:
    """Return the lines of a page; ``columns`` are the sets and their mean, in the order of ROWS."""
    lines = [
        "## Published figures on other encoders",
        "",
        "Not measured here, and not comparable in level: far larger encoders, `wmean` only. Only the gain of a",
        "calibration over its encoder can be compared. Sources: "
        + "; ".join(f"({mark}) {source}" for mark, source in SOURCES.items())
        + ".",
        "",
    ]
    rows = [
        [f"{name} ({mark})", *(f"{value:.1f}" for value in (*values, sum(values) / len(values)))]
        for name, mark, values in ROWS
    ]
    return [*lines, *make_table(["", *columns], rows).splitlines()]
