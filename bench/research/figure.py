"""Draw the README's picture: texts a second by package, of the first machine in compared.json.

python -m fastflow.bench.research.figure --out docs/compared.png
"""

from __future__ import annotations

from pathlib import Path

import click

from fastflow.bench.research.study import read

RESULTS = Path(__file__).resolve().parents[1] / "results"
OURS, PEERS = "#c0392b", "#7f8c8d"


def read_speeds() -> dict[str, float]:
    """Return {package and dtype: texts a second}, slowest first, of packages with the same vectors."""
    rows = [row for row in read(RESULTS / "compared.json")["runs"][0]["rows"] if row["least_cosine"] is not None]
    found = {f"{row['package']} {row['dtype']}": row["texts_per_s"] for row in rows}
    return dict(sorted(found.items(), key=lambda item: item[1]))


@click.command(help=__doc__)
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The picture to write.")
def draw(out: Path) -> None:
    """Write the picture."""
    from matplotlib.figure import Figure

    values, figure = read_speeds(), Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    colours = [OURS if name.startswith("fastflow") else PEERS for name in values]
    bars = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(bars, [f"{value:,.0f}" for value in values.values()], padding=3, fontsize=9)
    axes.set_title("Texts a second, all-MiniLM-L6-v2, two cores of a Xeon with AMX", fontsize=10)
    axes.tick_params(labelsize=9)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw()
