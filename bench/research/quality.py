"""The quality table: every calibration on the paper's seven STS sets, in both aggregations.

    python -m fastflow.bench.research.quality --encoder DIR --sts DIR --corpus FILE --out bench/results/quality

Settings are fastflow-train's defaults; nullspace removes one direction. *target* fits on each set's own sentences, as
the paper does; *corpus* fits once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.study import make_table, read, write
from fastflow.cache_folder import cache_directory
from fastflow.evaluation.evaluate import SEVEN, Pairs, evaluate, read_pairs
from fastflow.train.data.corpus import read_corpus
from fastflow.train.data.embeddings import embed_corpus
from fastflow.train.data.encoder import FrozenEncoder, open_encoder
from fastflow.train.methods.chain import fit_chain
from fastflow.train.methods.loop import Schedule, Training
from fastflow.train.options import parse_method
from fastflow.transforms.calibration import apply

SEEDS = (0, 1, 2, 3, 4)
SHAPE = {"levels": 2, "depth": 3, "width": 32, "coupling": "additive", "permutation": "reversal"}
Matrix = NDArray[np.float64]
Calibrate = Callable[[Matrix], Matrix]
Embed = Callable[[Sequence[str]], Matrix]


def keep_embedded(encoder: FrozenEncoder, texts: Sequence[str], cache: Path) -> Embed:
    """Return a function that looks up pooled embeddings (n, D); each text is embedded once."""
    distinct = list(dict.fromkeys(texts))
    places, pooled = {text: i for i, text in enumerate(distinct)}, embed_corpus(distinct, encoder, cache)
    return lambda wanted: pooled[[places[text] for text in wanted]].astype(np.float64)


def calibrate(method: str, pooled: Matrix, seed: int, init: str = "data") -> Calibrate:
    """Fit ``method`` on (n, D); return it as a function, in float64."""
    fitted = fit_chain(parse_method(method), pooled.astype(np.float32), SHAPE, Training(Schedule(seed=seed, init=init)))
    stages = [stage.astype(np.float64) for stage in fitted.stages]
    return lambda x: np.asarray(apply(stages, x))


def _list_sentences(pairs: Pairs) -> list[str]:
    return list(dict.fromkeys(text.strip() for text in [*pairs.first, *pairs.second] if text.strip()))


def score(embed: Embed, sets: Sequence[Pairs], choose: Callable[[Pairs], Calibrate]) -> dict[str, Any]:
    """Evaluate the seven sets, each with the calibration of ``choose``."""
    rows = []
    for pairs in sets:
        calibrate = choose(pairs)
        rows += evaluate(lambda texts, c=calibrate: c(embed(texts)), [pairs])["rows"]  # type: ignore[misc]
    means = {kind: float(np.mean([row[kind] for row in rows])) for kind in ("all", "wmean")}
    return {row["set"]: {"all": row["all"], "wmean": row["wmean"]} for row in rows} | {"mean": means}


def _fit_row(
    name: str, method: str, embed: Embed, sets: Sequence[Pairs], corpus: Sequence[str] | None, init: str = "data"
) -> dict[str, Any]:
    """Return a row, with five seeds for a flow; ``corpus`` None fits on the target."""
    runs = []
    for seed in SEEDS if "flow" in method else SEEDS[:1]:
        once = None if corpus is None else calibrate(method, embed(corpus), seed, init)

        def choose(pairs: Pairs, once: Calibrate | None = once, seed: int = seed) -> Calibrate:
            return once or calibrate(method, embed(_list_sentences(pairs)), seed, init)

        runs.append(score(embed, sets, choose))
    click.echo(f"{name}: {np.mean([run['mean']['wmean'] for run in runs]):.2f}", err=True)
    return {"name": name, "seeds": len(runs), "runs": runs}


def summarise(row: dict[str, Any], column: str, kind: str) -> str:
    """Return ``mean``, or ``mean±sample deviation`` over seeds that differ."""
    values = [run[column][kind] for run in row["runs"]]
    return f"{np.mean(values):.1f}" + (f"±{np.std(values, ddof=1):.1f}" if len(set(values)) > 1 else "")


def make_weighted_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Make rows from default.json: only token weights, and with the default flow."""
    rows = []
    for corpus, label in (("own texts", "target"), ("snli", "corpus")):
        for candidate, name in (
            ("weights", "token weights alone"),
            ("all texts", "the default of fastflow-train, but fitted to all texts"),
        ):
            mine = [r for r in found["seven"] if (r["corpus"], r["candidate"]) == (corpus, candidate)]
            runs = []
            for seed in sorted({r["seed"] for r in mine}):
                scores = {r["set"]: r["scores"] for r in mine if r["seed"] == seed}
                means = np.mean([scores[one] for one in SEVEN], axis=0)
                runs.append({one: dict(zip(("all", "wmean"), pair, strict=True))
                             for one, pair in [*scores.items(), ("mean", means)]})  # fmt: skip
            rows.append({"name": f"{name}, {label}", "seeds": len(runs), "runs": runs})
    return rows


def make_page(result: dict[str, Any]) -> str:
    """Return the page."""
    columns, headings = [*SEVEN, "mean"], [*SEVEN, "seven-set mean"]
    rows = [
        [row["name"], *(f"{summarise(row, column, 'all')} / {summarise(row, column, 'wmean')}" for column in columns)]
        for row in result["rows"]
    ]
    published = [
        [f"{name} ({mark})", *(f"{value:.1f}" for value in (*values, sum(values) / len(values)))]
        for name, mark, values in ROWS
    ]
    tables = make_table(["", *headings], rows), make_table(["", *headings], published)
    return f"{HEAD.format(**result)}{tables[0]}\n{PUBLISHED}{tables[1]}\n"


HEAD = """# Quality

Spearman ×100 of cosine against gold, **all / wmean** (`fastflow eval --help`). Flow rows are the mean and
sample deviation over seeds 0-4, of the default 0-2. Made by:

    {command}

Encoder: {encoder}, {dim} dimensions. Corpus fits use {corpus} ({texts} texts);
target fits use the set's own sentences, without labels: each distinct sentence once, of STSb and SICK-R
those of the test split alone. Published fits differ in this: with repeated sentences kept, single sets move
by up to 4.9 points (whitening on STS12, `all`). No setting was searched for here, but two were not
chosen blind: that the data-dependent start and 2 levels do well on these very sets with this encoder was
known from earlier figures. The glorot rows are the official code's start. Every token counts 1, as in
the paper, and every flow runs to its last step, except in the last rows: their meaning, and the choices
that were not blind, are in [the verdicts](verdicts.md#the-default).

"""


PUBLISHED = """
## Published figures on other encoders

Not measured here, and not comparable in level: far larger encoders, `wmean` only. Only the gain of a
calibration over its encoder can be compared. Sources: \
(a) Li et al., EMNLP 2020, tables 2 and 3; (b) Su et al., 2021 (arXiv 2103.15316), table 1.

"""
# (name, source, seven sets); fitted on target sentences, or on NLI sentences
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


@click.command()
@click.option("--encoder", required=True, help="Encoder directory, or default.")
@click.option("--sts", required=True, type=click.Path(exists=True, path_type=Path), help="Directory of the seven sets.")
@click.option("--corpus", required=True, help="The general corpus.")
@click.option("--cache", help="Cache directory for pooled embeddings.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(encoder: str, sts: Path, corpus: str, cache: str | None, out: Path) -> None:
    """Make the quality table."""
    sets = [read_pairs(sts / f"{name}.tsv") for name in SEVEN]
    texts = read_corpus([corpus])
    everything = [text for pairs in sets for text in [*pairs.first, *pairs.second, *_list_sentences(pairs)]] + texts
    frozen = {pooling: open_encoder(encoder, pooling, None) for pooling in ("last", "first-last")}
    embedded = {name: keep_embedded(e, everything, cache_directory(cache)) for name, e in frozen.items()}
    base = embedded["first-last"]
    rows = [
        {"name": f"raw, {name}", "seeds": 1, "runs": [score(embedded[pooling], sets, lambda _: lambda x: x)]}
        for name, pooling in (("mean of the last layer", "last"), ("first-last", "first-last"))
    ]
    for where, fit_on in (("target", None), ("corpus", texts)):
        for method in ("standardize", "nullspace", "whiten", "flow"):
            rows.append(_fit_row(f"{method}, {where}", method, base, sets, fit_on))
        rows.append(_fit_row(f"flow, {where}, glorot start", "flow", base, sets, fit_on, "glorot"))
    if (default := out.with_name("default.json")).is_file():
        rows += make_weighted_rows(read(default))
    name, of_corpus = Path(encoder).name, Path(corpus).name
    command = f"python -m fastflow.bench.research.quality --encoder .../{name} --sts .../sts --corpus .../{of_corpus}"
    about = {"encoder": name, "dim": frozen["first-last"].dim, "corpus": of_corpus, "texts": len(texts)}
    write(out, {"command": f"{command} --out {out}", **about, "rows": rows}, make_page)


if __name__ == "__main__":
    main()
