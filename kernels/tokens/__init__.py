"""Texts to token ids by WordPiece with BERT's normalizer, compiled; ``reference`` defines it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu
from fastflow.kernels._cpu import IDEOGRAPH, LONGEST, MARK, PUNCTUATION, SPLITS, WHITE, WORD, character
from fastflow.kernels._cpu import Vocabulary as Vocabulary
from fastflow.kernels.processor import resolve_threads

MOST_ADDED = 64  # tokens, tried one after another
HANGUL = range(0xAC00, 0xD7A4)  # syllables, which STRIP decomposes


class Rules(NamedTuple):
    """The settings of a WordPiece tokenizer, without its vocabulary."""

    clean: bool  # drop control characters; make all white space spaces
    ideographs: bool  # make each a word
    strip: bool  # drop accents
    lower: bool
    lower_first: bool  # lower case, before all other steps
    unknown: str  # the piece for words that cannot be cut
    longest: int  # most characters of a word that is cut
    added: tuple[tuple[str, int], ...]  # (content, id) of tokens found before normalization
    before: tuple[int, ...]  # ids at the start of every text
    after: tuple[int, ...]  # ids at the end of every text
    whole: tuple[tuple[str, int], ...] = ()  # (content, id) of normalized words that are never cut

    @property
    def steps(self) -> int:
        """The bits of the normalizer's steps, for C."""
        numbers = (_cpu.CLEAN, _cpu.IDEOGRAPHS, _cpu.STRIP, _cpu.LOWER, _cpu.LOWER_FIRST)
        return sum(number for number, on in zip(numbers, self[: len(numbers)], strict=True) if on)

    def check(self, id_of: Callable[[str], int | None]) -> int:
        """Return the id of the unknown token; raise ValueError for the first rule that cannot run.

        ``id_of`` returns the id of a piece that begins a word.
        """
        if not 0 <= self.longest <= LONGEST:
            raise ValueError(f"words of up to {self.longest} characters are cut into pieces, more than {LONGEST}")
        if len(self.added) > MOST_ADDED:
            raise ValueError(f"{len(self.added)} tokens are added, more than {MOST_ADDED}")
        for content, number in self.added:
            if not (content.isascii() and content.isprintable()) or " " in content or id_of(content) != number:
                raise ValueError(f"the added token {content!r:.40} is no word of ASCII with its id in the vocabulary")
        if any(not 0 <= each < 2**31 for each in (*self.before, *self.after)):
            raise ValueError("an id at the ends of texts has more than 31 bits")
        if self.whole and not self.clean:
            raise ValueError("words are added, and control characters are not dropped")
        for content, number in self.whole:
            if not (0 < len(content) <= self.longest and self.is_word(content) and 0 <= number < 2**31):
                raise ValueError(f"the added token {content!r:.40} is no normalized word")
        if (unknown := id_of(self.unknown)) is None:
            raise ValueError(f"the vocabulary lacks the unknown token {self.unknown!r:.40}")
        return unknown

    def is_word(self, content: str) -> bool:
        """Return whether ``content`` is letters, digits and marks that the normalizer keeps."""
        if content.isascii():
            return content.isalnum() and (content == content.lower() or not (self.lower or self.lower_first))
        moved = (PUNCTUATION | WHITE) | (IDEOGRAPH if self.ideographs else 0) | (MARK | SPLITS if self.strip else 0)
        for code in map(ord, content):
            flags, order, lower, _ = character(code)
            taken_apart = self.strip and (order or code in HANGUL)
            lowered = (lower != code or code == 0x130) and (self.lower or self.lower_first)  # 0x130 becomes two
            if not flags & WORD or flags & moved or taken_apart or lowered:
                return False
        return True


class WordPiece:
    """A tokenizer of ``vocabulary`` by ``rules``; raises ValueError as ``Rules.check``."""

    def __init__(self, vocabulary: Vocabulary, rules: Rules) -> None:
        unknown = rules.check(vocabulary.get)
        added = sorted(
            ((content.encode(), number) for content, number in rules.added), key=lambda token: -len(token[0])
        )
        ends = (np.array(ids, np.int32) for ids in (rules.before, rules.after))
        whole = Vocabulary(json.dumps(dict(rules.whole)).encode()) if rules.whole else None
        self.compiled = _cpu.WordPiece(vocabulary, rules.steps, unknown, rules.longest, added, *ends, whole)

    def tokenize(
        self, texts: Sequence[str], limit: int, special: bool = True, threads: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return (ids (N,), offsets (B+1,), indices of cut texts): text i has ids[offsets[i]:offsets[i+1]].

        ``limit``: the most ids of a text, with start and end ids if ``special``. Raises ValueError for half a surrogate
        pair or too low a limit, TypeError for other types than str.
        """
        ids, offsets, states = self.compiled.tokenize(list(texts), limit, special, resolve_threads(threads))
        if (half := np.flatnonzero(states == _cpu.HALF)).size:
            raise ValueError(f"text {half[0]} holds half a surrogate pair")
        return ids, offsets, np.flatnonzero(states == _cpu.CUT)
