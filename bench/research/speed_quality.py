"""The README's picture: texts a second by engine and Spearman by method, from the results that are committed.

python -m fastflow.bench.research.speed_quality --out docs/speed-quality.png
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import click

from fastflow.bench.research.study import read

RESULTS = Path(__file__).resolve().parents[1] / "results"
METHODS = {  # the name of a row in quality.json: its name in the picture
    "raw, mean of the last layer": "raw, last layer",
    "raw, first-last": "raw, first-last",
    "standardize, target": "standardize",
    "nullspace, target": "nullspace",
    "whiten, target": "whiten",
    "flow, target": "flow",
    "token weights alone, target": "token weights",
    "the default of fastflow-train, target": "default",
}
OURS, PEERS = "#c0392b", "#7f8c8d"


def _read(name: str) -> Any:
    return read(RESULTS / name)


def speeds() -> dict[str, float]:
    """Engine and dtype: texts a second of the shape of MiniLM-L6, slowest first."""
    rows = _read("zen4/end-to-end-minilm-l6.json")["rows"]
    found = {f"{r['name']} {r['dtype']}": r["texts_per_s"] for r in rows}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def qualities() -> dict[str, float]:
    """Method, fitted on the target: the seven-set mean of ``all``, itself the mean over the seeds of a flow."""
    rows = {row["name"]: row["runs"] for row in _read("quality.json")["rows"]}
    return {label: fmean(run["mean"]["all"] for run in rows[name]) for name, label in METHODS.items()}


def draw(out: Path) -> None:
    """Write the picture: one panel of speed, one of quality."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    _bars(left, speeds(), "{:,.0f}", "fastflow")
    left.set_title("Texts a second: 128 sentences, 2 CPU cores,\nshape of MiniLM-L6", fontsize=10)
    _bars(right, qualities(), "{:.1f}", "default")
    right.set_title("Spearman ×100 (all), mean of seven STS sets,\nfitted on the target without labels", fontsize=10)
    figure.savefig(out, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _bars(axes: Any, values: dict[str, float], form: str, ours: str) -> None:
    colours = [OURS if name.startswith(ours) else PEERS for name in values]
    bars = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(bars, [form.format(value) for value in values.values()], padding=3, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The picture to write.")
def main(out: Path) -> None:
    """Draw the picture of the README from the results in bench/results."""
    draw(out)


if __name__ == "__main__":
    main()
