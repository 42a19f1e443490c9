"""Does a flow's likelihood show texts that are unlike the fitted corpus? Rates of texts, and of warnings about files.

    python -m fastflow.bench.research.unlike --data DIR --cache DIR --out bench/results/unlike

For each of CORPORA a flow is fitted on SIZE of its sentences with the encoder in the package, the defaults of
fastflow-train and the budget as the stop (no dropout views are needed). The log-densities of held-out sentences of the
same corpus and of every other one lie in the cache; the page is made from them.
"""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.study_texts import read_texts
from fastflow.stages.density import density_of
from fastflow.train.data.corpus import clean
from fastflow.train.data.embeddings import Embedder
from fastflow.train.fitting import calibrate
from fastflow.train.options import Options
from fastflow.train.reading import Run
from fastflow.train.voice import SILENT

Array = NDArray[np.float64]
CORPORA = ("snli", "news", "qnli", "wiki-sentences", "novels")
SIZE, HELD = 4000, 1000
SHARE = 0.01  # of the fitted texts, below the threshold
FILES, SHARES, DRAWS = (10, 100, 200, 1000), (0.03, 0.05, 0.1), 200
RUNS = [(size, 0) for size in (100, 300, 1000)] + [(SIZE, seed) for seed in range(3)]

HEAD = """# Does the likelihood show texts that are unlike the corpus?

`python -m fastflow.bench.research.unlike --data DIR --cache DIR --out bench/results/unlike`

A flow (the defaults of `fastflow-train`: additive, 2x6, width 64, beside sentences of random words) is fitted on
sentences of one corpus with the encoder in the package. The threshold is the log-density that 1 % of the fitted texts
are below. Counted are 1,000 held-out sentences of each corpus. Figures for 4,000 fitted texts are means over seeds 0 to
2; for fewer they are of seed 0. The flow is that of the last step (`--stop budget`), which needs no dropout views.
"""
FOOT = """
## Decisions

- A model fitted to fewer than 1,000 texts records no threshold. After a fit on 100 texts false alarms are common, and
  the 1 % quantile of 300 texts rests on three of them.
- `fastflow embed` warns at 5 %, five times the share in the corpus itself. At 3 % false alarms remain among 200 texts;
  at 10 % more than half of the detections are lost.
- A file of fewer than 200 texts is not judged: among 100 texts 5 % are reached by chance.

The warning has few false alarms, and six of seven files of another corpus pass without it: **silence proves nothing**.
Captions (SNLI) are found by models of questions and of an encyclopedia; news, questions and encyclopedia are hardly
told apart. The sentences of random words make texts of other fields more likely, and the model better on them. Before
they stood beside the corpus, this study found 43 % of the files of 200 texts at 5 %, now 14 %. Likelihoods of flows
are known to miss texts of another kind (Nalisnick et al. 2019, on images).
"""


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


def low(found: dict[str, Array], corpus: str) -> NDArray[np.bool_]:
    """Which of the HELD texts of ``corpus`` are below the threshold that the fitted texts give."""
    return np.asarray(found[corpus] < np.quantile(found["fitted"], SHARE))


def fires(below: NDArray[np.bool_], texts: int, share: float) -> float:
    """How often a file of ``texts`` drawn from these has at least ``share`` below."""
    rng = np.random.default_rng(0)
    files = [below[rng.choice(len(below), texts, replace=False)].mean() for _ in range(DRAWS if texts < HELD else 1)]
    return float(np.mean(np.array(files) >= share))


def summarise(measured: dict[tuple[str, int, int], dict[str, Array]]) -> dict[str, Any]:
    """Rates of texts by (size, fitted, held-out), means over seeds; of warnings by (size, texts of a file, share)."""
    sizes = sorted({size for _, size, _ in measured})
    rates = [
        {"size": size, "fitted": name}
        | {c: float(np.mean([low(f, c).mean() for (n, s, _), f in measured.items() if (n, s) == (name, size)]))
           for c in CORPORA}
        for size in sizes for name in CORPORA
    ]  # fmt: skip
    warnings = []
    for size, texts, share in product(sizes, FILES, SHARES):
        own, other = [], []
        for (name, fitted, _), found in measured.items():
            for corpus in CORPORA if fitted == size else ():
                (own if corpus == name else other).append(fires(low(found, corpus), texts, share))
        row = {"size": size, "texts": texts, "share": share, "same": np.mean(own), "worst": max(own)}
        warnings.append(row | {"others": float(np.mean(other)), "same": float(np.mean(own))})
    return {"rates": rates, "warnings": warnings}


def page(result: dict[str, Any]) -> str:
    """The tables, as Markdown."""
    lines = [HEAD, "## Texts below the threshold, %", ""]
    lines += [f"| fitted on | texts | {' | '.join(CORPORA)} |", "| --- | ---: |" + " ---: |" * len(CORPORA)]
    for row in result["rates"]:
        cells = [f"**{100 * row[c]:.1f}**" if c == row["fitted"] else f"{100 * row[c]:.1f}" for c in CORPORA]
        lines.append(f"| {row['fitted']} | {row['size']:,} | {' | '.join(cells)} |")
    lines += ["", "Bold: held-out texts of the fitted corpus itself, of which 1 % are expected.", ""]
    lines += ["## Files that a warning is given for, %", ""]
    lines += ["| fitted texts | warn at | texts in the file | same corpus, mean | worst | other corpora, mean |"]
    lines += ["| ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in result["warnings"]:
        cells = [f"{100 * row[k]:.1f}" for k in ("same", "worst", "others")]
        lines.append(f"| {row['size']:,} | {row['share']:.0%} | {row['texts']:,} | {' | '.join(cells)} |")
    return "\n".join([*lines, FOOT])


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds corpora/.")
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Keeps the log-densities.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.json and OUT.md.")
def main(data: Path, cache: Path, out: Path) -> None:
    """Measure what the cache lacks, and write the page."""
    cache.mkdir(parents=True, exist_ok=True)
    measured = {}
    for (size, seed), name in product(RUNS, CORPORA):
        path = cache / f"{name}-{size}-{seed}.npz"
        if not path.exists():
            np.savez(path, **densities(name, size, seed, data))
            click.echo(f"{path.name}")
        with np.load(path) as held:
            measured[name, size, seed] = {key: held[key] for key in held.files}
    result = summarise(measured)
    out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()
