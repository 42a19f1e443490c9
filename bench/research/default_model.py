"""Make the model in the package: the project's small masked language model, calibrated, and its card.

    python -m fastflow.bench.research.default_model --data DIR --out fastflow/default

DIR holds models/mini-mlm-uncased, corpora/ and sts/. The corpora are the one-sentence-a-line ones whose licence is
known; every setting is fastflow-train's default. The STS sets are only scored, once, for the card.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastflow.evaluation.evaluate import SEVEN, read_pairs
from fastflow.stages.calibration import describe
from fastflow.train.choice.selection import choose
from fastflow.train.choice.separability import make_views
from fastflow.train.data.corpus import corpus_hash, read_corpus
from fastflow.train.data.embeddings import FrozenEncoder, cache_directory, embed_corpus, open_encoder
from fastflow.train.data.token_weights import weigh
from fastflow.train.methods.chain import Fitted, fit
from fastflow.train.methods.loop import Schedule
from fastflow.train.methods.names import parse_method
from fastflow.train.ship import summary as report
from fastflow.train.ship.export import export

ENCODER = "mini-mlm-uncased"
CORPORA = {
    "nli-snli-dev-test.txt": "SNLI dev and test sentences, CC BY-SA 4.0",
    "nli-qnli-dev-test.txt": "QNLI dev and test questions and sentences (SQuAD, Wikipedia), CC BY-SA 4.0",
    "leipzig-eng-news-2016-10k.txt": "Leipzig Corpora Collection, English news 2016, CC BY",
}
SHAPE = {"levels": 2, "depth": 3, "width": 32, "coupling": "additive", "permutation": "reversal"}
METHOD = "auto"


def card(encoder: FrozenEncoder, fitted: Fitted, training: dict[str, Any]) -> str:
    """The model card: encoder, corpora, licences, method and measured table."""
    rows = "\n".join(f"| {' | '.join(line)} |" for line in report.cells(training)[1:])
    corpora = "\n".join(f"- {name}: {what}" for name, what in CORPORA.items())
    reasons = "\n".join(f"- {reason}" for reason in training["reasons"])
    return f"""# fastflow's default model

A small English sentence encoder for a first try and for tests: 256 dimensions, lower-cased, at most {encoder.max_length} tokens.

**Encoder.** `{ENCODER}`: a BERT of 4 layers, 256 wide, 4 heads, with BERT's uncased vocabulary (Apache-2.0), trained for this
project as a plain masked language model on English Wikipedia articles (CC BY-SA), English novels of 1840-1920 (public domain)
and OpenStax textbooks (CC BY 4.0), 66 M tokens. No labels, no similarity training. Weights in float16, Apache-2.0.

**Pooling and calibration.** {describe(fitted.stages)} on the {encoder.pooling.describe()}, tokens weighted by how rare they are
(SIF, Arora et al., ICLR 2017), fitted without labels by `fastflow-train` with its default settings (seed
{training["schedule"]["seed"]}) on {training["texts"]} distinct sentences:

{corpora}

Why this calibration:

{reasons}

**Licence.** Apache-2.0 for weights and calibration; the corpora's texts are not in it.

**Measured.** Spearman ×100 of cosine on the paper's seven test sets, `all` and `wmean`; likelihood and isotropy on the
corpus. *raw* is the encoder's mean with every token alike, *before* with token weights and uncalibrated. Larger
pretrained encoders score higher (figures published of BERT-base: bench/results/quality.md); this one is small enough to ship.

| | raw | before | after |
| --- | ---: | ---: | ---: |
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
    encoder, schedule = open_encoder(str(data / "models" / ENCODER), "first-last", None), Schedule()
    texts = read_corpus([str(data / "corpora" / name) for name in CORPORA])
    encoder = weigh(encoder, texts)
    pooled, views = embed_corpus(texts, encoder, cache_directory(cache)), make_views(texts, encoder, seed=schedule.seed)
    choice = choose(METHOD, True, lambda name: fit(parse_method(name), pooled, SHAPE, schedule, views=views), views)
    fitted = choice.fitted
    sets = [read_pairs(data / "sts" / f"{name}.tsv") for name in SEVEN]
    measures = report.before_and_after(fitted, pooled, choice.views) | {
        "spearman": report.spearman(fitted, encoder, sets, "cpu")
    }
    training = {
        "corpus": list(CORPORA), "texts": len(texts), "corpus_sha256": corpus_hash(texts), "method": METHOD,
        "schedule": vars(schedule), "encoder_dropout": False, "stop": "rule",
        "choice": choice.record, "reasons": choice.reasons, **measures,
    }  # fmt: skip
    click.echo(export(out, encoder, fitted, training, card(encoder, fitted, training), texts, pooled))
    click.echo(report.table(measures))
    for warning in report.warnings(measures, fitted.stages):
        click.echo(f"WARNING: {warning}", err=True)


if __name__ == "__main__":
    main()
