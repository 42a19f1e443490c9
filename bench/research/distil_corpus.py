"""Draw the sentences for distilled tables: one of each line or paragraph of seven corpora, in a mixed order.

python -m fastflow.bench.research.distil_corpus --data DIR --out FILE
"""

from __future__ import annotations

import random
from pathlib import Path

import click

from fastflow.train.data.corpus import cut_sentences, read_texts

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
    """Return distinct sentences of all corpora, in an order that draws them alike."""
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


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds corpora/.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A sentence a line.")
def main(data: Path, out: Path) -> None:
    """Write the sentences."""
    out.write_text("".join(f"{text}\n" for text in mix_corpora(data)), encoding="utf-8")


if __name__ == "__main__":
    main()
