"""Draw English sentences, half of the background of a fit: train/data/sentences.txt.gz.

    python -m fastflow.bench.research.background_sentences --data DIR --out train/data/sentences.txt.gz

Five kinds of text have EACH sentences of SHORTEST to LONGEST characters, without texts of scored sets.
"""

from __future__ import annotations

import gzip
import random
from itertools import chain
from pathlib import Path

import click

from fastflow.bench.research.default_model import CORPORA
from fastflow.train.data.corpus import clean, read_corpus

EACH, SHORTEST, LONGEST = 1_000, 20, 300
READ = 6_000  # paragraphs of a kind
SCORED = ("sts/*.tsv", "tasks/classes/*.tsv", "tasks/pairs/*.tsv")


def _read_scored(data: Path) -> set[str]:
    files = (path for pattern in SCORED for path in sorted(data.glob(pattern)))
    return {
        cell.strip().lower()
        for path in files
        for cell in path.read_text(encoding="utf-8").replace("\n", "\t").split("\t")
    }


def _draw(name: str, data: Path, known: set[str]) -> list[str]:
    texts = dict.fromkeys(clean(read_corpus([str(data / "corpora" / name)], sample=READ), cut=True))
    fit = [text for text in texts if SHORTEST <= len(text) <= LONGEST and text.lower() not in known]
    return random.Random(0).sample(fit, EACH)


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds corpora, sts, tasks.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write.")
def main(data: Path, out: Path) -> None:
    """Write the sentences, after lines that name their sources and licences."""
    known = _read_scored(data)
    kinds = [_draw(name, data, known) for name in CORPORA]
    head = ["# English sentences, made by bench/research/background_sentences.py; the kinds take turns:"]
    head += [f"# {what}" for what in CORPORA.values()]
    text = "\n".join([*head, *chain.from_iterable(zip(*kinds, strict=True))]) + "\n"
    out.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
