"""Named methods on an encoder that was tuned for similarity: Spearman by the spectrum that recolour gives back.

python -m fastflow.bench.research.tuned ENCODER --corpus news.txt --sts DIR --out tuned.json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.evaluation.evaluate import evaluate, read_pairs
from fastflow.stages.calibration import Stage, apply
from fastflow.train.choice.separability import make_views
from fastflow.train.data.background import sentences
from fastflow.train.data.corpus import draw
from fastflow.train.data.embeddings import Embedder, open_encoder
from fastflow.train.data.token_weights import weigh
from fastflow.train.methods.chain import fit
from fastflow.train.methods.loop import Fitting
from fastflow.train.methods.names import parse_method
from fastflow.train.methods.recolour import fit_recolour, joint_moments
from fastflow.train.options import Options, background_size

SETS = ("STS12", "STS13", "STSb-dev")
SPECTRA = (0.75, 0.5, 0.4, 0.25, 0.1, 0.0)
DEMOTED = (2, 0)


@click.command(help=__doc__)
@click.argument("encoder")
@click.option("--corpus", required=True, type=click.Path(path_type=Path))
@click.option("--sts", required=True, type=click.Path(path_type=Path))
@click.option("--pooling", default="model")
@click.option("--sif", is_flag=True, help="Frequent tokens count less.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
def main(encoder: str, corpus: Path, sts: Path, pooling: str, sif: bool, out: Path) -> None:
    """Write the scores of every setting to OUT."""
    frozen = open_encoder(encoder, pooling, None)
    texts = draw(corpus.read_text(encoding="utf-8").splitlines(), corpus.name, None, 0)
    frozen = weigh(frozen, texts) if sif else frozen
    embedder = Embedder(frozen, "cpu")
    pooled, background = embedder(texts), embedder(sentences(background_size(len(texts))))
    sets = [read_pairs(sts / f"{name}.tsv") for name in SETS]
    known: dict[str, NDArray[np.float32]] = {}
    for pairs in sets:
        new = sorted({*pairs.first, *pairs.second} - known.keys())
        known |= dict(zip(new, embedder(new), strict=True))

    def score(stages: Sequence[Stage]) -> dict[str, list[float]]:
        wide = [stage.astype(np.float64) for stage in stages]
        rows = evaluate(lambda t: np.asarray(apply(wide, np.stack([known[x] for x in t]).astype(np.float64))), sets)
        return {row["set"]: [row["all"], row["wmean"]] for row in rows["rows"]}

    fitting = Fitting(views=make_views(texts, frozen))
    shape = Options().shape(len(texts), len(background))
    found: list[dict[str, Any]] = [{"method": "none", "scores": score([])}]
    for method in ("whiten", "flow"):
        stages = fit(parse_method(method), pooled, shape, fitting, background=background).stages
        seen = np.concatenate([pooled, background]) if method == "whiten" else background
        joint = joint_moments(stages, seen)
        for demoted in DEMOTED:
            for spectrum in SPECTRA:
                last = fit_recolour(joint, frozen.dim, spectrum, 0.0, demoted)
                setting = {"method": f"{method},recolour", "spectrum": spectrum, "demoted": demoted}
                found.append({**setting, "scores": score([*stages, last])})
    out.write_text(json.dumps({"encoder": frozen.name, "pooling": pooling, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
