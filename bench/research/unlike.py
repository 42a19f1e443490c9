"""Does a flow's likelihood show texts that are unlike the fitted corpus? Rates of texts, and of warnings about files.

    python -m fastflow.bench.research.unlike --data DIR --cache DIR --out bench/results/unlike

For each of CORPORA a flow is fitted on SIZE of its sentences with the encoder in the package, the defaults of
fastflow-train and the budget as the stop (no dropout views are needed). The log-densities of held-out sentences of the
same corpus and of every other one lie in the cache; the page is made from them.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.study_data import read_texts
from fastflow.stages.density import density_of
from fastflow.train.data.corpus import clean
from fastflow.train.data.embeddings import Embedder
from fastflow.train.fitting import Run, calibrate
from fastflow.train.options import Options
from fastflow.train.voice import SILENT

Array = NDArray[np.float64]
CORPORA = ("snli", "news", "qnli", "wiki-sentences", "novels")
SIZE, HELD = 4000, 1000
RUNS = [(size, 0) for size in (100, 300, 1000)] + [(SIZE, seed) for seed in range(3)]


@cache
def sentences(name: str, data: Path) -> list[str]:
    """SIZE + HELD distinct sentences of a corpus."""
    found = list(dict.fromkeys(clean(read_texts(name, data), cut=True)))
    return random.Random(0).sample(found, SIZE + HELD)


def densities(name: str, size: int, seed: int, data: Path) -> dict[str, Array]:
    """The log-densities of the fitted texts (``fitted``) and of HELD texts of each corpus, by its name."""
    texts = {corpus: random.Random(seed).sample(sentences(corpus, data), SIZE + HELD) for corpus in CORPORA}
    options = Options(method="flow", stop="budget", seed=seed, batch_size=min(64, size // 2))
    fit = calibrate(texts[name][:size], [name], "default", options, Run(voice=SILENT))
    assert fit is not None  # noqa: S101 (only a dry run has none)
    stages = [stage.astype(np.float64) for stage in fit.stages]
    density, embed = density_of(stages, name), Embedder(fit.encoder, "cpu")
    pooled = {"fitted": fit.pooled} | {corpus: embed(texts[corpus][SIZE:]) for corpus in CORPORA}
    return {key: density.log_prob(np.asarray(x, np.float64), stages) for key, x in pooled.items()}


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds corpora/.")
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Keeps the log-densities.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.json and OUT.md.")
def main(data: Path, cache: Path, out: Path) -> None:
    """Measure what the cache lacks, and write the page."""
    cache.mkdir(parents=True, exist_ok=True)
    for size, seed in RUNS[::-1]:
        for name in CORPORA:
            path = cache / f"{name}-{size}-{seed}.npz"
            if not path.exists():
                found = densities(name, size, seed, data)
                np.savez(path, **found)
                q = np.quantile(found["fitted"], 0.01)
                click.echo(f"{path.name} { ({k: round(float((v < q).mean()), 3) for k, v in found.items()}) }")


if __name__ == "__main__":
    main()
