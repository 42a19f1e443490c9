"""Recognise the language of words, and whether a vocabulary serves it.

``languages.txt`` has a line for each language: its name and its commonest words.
Other languages are recognised by their letters.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fastflow.model.tokenizer import Tokenizer

FILE = Path(__file__).with_name("languages.txt")
SCRIPTS = {"CJK": "Chinese", "HANGUL": "Korean", "DEVANAGARI": "Hindi"}  # others are named like their language
MANY = ("LATIN", "CYRILLIC", "ARABIC")  # scripts of several languages
SAME = 0.5  # least share of letters in one script
KANA = 0.1  # least share of letters in Japanese: others are Chinese
SHARE, FEWEST = 0.2, 5  # least share and number of a language's commonest words: its own texts have 0.32 to 0.8
LEAST = 0.15  # share of a served language: others have 0.02 to 0.2
PART, SOME = 0.1, 8  # the same of words that a served language lacks: English has 0.04 at most
NEAR = 0.5  # least hits of a served language, over hits of the likeliest, to look for a part in another language
NAMES = 0.7  # German sentences have 0.4
JUDGED = 200  # commonest words that show whether a vocabulary serves a language
WHOLE = 1.4  # most pieces a word: vocabularies have 1 to 1.27 in own languages, 1.56 to 5 in others
UNKNOWN = 0.05
SEVERAL = 5  # least languages of a multilingual vocabulary


@cache
def load_languages() -> dict[str, tuple[str, ...]]:
    """Load the commonest words of each language in order, by its name; English is first."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" ") for line in lines if not line.startswith("#")]
    return {name: tuple(words) for name, *words in rows}


@cache
def _load_sets() -> dict[str, frozenset[str]]:
    return {name: frozenset(map(str.lower, words)) for name, words in load_languages().items()}


class Found(NamedTuple):
    """The language of words, perhaps only of ``part``; ``served`` by the vocabulary."""

    name: str
    served: bool
    part: bool = False


def recognise(words: Sequence[str], is_served: Callable[[str], bool]) -> Found | None:
    """Return the language of ``words``; a part in a language that is not served has precedence."""
    counts, scripts = Counter(words), Counter[str]()
    for letter, count in Counter("".join(counts)).items():
        if letter.isalpha():
            scripts[unicodedata.name(letter, "").partition(" ")[0]] += count
    letters = scripts.total()
    if scripts["HIRAGANA"] + scripts["KATAKANA"] >= KANA * letters > 0:
        return Found("Japanese", is_served("Japanese"))
    for script, count in scripts.most_common():
        if script in ("", *MANY) or count < PART * letters:
            continue
        name, whole = SCRIPTS.get(script, script.capitalize()), count >= SAME * letters
        if whole or not (is_served(name) or script == "GREEK"):  # formulas have Greek letters
            return Found(name, is_served(name), not whole)
    return _compare_lists(counts, is_served)


def _compare_lists(counts: Counter[str], is_served: Callable[[str], bool]) -> Found | None:
    lower, sets, names = Counter[str](), _load_sets(), are_names(counts)
    for word, count in counts.items():
        if not (names and word.istitle()):
            lower[word.lower()] += count
    total, ranked = lower.total(), _rank(lower, frozenset())
    name, most, distinct = ranked[0]
    if most < (LEAST if is_served(name) else SHARE) * total or distinct < FEWEST:
        return None
    own = next((other for other, hits, _ in ranked if hits >= NEAR * most and is_served(other)), None)
    if own is None:
        return Found(name, False)
    name, most, distinct = _rank(lower, sets[own])[0]
    if most >= PART * total and distinct >= SOME and not is_served(name):
        return Found(name, False, True)
    return Found(own, True)


def are_names(counts: Counter[str]) -> bool:
    """Whether over NAMES of the words begin with a capital."""
    return sum(count for word, count in counts.items() if word.istitle()) > NAMES * counts.total()


def _rank(counts: Counter[str], without: frozenset[str]) -> list[tuple[str, int, int]]:
    """Return each language with its number of words, and of distinct words; the likeliest first."""
    found = []
    for name, listed in _load_sets().items():
        hits = (counts.keys() & listed) - without
        found.append((name, sum(counts[word] for word in hits), len(hits)))
    return sorted(found, key=lambda row: -row[1])


def serves(vocabulary: Tokenizer, language: str) -> bool:
    """Whether the commonest words are whole pieces of ``vocabulary``; False without a list."""
    words = load_languages().get(language, ())[:JUDGED]
    total, unknown = vocabulary.pieces(words)
    return 0 < total <= WHOLE * len(words) and unknown <= UNKNOWN * total


def is_multilingual(vocabulary: Tokenizer) -> bool:
    """Whether ``vocabulary`` serves SEVERAL languages."""
    return sum(serves(vocabulary, name) for name in load_languages()) >= SEVERAL
