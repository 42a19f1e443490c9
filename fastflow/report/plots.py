"""Inline SVG drawings; equal input gives equal bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLOURS = ("#d9822b", "#3b82c4", "#2f9e6e", "#b5539c", "#8a8f98", "#c94f4f", "#8f7a2e", "#5a5fc7")
MARKERS = "osD^vP*X"
LINES = ("-", "--", "-.", ":")
LEAST = 1e-6  # singular values below this share of the largest are rounding
INK = "#010203"  # the page replaces it by its text colour
WIDTH = 4.2  # inches of 72 points; a phone shows 302 points as some 330 pixels
MOST_LETTERS = 32  # letters of a name in a legend
LETTERS = 10.5  # points, 11 pixels on a phone
STYLE: Any = {
    "svg.hashsalt": "fastflow", "svg.fonttype": "path", "font.size": LETTERS, "text.color": INK, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.linewidth": 0.6, "axes.facecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#888888",
    "grid.alpha": 0.3, "grid.linewidth": 0.5, "legend.frameon": False,
}  # fmt: skip

Series = Mapping[str, Sequence[float]]


@contextmanager
def open_figure(height: float, rows: int = 1) -> Iterator[tuple[Any, Any]]:
    """Open (figure, axes (rows,)) without a window system."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots(rows, squeeze=False, sharex=True, sharey=True)[:, 0]


def make_svg(figure: Any) -> str:
    """Make an <svg> element that scales to its place."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    for side in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?) {side}="[^"]*"', r"\1", text, count=1)
    return text.replace(INK, "currentColor")


def prefix_ids(text: str, prefix: str) -> str:
    """Prefix the ids of an SVG: several share a page."""
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    return re.sub(r'(href="|url\()#', rf"\1#{prefix}", text)


def shorten(name: str, most: int) -> str:
    """Shorten ``name`` by an ellipsis in its middle."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[len(name) - (most - 1) // 2 :]}"


@contextmanager
def open_with_legend(height: float, names: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """Open (figure, axes) with a legend above."""
    wide = (max(map(len, names)) + 5) * 0.6 * LETTERS  # the marker with its gaps takes five letters
    columns = max(1, min(len(names), int(WIDTH * 72 // wide)))
    with open_figure(height + -(-len(names) // columns) * 1.5 * LETTERS / 72) as (figure, (axes,)):
        yield figure, axes
        figure.legend(loc="outside upper left", ncols=columns, columnspacing=1, handletextpad=0.4, borderpad=0)


def draw_dots(names: Sequence[str], series: Series, label: str) -> str:
    """Draw a row for each name, with a dot for each series."""
    legend = [shorten(name, MOST_LETTERS) for name in series]
    with open_with_legend(0.8 + 0.28 * len(names), legend) as (figure, axes):
        styles = zip(series.values(), cycle(COLOURS), cycle(MARKERS), strict=False)
        for i, (values, colour, marker) in enumerate(styles):
            axes.plot(values, range(len(names)), marker, color=colour, label=legend[i], markersize=6, zorder=9 - i)
        axes.set_yticks(range(len(names)), [shorten(name, MOST_LETTERS // 2) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel(label)
    return make_svg(figure)


def draw_spectra(series: Series) -> str:
    """Draw descending values over their largest, on a logarithmic scale."""
    legend = [shorten(name, MOST_LETTERS) for name in series]
    with open_with_legend(2.7, legend) as (figure, axes):
        for i, (values, colour, line) in enumerate(zip(series.values(), cycle(COLOURS), cycle(LINES), strict=False)):
            ratio = np.asarray(values) / values[0]
            ratio = ratio[ratio >= LEAST]
            axes.plot(np.arange(1, len(ratio) + 1), ratio, line, color=colour, label=legend[i], zorder=9 - i)
        axes.set(yscale="log", xlabel="number of the singular value", ylabel="over the largest")
    return make_svg(figure)


def draw_scatter(edits: NDArray[Any], panels: Mapping[str, NDArray[Any]], gold: NDArray[Any]) -> str:
    """Draw cosine against edit distance, one panel for each subject, coloured by human score."""
    spread = np.random.default_rng(0).uniform(-0.3, 0.3, len(edits))
    with open_figure(1 + 1.8 * len(panels), len(panels)) as (figure, axes):
        for one, (name, cosines) in zip(axes, panels.items(), strict=True):
            points = one.scatter(edits + spread, cosines, c=gold, s=7, cmap="coolwarm", linewidths=0)
            one.set_title(shorten(name, MOST_LETTERS), fontsize=LETTERS, loc="left")
            one.set_ylabel("cosine")
        axes[-1].set_xlabel("edit distance")
        axes[-1].set_xticks(np.arange(edits.min(), edits.max() + 1))
        bar = figure.colorbar(points, ax=list(axes), label="human score", location="top", aspect=40, pad=0.02)
        bar.outline.set_visible(False)
        return make_svg(figure)
