"""English at large, which a corpus cannot show: how often tokens occur there, and sentences of its words.

The words of ``background.txt.gz``, counted on a broad mix of texts (``bench/research/background.py``), are cut by the
encoder's own tokenizer. Tokens of other languages are absent there, and keep their share in the corpus.

Its sentences are words drawn at random, without grammar. An encoder maps them to where words of every field lie, so
that a calibration fitted to them together with its corpus covers directions that the corpus lacks. This is the idea of
Zipfian whitening (Yokoi et al., NeurIPS 2024), statistics over words as often as they occur, with the encoder's
context.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fastflow.model.fragmentation import WORD
from fastflow.model.tokens import Tokenizer

FEWEST_WORDS, MEAN_WORDS, MOST_WORDS = 5, 16, 60  # of a sentence; lengths beyond the fewest fall off exponentially
LOOKED_AT = 2000  # words of a corpus
ENGLISH = 0.3  # of its words are known here: 0.36 (headlines) to 0.85 of English, 0.07 to 0.23 of six other languages


def read_words() -> tuple[dict[str, float], float]:
    """Word -> its occurrences in a million words, and the words of a sentence on average."""
    data = gzip.decompress(files("fastflow.train.data").joinpath("background.txt.gz").read_bytes())
    lines = data.decode("utf-8").splitlines()
    length, *levels = (line for line in lines if not line.startswith("# "))
    found: dict[str, float] = {}
    for level in levels:
        share, *words = level.split(" ")
        found |= dict.fromkeys(words, float(share))
    return found, float(length)


def background(tokenize: Tokenizer, vocabulary: int) -> NDArray[np.float64]:
    """(vocabulary,) share of each token id in a million words in sentences; what is left sums to below 1."""
    words, length = read_words()
    alone = tokenize(["", *words, *(f"{word} {word}" for word in words)])
    empty = np.bincount(alone.ids[: alone.offsets[1]], minlength=vocabulary)  # the tokens around every sentence
    counts = empty * (1e6 / length)
    for index, share in enumerate(words.values(), 1):
        one, two = (alone.ids[alone.offsets[i] : alone.offsets[i + 1]] for i in (index, index + len(words)))
        inside = np.bincount(two, minlength=vocabulary) - np.bincount(one, minlength=vocabulary)  # after a blank
        counts += share * inside
    rare = 1e6 - sum(words.values())  # words that the file leaves out: a token each at least
    return np.asarray(counts / (counts.sum() + rare), np.float64)


def sentences(count: int) -> list[str]:
    """``count`` texts of random words, each drawn as often as it occurs in English; the first are always the same."""
    words, _ = read_words()
    names, limits, rng = list(words), list(accumulate(words.values())), random.Random(0)
    out = []
    for _ in range(count):
        more = int(rng.expovariate(1 / (MEAN_WORDS - FEWEST_WORDS)))
        out.append(" ".join(rng.choices(names, cum_weights=limits, k=min(FEWEST_WORDS + more, MOST_WORDS))))
    return out


def is_english(texts: Sequence[str]) -> bool:
    """Whether the first words of ``texts`` are of the language of the background."""
    known = {word.lower() for word in read_words()[0]}
    found: list[str] = []
    for text in texts:
        found += WORD.findall(text.lower())
        if len(found) >= LOOKED_AT:
            break
    return sum(word in known for word in found[:LOOKED_AT]) >= ENGLISH * len(found[:LOOKED_AT])
