"""Count the words of a broad mix of English texts: the background of token weights, train/data/background.txt.

    python -m fastflow.bench.research.background --data DIR --out train/data/background.txt

Five kinds of text count the same, whatever their size: captions (SNLI), news, encyclopedia, questions, novels. Words
are distinguished by case, so that cased vocabularies find theirs. The file holds the words of at least LEAST of a
million, in quarters of an octave: a line is a frequency in a million, then the words.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import click

from fastflow.bench.research.study_texts import read_texts
from fastflow.train.data.corpus import clean

KINDS = ("snli", "news", "wiki", "qnli", "novels")
TEXTS = 10_000
LEAST = 100
STEPS = 4  # of an octave
WORD = re.compile(r"[^\W_]+|[^\w\s]")


def words(texts: list[str]) -> tuple[dict[str, float], float]:
    """Word -> its share in a million of the words of ``texts``, and the words of a text."""
    found = Counter(word for text in texts for word in WORD.findall(text))
    total = found.total()
    return {word: 1e6 * n / total for word, n in found.items()}, total / len(texts)


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds corpora/.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write.")
def main(data: Path, out: Path) -> None:
    """Write the background distribution."""
    mean: dict[str, float] = defaultdict(float)
    length = 0.0
    for kind in KINDS:
        sentences = list(dict.fromkeys(clean(read_texts(kind, data), cut=True)))
        shares, words_each = words(random.Random(0).sample(sentences, min(TEXTS, len(sentences))))
        length += words_each / len(KINDS)
        for word, share in shares.items():
            mean[word] += share / len(KINDS)
    levels: dict[int, list[str]] = defaultdict(list)
    for word, share in mean.items():
        if share >= LEAST:
            levels[round(STEPS * math.log2(share))].append(word)
    lines = [
        "# Words of English sentences: how often in a million words (punctuation marks count), then the words.",
        f"# Made by bench/research/background.py of {', '.join(KINDS)}; words of a sentence on average:",
        f"{length:.1f}",
    ]
    lines += [f"{2 ** (level / STEPS):.0f} {' '.join(sorted(levels[level]))}" for level in sorted(levels, reverse=True)]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
