"""The texts of the sets and corpora that studies are made on, by name."""

from __future__ import annotations

import random
import re
from pathlib import Path

from fastflow.evaluation.evaluate import read_pairs
from fastflow.train.data.corpus import read_corpus

CORPORA = {  # file, sample (None: all)
    "snli": ("nli-snli-dev-test.txt", None),
    "news": ("leipzig-eng-news-2016-10k.txt", None),
    "qnli": ("nli-qnli-dev-test.txt", None),
    "wiki": ("wikipedia-core.txt.gz", 5000),
    "wiki-sentences": ("wikipedia-core.txt.gz", 5000),  # the same paragraphs, cut into sentences, 10,000
    "novels": ("eltec-eng-novels.txt.gz", 5000),
    "snli500": ("nli-snli-dev-test.txt", 500),
}
LARGE = {"flickr100k": ("nli-flickr30k-premises.txt.gz", 100_000)}
CUT = {"novel-sentences": ("eltec-eng-novels.txt.gz", 5000)}  # into sentences, 10,000


def read_texts(name: str, data: Path) -> list[str]:
    """The distinct texts of the set or corpus ``name`` in the directory ``data``."""
    if name in CORPORA or name in LARGE or name in CUT:
        file, size = (CORPORA | LARGE | CUT)[name]
        texts = read_corpus([str(data / "corpora" / file)], sample=size)
        if name.endswith("-sentences"):
            cut = [part for text in texts for part in re.split(r"(?<=[.!?]) +(?=[A-Z])", text)]
            return random.Random(0).sample(list(dict.fromkeys(cut)), 10_000)
        return texts
    pairs = read_pairs(data / "sts" / f"{name}.tsv")
    return list(dict.fromkeys(text.strip() for text in [*pairs.first, *pairs.second] if text.strip()))
