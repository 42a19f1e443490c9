"""Draw English sentences, half of the background of a fit, and pairs of neighbouring ones, which choose a pooling.

    python -m fastflow.bench.research.background_sentences --data DIR --out train/data

sentences.txt.gz has EACH sentences of five kinds of text, of SHORTEST to LONGEST characters, without texts of scored
sets. neighbours.txt.gz has PAIRS pairs of sentences that follow each other in novels, a line each.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import click

from fastflow.bench.research.default_model import CORPORA
from fastflow.train.data.corpus import clean, cut_sentences, read_corpus

EACH, SHORTEST, LONGEST = 1_000, 20, 300
READ = 6_000  # paragraphs of a kind
NOVELS, PAIRS = "eltec-eng-novels.txt.gz", 600
LEAST, MOST = 40, 200  # characters of a sentence of a pair
TITLE = re.compile(r"\b(Mr|Mrs|Dr|St|Messrs|Rev|Col|Capt)\.$")  # cut_sentences cuts after these
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


def _draw_pairs(data: Path) -> list[str]:
    pairs = []
    for paragraph in read_corpus([str(data / "corpora" / NOVELS)], sample=READ, seed=1):
        sentences = cut_sentences(paragraph)
        fit = [LEAST <= len(sentence) <= MOST and not TITLE.search(sentence) for sentence in sentences]
        starts = [i for i in range(len(sentences) - 1) if fit[i] and fit[i + 1]]
        if starts:
            start = starts[len(starts) // 2]
            pairs.append(sentences[start : start + 2])
    return [*chain.from_iterable(random.Random(0).sample(pairs, PAIRS))]


def _write(path: Path, head: Sequence[str], lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in chain((f"# {line}" for line in head), lines))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds corpora, sts, tasks.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write to.")
def main(data: Path, out: Path) -> None:
    """Write both files; each begins with lines that name sources and licences."""
    known = _read_scored(data)
    kinds = [_draw(name, data, known) for name in CORPORA]
    made = "made by bench/research/background_sentences.py"
    head = [f"English sentences, {made}; the kinds take turns:", *CORPORA.values()]
    _write(out / "sentences.txt.gz", head, chain.from_iterable(zip(*kinds, strict=True)))
    head = [f"Pairs of neighbouring sentences, {made}:", CORPORA[NOVELS]]
    _write(out / "neighbours.txt.gz", head, _draw_pairs(data))


if __name__ == "__main__":
    main()
