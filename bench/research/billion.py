"""A billion texts on paper: nodes, hours and bytes from the rates that are committed, and the page that shows them.

    python -m fastflow.bench.research.billion --out docs/billion-rows.md

Nothing is measured here. Rates come from ``bench/results``; what is assumed stands in ``ASSUMED``, and on the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import click

RESULTS = Path(__file__).resolve().parents[1] / "results"
TEMPLATE = Path(__file__).with_name("billion.template.md")
TEXTS = 10**9


class Measured(NamedTuple):
    """A model with its committed rate: its file, the start of its subject, and the width of its embeddings."""

    name: str
    file: str
    subject: str
    dim: int


class Assumed(NamedTuple):
    """The assumptions that no measurement here covers."""

    tokens: int = 30  # of a text
    cores: int = 32  # of a node, each as fast as a measured one
    nodes: int = 16
    scaling: float = 0.8  # of the rate that many cores would have if they did not share memory and clock
    text_bytes: int = 120  # of a text, before Parquet packs it
    disk: float = 1e9  # bytes a second that one process reads and writes
    row_bytes: int = 8  # of an id that is an integer
    string_ids: float = 9e9 / 115e6  # bytes of an id that is a string (ray-project/ray#60200)
    safety: float = 1.5  # that Ray reserves above the ids, in each of its filters (ray 2.60)
    sample: int = 100_000  # texts that a flow is trained on
    parts: int = 64  # of --shard, for each node
    links: int = 128  # bytes of the links of a vector in a graph index, 16 neighbours in both directions


MODELS = (
    Measured("all-MiniLM-L6-v2, 6 layers", "zen4/end-to-end-all-minilm-l6-v2.json", "the model given", 384),
    Measured("BERT-base, 12 layers", "zen4/end-to-end-bert-base.json", "shape of BERT-base", 768),
)
DTYPES = ("float32", "bfloat16", "int8")
STORED = {"float32": 4.0, "float16": 2.0, "int8": 1.0, "ubinary": 1 / 8}  # --precision: bytes of a number
ASSUMED = Assumed()


def measured(model: Measured, dtype: str) -> dict[str, Any]:
    """The committed row of fastflow."""
    rows = json.loads((RESULTS / model.file).read_text(encoding="utf-8"))["rows"]
    (row,) = (
        r for r in rows if r["name"] == "fastflow" and r["dtype"] == dtype and r["subject"].startswith(model.subject)
    )
    return dict(row)


def tokens_per_core(model: Measured, dtype: str) -> float:
    """Tokens a second of one core, of a run on all cores of the measured machine."""
    row = measured(model, dtype)
    return float(row["tokens"] / (row["median_ms"] / 1000) / row["threads"])


def texts_per_node(model: Measured, dtype: str, assumed: Assumed = ASSUMED) -> float:
    """Texts a second of a node."""
    return tokens_per_core(model, dtype) * assumed.cores * assumed.scaling / assumed.tokens


def hours(model: Measured, dtype: str, assumed: Assumed = ASSUMED) -> float:
    """Hours of all nodes for all texts."""
    return TEXTS / texts_per_node(model, dtype, assumed) / assumed.nodes / 3600


def speed_table(assumed: Assumed = ASSUMED) -> str:
    """Rates, hours and core hours, a row for model and arithmetic."""
    lines = [
        "| model | `--dtype` | tokens a second and core, measured | texts a second and node | "
        f"hours on {assumed.nodes} nodes | core hours |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for model in MODELS:
        for dtype in DTYPES:
            took = hours(model, dtype, assumed)
            lines.append(
                f"| {model.name} | {dtype} | {tokens_per_core(model, dtype):,.0f} | "
                f"{texts_per_node(model, dtype, assumed):,.0f} | {took:.1f} | "
                f"{took * assumed.nodes * assumed.cores:,.0f} |"
            )
    return "\n".join(lines)


def size_table(assumed: Assumed = ASSUMED) -> str:
    """Gigabytes of the vectors, and hours of joining them, a row for a width."""
    lines = [
        "| dimensions | " + " | ".join(f"{name}, GB" for name in STORED) + " | hours to merge float32 | int8 |",
        "| ---: |" + " ---: |" * (len(STORED) + 2),
    ]
    for dim in sorted({model.dim for model in MODELS}):
        sizes = [TEXTS * dim * each / 1e9 for each in STORED.values()]
        merging = [2 * TEXTS * dim * STORED[name] / assumed.disk / 3600 for name in ("float32", "int8")]
        lines.append(
            f"| {dim} | " + " | ".join(f"{s:,.0f}" for s in sizes) + f" | {merging[0]:.1f} | {merging[1]:.1f} |"
        )
    return "\n".join(lines)


def figures(assumed: Assumed = ASSUMED) -> dict[str, Any]:
    """Every figure of the page by its name."""
    smaller, larger = MODELS
    row = measured(larger, "float32")
    hundred = 100
    return {name: f"{value:,}" for name, value in assumed._asdict().items()} | {
        "string_ids": f"{assumed.string_ids:.0f}",
        "scaling": f"{assumed.scaling:.0%}",
        "disk": f"{assumed.disk / 1e9:.0f}",
        "speed_table": speed_table(assumed),
        "size_table": size_table(assumed),
        "texts_gb": f"{TEXTS * assumed.text_bytes / 1e9:,.0f}",
        "integer_gb": f"{TEXTS * assumed.row_bytes / 1e9:.0f}",
        "integer_reserved_gb": f"{TEXTS * assumed.row_bytes * assumed.safety / 1e9:.0f}",
        "string_gb": f"{TEXTS * assumed.string_ids / 1e9:.0f}",
        "hundred": f"{hundred}",
        "hundred_gb": f"{hundred * 1e6 * assumed.string_ids / 1e9:.0f}",
        "measured_tokens": f"{row['tokens'] / row['batch']:.0f}",
        "dim": f"{smaller.dim}",
        "middle": smaller.name.split(",")[0],
        "lost_hours": f"{hours(smaller, 'bfloat16', assumed):.1f}",
        "shards": f"{assumed.nodes * assumed.parts:,}",
        "shard_minutes": f"{60 * hours(smaller, 'bfloat16', assumed) / assumed.parts:.1f}",
        "read_minutes": f"{TEXTS * assumed.text_bytes / assumed.disk / 60:.0f}",
        "bits_gb": f"{TEXTS * smaller.dim / 8 / 1e9:.0f}",
        "graph_gb": f"{TEXTS * (smaller.dim + assumed.links) / 1e9:,.0f}",
        "fit_minutes": f"{assumed.sample / texts_per_node(larger, 'float32', assumed) / 60:.1f}",
        "double": f"{2 * assumed.tokens}",
        "double_hours": f"{hours(smaller, 'bfloat16', assumed._replace(tokens=2 * assumed.tokens)):.1f}",
    }


def page() -> str:
    """docs/billion-rows.md."""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(figures())


@click.command()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The page.")
def main(out: Path) -> None:
    """Write the page."""
    out.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
