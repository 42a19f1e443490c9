"""How often a vocabulary's tokens occur in English sentences at large: what a small corpus cannot show.

The words of ``background.txt``, counted on a broad mix of texts (``bench/research/background.py``), are cut by the
encoder's own tokenizer. Tokens of other languages are absent there, and keep what the corpus shows of them.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from fastflow.model.tokens import Tokenizer


def read_words() -> tuple[dict[str, float], float]:
    """Word -> its occurrences in a million words, and the words of a sentence on average."""
    lines = files("fastflow.train.data").joinpath("background.txt").read_text(encoding="utf-8").splitlines()
    length, *levels = (line for line in lines if not line.startswith("# "))
    found: dict[str, float] = {}
    for level in levels:
        share, *words = level.split(" ")
        found |= dict.fromkeys(words, float(share))
    return found, float(length)


def background(tokenize: Tokenizer, vocabulary: int) -> NDArray[np.float64]:
    """(vocabulary,) share of each token id, of those of a million words in sentences; what is left sums to below 1."""
    words, length = read_words()
    alone = tokenize(["", *words, *(f"{word} {word}" for word in words)])
    empty = np.bincount(alone.ids[: alone.offsets[1]], minlength=vocabulary)  # the tokens around every sentence
    counts = empty * (1e6 / length)
    for index, share in enumerate(words.values(), 1):
        one, two = (alone.ids[alone.offsets[i] : alone.offsets[i + 1]] for i in (index, index + len(words)))
        inside = np.bincount(two, minlength=vocabulary) - np.bincount(one, minlength=vocabulary)  # behind a blank
        counts += share * inside
    rare = 1e6 - sum(words.values())  # words that the file leaves out: a token each at least
    return np.asarray(counts / (counts.sum() + rare), np.float64)
