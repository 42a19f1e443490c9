"""The choice of ``token_weights`` on other layers of the same encoder, whose vectors lie otherwise: does it carry over?

    python -m fastflow.bench.layers --encoder DIR --data DIR --cache DIR --out bench/results/layers

One encoder is at hand, and the default was chosen on the mean of its first and last layer. Other layers are no other
encoder, but some are far more anisotropic. Nothing is chosen here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastflow.bench.quality import write
from fastflow.bench.study_data import read_texts
from fastflow.bench.token_weights import METHODS, Bench, candidates
from fastflow.bench.token_weights_page import TARGET, Candidates, means, table
from fastflow.evaluate import SEVEN
from fastflow.train.embeddings import open_encoder
from fastflow.train.frequencies import weigh

POOLINGS = ("first-last", "last", "mean-of-layers:2,3", "mean-of-layers:1", "mean-of-layers:0")
FITS = ("snli", "news", "novels")
CLOSED = METHODS[:-2]  # the last layer has a dimension less than whitening needs, and no flow is trained here


def measure(pooling: str, encoder: str, data: Path, cache: Path) -> list[dict[str, Any]]:
    """The closed forms on ``pooling``, with token weights and without, fitted on the target and three corpora."""
    plain = open_encoder(encoder, pooling, None)
    texts = {name: read_texts(name, data) for name in (*SEVEN, *FITS)}
    weighted = {name: weigh(plain, found) for name, found in texts.items()}
    bench = Bench(plain, weighted, texts, data, cache)
    for name in texts:
        bench.fill(name, [plain, *(weighted[n] for n in ((name, *FITS) if name in SEVEN else (name,)))])
    return [row for where in (TARGET, *FITS) for row in candidates(bench, where, CLOSED)]


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    heads = ["layers", "fitted on", "tokens alike: none", *(f"weights: {m.replace(':', ' ')}" for m in CLOSED)]
    rows, below = [], []
    for pooling, measured in result["poolings"].items():
        found = Candidates({"candidates": measured})
        for where in found.fits:
            raw = float(means(found(where, "plain", "none")).mean())
            values = [found.mean(where, "sif", method) for method in CLOSED]
            rows.append([pooling, where, f"{raw:.1f}", *(f"{value:.1f}" for value in values)])
            below += [values[CLOSED.index("components:1")] - other for other in (raw, values[0])]
    return f"""# The default on other layers

Made by

    {result["command"]}

Mean of `all` and `wmean` over the seven sets, Spearman ×100, with {result["encoder"]}. The default (token weights,
components 1) was chosen on the first row's pooling; the other layers are a check of whether it carries over to vectors
that lie otherwise, and decided nothing. Layer 0 is the embeddings before any attention.

{table(heads, rows)}

Least gain of the default: {min(below[::2]):+.1f} over raw pooling, {min(below[1::2]):+.1f} over weights alone.
"""


@click.command()
@click.option("--encoder", required=True, help="Encoder directory, or default.")
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts/ and corpora/.")
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Where pooled embeddings are kept.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(encoder: str, data: Path, cache: Path, out: Path) -> None:
    """Measure the default on other layers."""
    result = {
        "command": f"python -m fastflow.bench.layers --encoder .../{Path(encoder).name} --data .../{data.name} "
        f"--cache DIR --out {out}",
        "encoder": Path(encoder).name,
        "poolings": {pooling: measure(pooling, encoder, data, cache) for pooling in POOLINGS},
    }
    write(out, result, markdown(result))


if __name__ == "__main__":
    main()
