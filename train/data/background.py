"""A language at large: shares of words, and sentences; the package has English.

Sentences of random words cover directions that a corpus lacks (Zipfian whitening, Yokoi et al., NeurIPS 2024).
"""

from __future__ import annotations

import gzip
import math
import random
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, missing_extra
from fastflow.model.tokenizer import Tokenizer
from fastflow.model.tokenizer.fragmentation import UNSPACED, WORD, take_words
from fastflow.train.reporter import name_options, refuse

FEWEST_WORDS, MEAN_WORDS, MOST_WORDS = 5, 16, 60  # of a sentence; lengths are exponential
LOOKED_AT = 2000  # texts
COMMON = 100  # least occurrences in a million of a common word
ENGLISH = 0.3  # least share of common words: English has 0.36 to 0.85, other languages 0.07 to 0.23
WINDOW = 4096
LENGTH = 21.1  # words of a sentence, assumed for a list of words
LIKE = 0.45  # least share of common words over the list's own: its language has 0.53 to 1.17, others to 0.41
USUAL = 0.65  # the largest expected share of common words
FEWEST = 100  # words to compare with a list
UNSPACED_CODES = ("ja", "ko", "zh")


class Words(NamedTuple):
    """A language: ``shares`` of words in a million, the mean ``length`` of a sentence in words, and sentences."""

    shares: dict[str, float]
    length: float
    sentences: tuple[str, ...] = ()


def load_english() -> Words:
    """Load the package's words."""
    length, *levels = read_packaged_lines("background.txt.gz")
    found: dict[str, float] = {}
    for level in levels:
        share, *words = level.split(" ")
        found |= dict.fromkeys(words, float(share))
    return Words(found, float(length), tuple(read_packaged_lines("sentences.txt.gz")))


def read_packaged_lines(name: str) -> list[str]:
    """Read the lines of a packed file of the package, without its comments."""
    data = gzip.decompress(files("fastflow.train.data").joinpath(name).read_bytes())
    return [line for line in data.decode("utf-8").split("\n")[:-1] if not line.startswith("# ")]


def read_words(path: Path) -> Words:
    """Read lines of a word, a space or tab, and its count; errors name file and line."""
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


@cache
def load_language(code: str) -> Words:
    """Load the words of a language from wordfreq; marks, which it lacks, have their English shares."""
    if code in UNSPACED_CODES:
        raise refuse(
            f"{{language:{code}}}: wordfreq cuts its texts by a tokenizer of its own, unlike an encoder; give words "
            "counted as the encoder cuts them by {background_words}"
        )
    try:
        from wordfreq import available_languages, get_frequency_dict
    except ImportError as error:
        raise missing_extra("languages", "wordfreq", f"the language {code}") from error
    if code not in (known := sorted(set(available_languages("small")) - set(UNSPACED_CODES))):
        raise refuse("{language} must be one of {known}; for others give {background_words}", known=", ".join(known))
    marks = {word: share for word, share in load_english().shares.items() if not re.search(r"\w", word)}
    rest = (1e6 - sum(marks.values())) / 1e6
    words = {word: 1e6 * rest * share for word, share in get_frequency_dict(code, "small").items()}
    return Words(words | marks, LENGTH)


def recognise_words(texts: Sequence[str], given: str | None = None, language: str = "en") -> Words | None:
    """Read the list ``given``, load ``language``, or take English if ``texts`` are English, else None."""
    if given is not None:
        return read_words(Path(given))
    if language != "en":
        return load_language(language)
    words, found = load_english(), [word.lower() for word in take_words(texts)]
    known = {word.lower() for word, share in words.shares.items() if share >= COMMON}
    return words if sum(word in known for word in found) >= ENGLISH * len(found) else None


def warn_of_language(words: Words, texts: Sequence[str], source: str = "{background_words}") -> str | None:
    """Return a warning if the common words of a list are rare in ``texts`` with spaces, else None."""
    listed = {word: share for word, share in words.shares.items() if WORD.fullmatch(word)}
    common = {word: share for word, share in listed.items() if share >= COMMON}
    found = [word.lower() for word in take_words(texts) if not re.search(UNSPACED, word)]
    if len(found) < FEWEST:
        return None
    known = {word.lower() for word in common}
    usual = min(USUAL, sum(common.values()) / max(sum(listed.values()), 1e-9))
    share = sum(word in known for word in found) / len(found)
    if share >= LIKE * usual:
        return None
    return name_options(
        f"the common words of {source} are {share:.0%} of the words of the corpus, where {usual:.0%} is usual: "
        "the list is of another language, or too short; give one of the language of the corpus, or none"
    )


def warn_of_case(
    words: Words, texts: Sequence[str], tokenize: Tokenizer, source: str = "{background_words}"
) -> str | None:
    """Return a warning if the encoder and ``texts`` have capitals and the list has none, else None."""
    if any(word != word.lower() for word in words.shares):
        return None
    first = (word[0] for text in islice(texts, LOOKED_AT) for word in WORD.finditer(text))
    written = next((word for word in first if word[0].isupper() and word.lower() in words.shares), None)
    if written is None or list(tokenize([written]).ids) == list(tokenize([written.lower()]).ids):
        return None
    return name_options(
        source + " has no capitals, and the encoder distinguishes {written} from {lower}: common words that begin a "
        "sentence count as rare; give words counted in text as it is written",
        written=written,
        lower=written.lower(),
    )


def compute_shares(tokenize: Tokenizer, vocabulary: int, words: Words) -> NDArray[np.float64]:
    """Compute the share (V,) of each token id; unlisted words have the rest to 1."""

    def count(texts: list[str], share: NDArray[np.float64]) -> NDArray[np.float64]:
        tokens = tokenize(texts)
        each = np.repeat(share, np.diff(tokens.offsets))
        return np.asarray(np.bincount(tokens.ids, each, vocabulary), np.float64)

    empty = count([""], np.ones(1))
    names, share, inside = list(words.shares), np.array(list(words.shares.values())), np.zeros(vocabulary)
    for start in range(0, len(names), WINDOW):
        some, often = names[start : start + WINDOW], share[start : start + WINDOW]
        inside += count([f"{word} {word}" for word in some], often) - count(some, often)
    counts = empty * (1e6 / words.length) + np.maximum(inside, 0)
    rare = max(0.0, 1e6 - float(share.sum()))  # unlisted words, one token each
    return np.asarray(counts / (counts.sum() + rare), np.float64)


def draw_sentences(count: int, words: Words) -> list[str]:
    """Draw ``count`` texts of random words by their shares and a fixed seed; a larger ``count`` adds texts."""
    names, limits, rng = list(words.shares), list(accumulate(words.shares.values())), random.Random(0)
    out = []
    for _ in range(count):
        more = int(rng.expovariate(1 / (MEAN_WORDS - FEWEST_WORDS)))
        out.append(" ".join(rng.choices(names, cum_weights=limits, k=min(FEWEST_WORDS + more, MOST_WORDS))))
    return out
