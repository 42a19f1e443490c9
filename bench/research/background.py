"""Count the words of a broad mix of English texts, for token weights: train/data/background.txt.gz.

    python -m fastflow.bench.research.background --data DIR --out train/data/background.txt.gz

Five kinds of text count the same. A line of the file is a frequency in a million, rounded to half an octave, and its
words: all of at least LEAST, and DRAWN rarer words, drawn as often as they occur, which share the rest.
"""

from __future__ import annotations

import gzip
import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import click

from fastflow.train.data.corpus import clean, read_corpus

FILES = {  # kind -> its file, and how many paragraphs are drawn (None: every line)
    "snli": ("nli-snli-dev-test.txt", None),
    "news": ("leipzig-eng-news-2016-10k.txt", None),
    "wiki": ("wikipedia-core.txt.gz", 20_000),
    "qnli": ("nli-qnli-dev-test.txt", None),
    "novels": ("eltec-eng-novels.txt.gz", 20_000),
}
LEAST, DRAWN = 3.8, 1500  # 16,000 words, 60 kB
STEPS = 2  # frequencies in an octave
WORD = re.compile(r"[^\W_]+|[^\w\s]")


def _count_words(kind: str, data: Path) -> tuple[Counter[str], int]:
    file, paragraphs = FILES[kind]
    sentences = list(dict.fromkeys(clean(read_corpus([str(data / "corpora" / file)], sample=paragraphs), cut=True)))
    return Counter(word for text in sentences for word in WORD.findall(text)), len(sentences)


def _make_page(counts: dict[str, tuple[Counter[str], int]]) -> str:
    share: dict[str, float] = defaultdict(float)
    length = 0.0
    for found, sentences in counts.values():
        total = found.total()
        length += total / sentences / len(counts)
        for word, n in found.items():
            share[word] += 1e6 * n / total / len(counts)
    rare = {word: value for word, value in share.items() if value < LEAST}
    kept = {word: value for word, value in share.items() if value >= LEAST}
    drawn = Counter(random.Random(0).choices(list(rare), list(rare.values()), k=DRAWN))
    kept |= {word: n * sum(rare.values()) / DRAWN for word, n in drawn.items()}
    levels: dict[int, list[str]] = defaultdict(list)
    for word, value in kept.items():
        levels[round(STEPS * math.log2(value))].append(word)
    lines = [
        "# Words of English sentences: how often in a million words (punctuation marks count), then the words.",
        f"# Made by bench/research/background.py of {', '.join(counts)}; words of a sentence on average:",
        f"{length:.1f}",
    ]
    lines += [f"{2 ** (level / STEPS):.3g} {' '.join(sorted(levels[level]))}" for level in sorted(levels, reverse=True)]
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds corpora/.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write.")
def main(data: Path, out: Path) -> None:
    """Write the background distribution."""
    text = _make_page({kind: _count_words(kind, data) for kind in FILES})
    out.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
