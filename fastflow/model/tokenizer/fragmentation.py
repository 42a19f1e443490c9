"""Find texts that do not suit a vocabulary, by their language or by many or unknown pieces."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from fastflow.late import making

if TYPE_CHECKING:
    from fastflow.model.tokenizer import Tokenizer

MARKS = r"\u0300-\u036f\u0591-\u05c7\u064b-\u0652\u0900-\u0903\u093a-\u0963\u0971-\u0dff\u0e31-\u0e4e"  # in a word
WORD = re.compile(rf"[^\W\d_]+(?:[{MARKS}]+[^\W\d_]*)*")
# scripts without spaces between words
UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff]|[\U00020000-\U0003ffff]"
SAMPLE = 2000
LOOKED_AT = 20_000
ENOUGH = 1000  # least characters for a multilingual vocabulary
LOOKS = (100, ENOUGH, 10_000, math.inf)  # characters after which to judge: a short name may be many pieces
FEWEST = 8
MANY, MANY_SHARED = 1.55, 2.5
SHARED = 100_000  # least entries of a multilingual vocabulary
UNKNOWN = 0.05
ENCODER = "an encoder that was made for {0}"
SHIPPED = "multilingual"  # the model in the package for other languages than English
UNLISTED = ("Chinese", "Japanese")  # its languages without a list of commonest words


def take_words(texts: Sequence[str]) -> list[str]:
    """Take the first SAMPLE words of ``texts``."""
    return [word[0] for word in islice((word for text in texts for word in WORD.finditer(text)), SAMPLE)]


def warn_of_unsuited(
    vocabulary: Tokenizer, texts: Sequence[str], remedy: str = ENCODER, fitted: Container[str] = ()
) -> str | None:
    """Return a warning if the first SAMPLE words of ``texts`` do not suit ``vocabulary``; else None.

    ``remedy`` has {0} for the language, and {1} for a model in the package. ``fitted``: languages that the model was
    fitted to.
    """
    words = take_words(texts)
    total, unknown = vocabulary.pieces(words)
    if total < FEWEST:
        return None
    with making:  # a fork waits for the import
        from fastflow.model.tokenizer.languages import are_names, is_multilingual, load_languages, recognise, serves

    found = recognise(words, lambda name: name in fitted or serves(vocabulary, name))
    fault, lists = _find_fault(vocabulary, words, total, unknown, MANY), load_languages()
    if fault and (vocabulary.size >= SHARED or is_multilingual(vocabulary)):
        if found.served if found else are_names(Counter(words)) or sum(map(len, texts)) < ENOUGH:
            return None
        fault = fault.partition(", where")[0] if fitted else _find_fault(vocabulary, words, total, unknown, MANY_SHARED)
        if found is None and fitted:
            none = "none of the model's languages is recognised in the texts"
            return f"{none}, and {fault}: their vectors may be poor; use {ENCODER.format('their language and field')}"
    if found is None or found.served or not any(serves(vocabulary, name) for name in lists):
        return fault and f"{fault}: their vectors are poor; use {ENCODER.format('this language and field')}"
    if fault is None and found.name not in lists:
        return None
    fault, some = fault or "the vocabulary was not made for this language", "some of " if found.part else ""
    remedy = remedy if found.name in (*lists, *UNLISTED) else ENCODER
    use = remedy.format(found.name, "static" if found.name == "English" else SHIPPED)
    return f"{some}the texts look like {found.name}, and {fault}: their vectors are poor; use {use}"


def _find_fault(vocabulary: Tokenizer, words: Sequence[str], total: int, unknown: int, usual: float) -> str | None:
    if unknown > UNKNOWN * total:
        return f"{unknown / total:.0%} of the word pieces are unknown to the encoder"
    spaced, count = words, total
    if re.search(UNSPACED, "".join(words)):
        spaced = [word for word in words if not re.search(UNSPACED, word)]
        count = vocabulary.pieces(spaced)[0]
        letters = sum(map(len, words)) - sum(map(len, spaced))
        if len(spaced) < len(words) / 2 and total - count > MANY * letters:
            return f"letters fall into {(total - count) / letters:.1f} pieces on average"
    if count < FEWEST or (mean := count / len(spaced)) <= usual:
        return None
    return f"words fall into {mean:.1f} pieces on average, where up to {usual} is usual"


class Seen:
    """The first texts that a Runtime embeds, kept for a warning."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.open = True
        self._count, self._looks = 0, iter(LOOKS)
        self._next = next(self._looks)

    def add(self, texts: Iterable[str]) -> bool:
        """Keep ``texts`` while there is room; return whether the next of LOOKS is reached."""
        for text in texts:
            if self._count >= LOOKED_AT:
                break
            self.texts.append(text[: LOOKED_AT - self._count])
            self._count += len(self.texts[-1])
        self.open = self._count < LOOKED_AT
        if self._count < self._next:
            return False
        while self._count >= self._next:
            self._next = next(self._looks)
        return True
