"""Draw the README's pictures: speed, of the quiet run in compared.json; and cosines before and after a calibration.

python release/pictures.py --out docs
python release/pictures.py --out docs --pairs .../STSb-test.tsv  (measures the cosines again)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow import Runtime
from fastflow.bench.measure.machine import describe
from fastflow.bench.report.table import is_busy, shorten, write_json
from fastflow.bench.research.study import read
from fastflow.evaluation.evaluate import read_pairs
from fastflow.transforms.vectors import compute_paired_cosine

RESULTS = Path(__file__).resolve().parents[1] / "bench" / "results"
OURS, PEERS = "#c0392b", "#7f8c8d"
SIMILAR = 4.0  # the least score of a similar pair
BINS, RANGE = 50, (-0.5, 1.0)  # of a histogram
MODEL = "untuned"


def read_rows() -> list[dict[str, Any]]:
    """Return the rows of the engines in float32 with the same vectors, the slowest first, of the quiet run."""
    runs = [run for run in read(RESULTS / "compared.json")["runs"] if not is_busy(run["machine"])]
    rows = [row for row in runs[0]["rows"] if row["least_cosine"] is not None and row["dtype"] == "float32"]
    return sorted(rows, key=lambda row: float(row["texts_per_s"]))


def measure_cosines(path: Path) -> None:
    """Write cosines.json: histograms of random and of similar pairs, pooled raw and calibrated."""
    from fastflow.train import fit

    pairs = read_pairs(path)
    texts = [*pairs.first, *pairs.second]
    raw = fit(texts, MODEL, "none", "first-last", "none").runtime(dtype="float32")
    near, found = pairs.scores >= SIMILAR, []
    for when, runtime in (("raw", raw), ("calibrated", Runtime(MODEL))):
        first, second = np.split(runtime.encode(texts), 2)
        random = compute_paired_cosine(first, np.roll(second, len(second) // 2, axis=0))
        for kind, values in (("random", random), ("similar", compute_paired_cosine(first[near], second[near]))):
            counts = np.histogram(values, BINS, RANGE)[0].tolist()
            found.append({"vectors": when, "pairs": kind, "mean": float(values.mean()), "counts": counts})
    command = "python release/pictures.py --out docs --pairs .../STSb-test.tsv"
    found_of = {"machine": describe(), "command": command, "model": MODEL, "set": pairs.name, "rows": found}
    write_json(shorten(found_of), RESULTS / "cosines.json")


def draw_speed(axes: Sequence[Any]) -> None:
    """Draw texts a second, and beside it seconds from a start to the first vector."""
    rows = read_rows()
    colours = [OURS if row["package"] == "fastflow" else PEERS for row in rows]
    shown = ("texts_per_s", "{:,.0f}", "texts a second"), ("first_vector_s", "{:.2f} s", "start to first vector")
    for one, (key, form, title) in zip(axes, shown, strict=True):
        bars = one.barh([row["package"] for row in rows], [row[key] for row in rows], color=colours)
        one.bar_label(bars, [form.format(row[key]) for row in rows], padding=3, fontsize=9)
        one.set_title(title, fontsize=10)
        one.margins(x=0.2)


def draw_cosines(axes: Sequence[Any]) -> None:
    """Draw the histograms of cosines.json."""
    for row in read(RESULTS / "cosines.json")["rows"]:
        one, similar = axes[int(row["vectors"] == "calibrated")], row["pairs"] == "similar"
        share, edges = np.divide(row["counts"], sum(row["counts"])), np.linspace(*RANGE, BINS + 1)
        one.stairs(share, edges, fill=True, alpha=0.6, color=OURS if similar else PEERS, label=f"{row['pairs']} pairs")
        one.set_title(row["vectors"], fontsize=10)
        one.set(xlabel="cosine", yticks=[])
        one.legend(fontsize=8, frameon=False, loc="upper left")


@click.command(help=__doc__)
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="The folder of pictures.")
@click.option("--pairs", type=click.Path(exists=True, path_type=Path), help="Scored pairs, of STSb.")
def draw(out: Path, pairs: Path | None) -> None:
    """Write the pictures."""
    from matplotlib.figure import Figure

    if pairs is not None:
        measure_cosines(pairs)
    for name, fill in (("compared", draw_speed), ("calibrated", draw_cosines)):
        picture = Figure(figsize=(8, 2), layout="constrained")
        axes = picture.subplots(1, 2, sharey=True)
        fill(axes)
        for one in axes:
            one.spines[["top", "right"]].set_visible(False)
        picture.savefig(out / f"{name}.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw()
