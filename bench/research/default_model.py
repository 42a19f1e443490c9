"""Make the model in the package, calibrated, and its card.

    python -m fastflow.bench.research.default_model --data DIR --out fastflow/default

DIR holds models/mini-mlm-uncased, corpora/ and sts/. EACH sentences of each kind are fitted with BACKGROUND random
sentences by the defaults of fastflow-train. The STS sets are scored once, for the card. Zip shortens rounded numbers.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fastflow.cache_folder import cache_directory
from fastflow.evaluation.evaluate import SEVEN
from fastflow.train.data.corpus import clean, read_corpus
from fastflow.train.export import summary
from fastflow.train.export.export import export
from fastflow.train.export.result import Fit
from fastflow.train.options import TrainOptions
from fastflow.train.pipeline.fit import RunConfig, fit_texts
from fastflow.transforms.calibration import describe

ENCODER = "mini-mlm-uncased"
EACH, BACKGROUND = 10_000, 16_658
KEPT = 7  # bits of the mantissas in the layers' matrices, as in bfloat16
CORPORA = {
    "nli-snli-dev-test.txt": "captions: SNLI dev and test sentences, CC BY-SA 4.0",
    "nli-qnli-dev-test.txt": "questions: QNLI dev and test questions and sentences (SQuAD, Wikipedia), CC BY-SA 4.0",
    "leipzig-eng-news-2016-10k.txt": "news: Leipzig Corpora Collection, English news 2016, CC BY",
    "wikipedia-core.txt.gz": "encyclopedia: sentences of English Wikipedia articles, CC BY-SA 3.0",
    "eltec-eng-novels.txt.gz": "novels: sentences of ELTeC-eng, English novels of 1840-1920, public domain",
}


def round_mantissas(numbers: NDArray[np.float16]) -> NDArray[np.float16]:
    """Round to KEPT bits of mantissa, halves to even."""
    fractions, exponents = np.frexp(numbers.astype(np.float64))  # 1 of KEPT + 1 bits is not stored
    return np.ldexp(np.rint(np.ldexp(fractions, KEPT + 1)), exponents - KEPT - 1).astype(np.float16)


def copy_rounded(source: Path, target: Path) -> None:
    """Copy an encoder, with rounded matrices in its layers."""
    shutil.copytree(source, target)
    path = target / "model.safetensors"
    tensors = load_file(path)
    rounded = [name for name, t in tensors.items() if name.startswith("encoder.layer.") and t.ndim == 2]
    save_file(tensors | {name: round_mantissas(tensors[name]) for name in rounded}, path, {"format": "pt"})


def mix_corpora(data: Path) -> Iterator[str]:
    """Yield EACH sentences of every kind."""
    for name in CORPORA:
        texts = read_corpus([str(data / "corpora" / name)], sample=EACH)
        found = list(dict.fromkeys(clean(texts, cut=True)))
        yield from random.Random(0).sample(found, min(EACH, len(found)))


def make_card(fit: Fit) -> str:
    """Return the model card."""
    encoder, training = fit.encoder, fit.training
    if encoder is None:
        raise ValueError("the model in the package has an encoder")
    head, *measured = summary.make_cells(fit.measures, summary.name_source(encoder))
    rows = "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---", *["---:"] * (len(head) - 1)], *measured])
    corpora = "\n".join(f"- {name}: {what}" for name, what in CORPORA.items())
    reasons = "\n".join(f"- {reason}" for reason in training["reasons"])
    return f"""# fastflow's default model

A small English sentence encoder for a first try and for tests: 256 dimensions, lower-cased, at most {encoder.max_length} tokens.

**Encoder.** `{ENCODER}`: a BERT of 4 layers, 256 wide, 4 heads, with BERT's uncased vocabulary (Apache-2.0), trained for this
project as a plain masked language model on English Wikipedia articles (CC BY-SA), English novels of 1840-1920 (public domain)
and OpenStax textbooks (CC BY 4.0), 66 M tokens. No labels, no similarity training. Apache-2.0. Weights in float16; the
matrices of its layers, which the calibrated vectors do not use, are rounded to {KEPT} of the 10 bits of mantissa.

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
def main(data: Path, out: Path, cache: str | None) -> None:
    """Make the default model."""
    sets = [data / "sts" / f"{name}.tsv" for name in SEVEN]
    with TemporaryDirectory() as folder:
        copy_rounded(data / "models" / ENCODER, encoder := Path(folder) / ENCODER)
        config = RunConfig(cache=cache_directory(cache))
        asked = TrainOptions(background=BACKGROUND)
        fit = fit_texts(str(encoder), asked, mix_corpora(data), list(CORPORA), config, sets)
        if fit is None or fit.encoder is None:
            raise click.ClickException("nothing was fitted")
        matrix = fit.stages[-1].params["matrix"]
        matrix[:] = matrix.astype(np.float32)  # stays float64: mean and shift are not rounded
        click.echo(export(out, fit.encoder, fit.choice.fitted, fit.training, make_card(fit), fit.texts, fit.pooled))
    click.echo(summary.make_table(fit.measures, summary.name_source(fit.encoder)))
    for warning in fit.doubts:
        click.echo(f"WARNING: {warning}", err=True)


if __name__ == "__main__":
    main()
