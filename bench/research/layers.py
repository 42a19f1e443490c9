"""The choice of ``token_weights`` on other layers, whose vectors lie otherwise: does it carry over?

    python -m fastflow.bench.research.layers --encoder DIR --data DIR --cache DIR --out bench/results/layers

One untuned encoder is at hand, and the default was chosen on the mean of its first and last layer. Other layers are no
other encoder, but some are far more anisotropic; those below the last of an encoder tuned for similarity come near one.
Nothing is chosen here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow.bench.research.quality import write
from fastflow.bench.research.token_weights import METHODS, Bench, candidates, fitted_on, inputs, make_bench
from fastflow.bench.research.token_weights_page import TARGET, Candidates, means, table
from fastflow.evaluation import isotropy
from fastflow.train.methods.chain import sample

POOLINGS = ("first-last", "last", "mean-of-layers:2,3", "mean-of-layers:1", "mean-of-layers:0")
FITS = ("snli", "news", "novels")
REMOVALS = tuple(m for m in METHODS if m.startswith(("none", "components", "nullspace")))  # the rest needs full rank


def mean_cosine(bench: Bench, where: str) -> float:
    """Of random pairs among what is fitted on, with token weights, uncalibrated; of the target the mean of its sets."""
    pooled = (sample(bench.pooled(name, name)) for name, _ in fitted_on(where))
    return float(np.mean([isotropy.measure(x)["mean_cosine"] for x in pooled]))


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    weighted = (f"weights: {method.replace(':', ' ')}" for method in REMOVALS)
    heads = ["layers", "fitted on", "mean cosine", "tokens alike: none", *weighted]
    rows, below = [], []
    for pooling, measured in result["poolings"].items():
        found = Candidates({"candidates": measured})
        for where in found.fits:
            raw = float(means(found(where, "plain", "none")).mean())
            values = [found.mean(where, "sif", method) for method in REMOVALS]
            cosine = f"{result['mean_cosine'][pooling][where]:.2f}"
            rows.append([pooling, where, cosine, f"{raw:.1f}", *(f"{value:.1f}" for value in values)])
            below += [values[REMOVALS.index("components:1")] - other for other in (raw, values[0])]
    return f"""# The default on other layers

Made by

    {result["command"]}

Mean of `all` and `wmean` over the seven sets, Spearman ×100, with {result["encoder"]}. The default (token weights,
components 1) was chosen on the first-last pooling of mini-mlm-uncased; all else is a check of whether it carries over
to vectors that lie otherwise, and decided nothing. Layer 0 is the embeddings before any attention; the mean cosine is
that of random pairs of texts with weights, uncalibrated.

{table(heads, rows)}

Least gain of the default: {min(below[::2]):+.1f} over raw pooling, {min(below[1::2]):+.1f} over weights alone.
"""


@click.command()
@inputs
def main(encoder: str, data: Path, cache: Path, out: Path) -> None:
    """Measure the default on other layers."""
    result: dict[str, Any] = {
        "command": f"python -m fastflow.bench.research.layers --encoder .../{Path(encoder).name} "
        f"--data .../{data.name} --cache DIR --out {out}",
        "encoder": Path(encoder).name,
        "mean_cosine": {},
        "poolings": {},
    }
    for pooling in POOLINGS:
        bench, fits = make_bench(encoder, pooling, FITS, data, cache), (TARGET, *FITS)
        result["mean_cosine"][pooling] = {where: mean_cosine(bench, where) for where in fits}
        result["poolings"][pooling] = [row for where in fits for row in candidates(bench, where, REMOVALS)]
    write(out, result, markdown(result))


if __name__ == "__main__":
    main()
