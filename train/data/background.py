"""A language at large, which a corpus cannot show: how often tokens occur there, and its sentences.

English is built in: the words of ``background.txt.gz``, counted on a broad mix of texts, and sentences of such a mix,
``sentences.txt.gz`` (``bench/research/background.py`` and ``background_sentences.py``). ``--background-words`` gives
the words of another language. Words are cut by the encoder's own tokenizer.

Other sentences are words drawn at random, without grammar. An encoder maps them to where words of every field lie, so
that a calibration fitted to them together with its corpus covers directions that the corpus lacks. This is the idea of
Zipfian whitening (Yokoi et al., NeurIPS 2024), statistics over words as often as they occur, with the encoder's
context.
"""

from __future__ import annotations

import gzip
import math
import random
import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.model.tokenizer.fragmentation import UNSPACED, WORD

FEWEST_WORDS, MEAN_WORDS, MOST_WORDS = 5, 16, 60  # of a sentence; lengths beyond the fewest fall off exponentially
LOOKED_AT = 2000  # words of a corpus
COMMON = 100  # occurrences in a million: of the thousand words by which English is recognised
ENGLISH = 0.3  # of its words are common here: 0.36 (headlines) to 0.85 of English, 0.07 to 0.23 of six other languages
WINDOW = 4096  # words that are cut by the tokenizer at once
LENGTH = 21.1  # words of a sentence, if a list of words does not say
# the common words of a list are as frequent in texts as in the list: 0.53 (headlines) to 1.17 times in 14 sets of texts
# of its language, up to 0.41 in others, but for English texts and lists that have English words
LIKE = 0.45
USUAL = 0.65  # share of the common words of a language; a list of few words has no other
FEWEST = 100  # words of a corpus that are compared with a list


class Words(NamedTuple):
    """A language: ``shares``, word -> occurrences in a million, ``length``, words of a sentence, and sentences."""

    shares: dict[str, float]
    length: float
    sentences: tuple[str, ...] = ()


def english() -> Words:
    """The words and sentences in the package."""
    length, *levels = _packed("background.txt.gz")
    found: dict[str, float] = {}
    for level in levels:
        share, *words = level.split(" ")
        found |= dict.fromkeys(words, float(share))
    return Words(found, float(length), tuple(_packed("sentences.txt.gz")))


def _packed(name: str) -> list[str]:
    """The lines of a file in the package, without its comments."""
    data = gzip.decompress(files("fastflow.train.data").joinpath(name).read_bytes())
    return [line for line in data.decode("utf-8").split("\n")[:-1] if not line.startswith("# ")]


def read_words(path: Path) -> Words:
    """The words of a list, a line each: the word, a space or tab, how often it occurs. Errors name file and line."""
    found: dict[str, float] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FastflowError(f"{path}: cannot be read as a list of words in UTF-8 ({error})") from error
    for number, line in enumerate(lines, 1):
        word, count = ["", "", *line.rsplit(None, 1)][-2:]
        try:
            times = float(count)
        except ValueError:
            times = math.nan
        if not (word and 0 < times < math.inf):
            raise FastflowError(
                f"{path}, line {number}: must be a word, a space or tab, and how often it occurs, as in: house 123"
            )
        found[word] = found.get(word, 0.0) + times
    if not found:
        raise FastflowError(f"{path}: holds no word")
    total = sum(found.values())
    return Words({word: 1e6 * times / total for word, times in found.items()}, LENGTH)


def words_of(texts: Sequence[str], given: str | None = None) -> Words | None:
    """The words of the language of ``texts``: those of the list ``given``, English, or None if they are of another."""
    if given is not None:
        return read_words(Path(given))
    words = english()
    return words if _speaks(texts, words) else None


def unlike(words: Words, texts: Sequence[str]) -> str | None:
    """One sentence if the common words of the list ``words`` are rare in ``texts``, as in another language, or None.

    Words are compared without their case; those of scripts without spaces are not judged.
    """
    listed = {word: share for word, share in words.shares.items() if WORD.fullmatch(word)}
    common = {word: share for word, share in listed.items() if share >= COMMON}
    found = [word for word in _first_words(texts) if not re.search(UNSPACED, word)]
    if len(found) < FEWEST:
        return None
    known = {word.lower() for word in common}
    usual = min(USUAL, sum(common.values()) / max(sum(listed.values()), 1e-9))
    share = sum(word in known for word in found) / len(found)
    if share >= LIKE * usual:
        return None
    return (
        f"the common words of --background-words are {share:.0%} of the words of the corpus, where {usual:.0%} is "
        "usual: the list is of another language, or too short; give one of the language of the corpus, or none"
    )


def caseless(words: Words, texts: Sequence[str], tokenize: Tokenizer) -> str | None:
    """One sentence if a list in lower case goes with an encoder and ``texts`` that have capitals, None otherwise."""
    if any(word != word.lower() for word in words.shares):
        return None
    first = (word[0] for text in islice(texts, LOOKED_AT) for word in WORD.finditer(text))
    written = next((word for word in first if word[0].isupper() and word.lower() in words.shares), None)
    if written is None or list(tokenize([written]).ids) == list(tokenize([written.lower()]).ids):
        return None
    return (
        f"--background-words has no capitals, and the encoder distinguishes {written} from {written.lower()}: common "
        "words that begin a sentence count as rare; give words counted in text as it is written"
    )


def background(tokenize: Tokenizer, vocabulary: int, words: Words) -> NDArray[np.float64]:
    """(vocabulary,) share of each token id in a million words in sentences; what is left sums to below 1."""

    def counted(texts: list[str], share: NDArray[np.float64]) -> NDArray[np.float64]:
        tokens = tokenize(texts)
        each = np.repeat(share, np.diff(tokens.offsets))
        return np.asarray(np.bincount(tokens.ids, each, vocabulary), np.float64)

    empty = counted([""], np.ones(1))  # the tokens around every sentence
    names, share, inside = list(words.shares), np.array(list(words.shares.values())), np.zeros(vocabulary)
    for start in range(0, len(names), WINDOW):
        some, often = names[start : start + WINDOW], share[start : start + WINDOW]
        inside += counted([f"{word} {word}" for word in some], often) - counted(some, often)  # a word after a blank
    counts = empty * (1e6 / words.length) + np.maximum(inside, 0)
    rare = max(0.0, 1e6 - float(share.sum()))  # words that are left out: a token each at least
    return np.asarray(counts / (counts.sum() + rare), np.float64)


def random_sentences(count: int, words: Words) -> list[str]:
    """``count`` texts of random words, each drawn as often as it occurs; the first are always the same."""
    names, limits, rng = list(words.shares), list(accumulate(words.shares.values())), random.Random(0)
    out = []
    for _ in range(count):
        more = int(rng.expovariate(1 / (MEAN_WORDS - FEWEST_WORDS)))
        out.append(" ".join(rng.choices(names, cum_weights=limits, k=min(FEWEST_WORDS + more, MOST_WORDS))))
    return out


def _speaks(texts: Sequence[str], words: Words) -> bool:
    """Whether the first words of ``texts`` are often enough the common ones of ``words``."""
    known = {word.lower() for word, share in words.shares.items() if share >= COMMON}
    found = _first_words(texts)
    return sum(word in known for word in found) >= ENGLISH * len(found)


def _first_words(texts: Sequence[str]) -> list[str]:
    """The first LOOKED_AT words of ``texts``, in lower case."""
    found: list[str] = []
    for text in texts:
        found += WORD.findall(text.lower())
        if len(found) >= LOOKED_AT:
            break
    return found[:LOOKED_AT]
