"""Find texts that do not suit a vocabulary: their words become many or unknown pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastflow.model.tokenizer import Tokenizer

WORD = re.compile(r"[^\W\d_]+")
# scripts without spaces between words
UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff]|[\U00020000-\U0003ffff]"
SAMPLE = 2000
LOOKED_AT = 20_000
ENOUGH = 100  # least characters to judge: a short name may be many pieces
FEWEST = 8
MANY, MANY_SHARED = 1.55, 2.5
SHARED = 100_000  # least entries of a multilingual vocabulary
UNKNOWN = 0.05


def warn_of_unsuited(vocabulary: Tokenizer, texts: Sequence[str]) -> str | None:
    """Return a warning if ``texts``, judged by at most SAMPLE words, do not suit ``vocabulary``; else None."""
    words = [word[0] for word in islice((word for text in texts for word in WORD.finditer(text)), SAMPLE)]
    total, unknown = vocabulary.pieces(words)
    if total < FEWEST:
        return None
    if unknown > UNKNOWN * total:
        return (
            f"{unknown / total:.0%} of the word pieces are unknown to the encoder: their vectors are poor; use "
            "an encoder that was made for this language"
        )
    spaced = [word for word in words if not re.search(UNSPACED, word)]
    if not spaced or (count := vocabulary.pieces(spaced)[0]) < FEWEST:
        return None
    mean = count / len(spaced)
    usual = MANY_SHARED if vocabulary.size >= SHARED else MANY
    if mean <= usual:
        return None
    return (
        f"words fall into {mean:.1f} pieces on average, where up to {usual:g} is usual: their vectors are poor; use "
        "an encoder that was made for this language and field"
    )


class Seen:
    """The first texts that a Runtime embeds, kept for a warning."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.open = True
        self._left, self._few = LOOKED_AT, True

    def add(self, texts: Iterable[str]) -> bool:
        """Keep ``texts`` while there is room; return whether this call reached ENOUGH characters."""
        for text in texts:
            if self._left <= 0:
                break
            self.texts.append(text[: self._left])
            self._left -= len(text)
        self.open = self._left > 0
        few, self._few = self._few, LOOKED_AT - self._left < ENOUGH
        return few and not self._few

    def notes(self, vocabulary: Tokenizer) -> list[str]:
        warning = warn_of_unsuited(vocabulary, list(self.texts))
        return [f"texts embedded so far: {warning}"] if warning else []
