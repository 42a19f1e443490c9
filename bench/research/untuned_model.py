"""Make the model ``untuned`` in the package, a BERT without labels, calibrated, and its card.

    python -m fastflow.bench.research.untuned_model --data DIR --out fastflow/untuned

DIR holds models/mini-mlm-uncased, corpora/ and sts/. EACH sentences of each kind are fitted with BACKGROUND random
sentences by the defaults of fastflow-train. The STS sets are scored once, for the card. The layers, which are not
pooled, are then left out, and the word rows become int8: ``--made MODEL`` does only that.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.packing import sign, write_int8_rows
from fastflow.cache_folder import cache_directory
from fastflow.evaluation.evaluate import SEVEN
from fastflow.exports.record import POSITIONS
from fastflow.kernels.encoder import mean_position
from fastflow.model.encoder.weights import encoder_hash
from fastflow.model.hashing import MANIFEST
from fastflow.model.manifest import ENCODER
from fastflow.train.data.corpus import clean, read_corpus
from fastflow.train.export import summary
from fastflow.train.export.export import export
from fastflow.train.export.result import Fit
from fastflow.train.options import TrainOptions
from fastflow.train.pipeline.fit import RunConfig, fit_texts
from fastflow.transforms.calibration import describe

NAME = "mini-mlm-uncased"
EACH, BACKGROUND = 10_000, 16_658
CORPORA = {
    "nli-snli-dev-test.txt": "captions: SNLI dev and test sentences, CC BY-SA 4.0",
    "nli-qnli-dev-test.txt": "questions: QNLI dev and test questions and sentences (SQuAD, Wikipedia), CC BY-SA 4.0",
    "leipzig-eng-news-2016-10k.txt": "news: Leipzig Corpora Collection, English news 2016, CC BY",
    "wikipedia-core.txt.gz": "encyclopedia: sentences of English Wikipedia articles, CC BY-SA 3.0",
    "eltec-eng-novels.txt.gz": "novels: sentences of ELTeC-eng, English novels of 1840-1920, public domain",
}


def shrink(source: Path, target: Path) -> None:
    """Copy a model that pools words without positions: no other layers, int8 word rows, the mean of the positions."""

    def store(name: str, tensor: NDArray[Any]) -> NDArray[Any] | None:
        if POSITIONS in name:
            return np.tile(mean_position(tensor.astype(np.float32), 0), (len(tensor), 1))
        return None if ".layer." in name else tensor

    shutil.copytree(source, target)
    encoder, manifest = target / ENCODER, json.loads((source / MANIFEST).read_text(encoding="utf-8"))
    write_int8_rows(encoder / "model.safetensors", store)
    config = json.loads((encoder / "config.json").read_text(encoding="utf-8")) | {"num_hidden_layers": 0}
    (encoder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    sign(target, manifest, {"encoder": {"sha256": encoder_hash(encoder)}})


def mix_corpora(data: Path, each: int = EACH) -> Iterator[str]:
    """Yield ``each`` sentences of every kind."""
    for name in CORPORA:
        texts = read_corpus([str(data / "corpora" / name)], sample=each)
        found = list(dict.fromkeys(clean(texts, cut=True)))
        yield from random.Random(0).sample(found, min(each, len(found)))


def make_card(fit: Fit) -> str:
    """Return the model card."""
    encoder, training = fit.encoder, fit.training
    if encoder is None:
        raise ValueError("the model in the package has an encoder")
    head, *measured = summary.make_cells(fit.measures, summary.name_source(encoder))
    rows = "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---", *["---:"] * (len(head) - 1)], *measured])
    corpora = "\n".join(f"- {name}: {what}" for name, what in CORPORA.items())
    reasons = "\n".join(f"- {reason}" for reason in training["reasons"])
    return f"""# fastflow's untuned model

What a calibration makes of a BERT without labels: English, 256 dimensions, lower-cased, at most {encoder.max_length} tokens. It was
`default` before 2026-11.

**Encoder.** `{NAME}`: a BERT of 4 layers, 256 wide, 4 heads, with BERT's uncased vocabulary (Apache-2.0), trained for this
project as a plain masked language model on English Wikipedia articles (CC BY-SA), English novels of 1840-1920 (public domain)
and OpenStax textbooks (CC BY 4.0), 66 M tokens. No labels, no similarity training. Apache-2.0. Its layers, which the
vectors do not use, are left out; word rows in int8.

**Pooling and calibration.** {describe(fit.stages)} on the {encoder.pooling.describe()}, tokens weighted by how rare they are
(SIF, Arora et al., ICLR 2017), fitted without labels by `fastflow-train --background {training["background"]}` (seed
{training["schedule"]["seed"]}) on {training["texts"]} distinct sentences, beside {training["background"]} of random words:

{corpora}

Why this calibration:

{reasons}

**Licence.** Apache-2.0 for weights and calibration; the corpora's texts are not in it.

**Measured.** Spearman ×100 of cosine on the paper's seven test sets, `all` and `wmean`; likelihood and isotropy on the
corpus. *raw pooling* is the mean of first and last layer with every token alike, *weights only* the pooling of the model, uncalibrated. Larger
pretrained encoders score higher (figures published of BERT-base: bench/results/quality.md); this one is small enough to ship.

{rows}
"""


@click.command()
@click.option(
    "--data", required=True, type=click.Path(exists=True, path_type=Path), help="Where models, corpora, sts are."
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The model directory to make.")
@click.option("--cache", help="Cache directory for pooled embeddings.")
@click.option("--made", type=click.Path(exists=True, path_type=Path), help="A model that was made before.")
def main(data: Path, out: Path, cache: str | None, made: Path | None) -> None:
    """Make the model ``untuned``."""
    if made is not None:
        shrink(made, out)
        return
    sets = [data / "sts" / f"{name}.tsv" for name in SEVEN]
    with TemporaryDirectory() as folder:
        encoder = data / "models" / NAME
        config = RunConfig(cache=cache_directory(cache))
        asked = TrainOptions(background=BACKGROUND)
        fit = fit_texts(str(encoder), asked, mix_corpora(data), list(CORPORA), config, sets)
        if fit is None or fit.encoder is None:
            raise click.ClickException("nothing was fitted")
        matrix = fit.stages[-1].params["matrix"]
        matrix[:] = matrix.astype(np.float32)  # stays float64: mean and shift are not rounded
        whole = Path(folder) / "model"
        export(whole, fit.encoder, fit.choice.fitted, fit.training, make_card(fit), fit.texts, fit.pooled)
        shrink(whole, out)
    click.echo(summary.make_table(fit.measures, summary.name_source(fit.encoder)))
    for warning in fit.doubts:
        click.echo(f"WARNING: {warning}", err=True)


if __name__ == "__main__":
    main()
