"""Texts to token ids by WordPiece or Unigram, compiled; ``tests/support/definitions.py`` defines them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from string import ascii_letters, digits
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu
from fastflow.kernels._cpu import IDEOGRAPH, LONGEST, MARK, MOST_ADDED, PUNCTUATION, SPLITS, WHITE, WORD, character
from fastflow.kernels._cpu import Vocabulary as Vocabulary
from fastflow.kernels.processor import resolve_threads

WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
NONE = np.empty(0, np.int64)
FORMED = 18  # most characters that a form of Unicode makes of one
HANGUL = range(0xAC00, 0xD7A4)  # syllables, which STRIP decomposes


class WordPieceRules(NamedTuple):
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
        _check_added(self.before, self.after, [content for content, _ in self.added])
        for content, number in self.added:
            if id_of(content) != number:
                raise ValueError(f"the added token {content!r:.40} has another id in the vocabulary")
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


class NormalizerStep(NamedTuple):
    """A step of Unigram's normalizer, as ``c/tokens/tokens.h``; MAPPED has units and texts of a charsmap."""

    kind: int
    old: bytes = b""
    new: bytes = b""


class Token(NamedTuple):
    """A token found before normalization or, ``later``, after it; ``takes``: it takes the white space before it."""

    content: str
    id: int
    takes: bool = False
    later: bool = False


class UnigramRules(NamedTuple):
    """The settings of a Unigram tokenizer, without its pieces."""

    steps: tuple[NormalizerStep, ...]
    spaced: bool  # white space ends a word, and is dropped; else a space becomes \u2581
    unknown: int
    added: tuple[Token, ...]
    before: tuple[int, ...]  # ids at the start of every text
    after: tuple[int, ...]  # ids at the end of every text

    def check(self) -> None:
        """Raise ValueError for the first rule that cannot run."""
        _check_added(self.before, self.after, [token.content for token in self.added])

    @property
    def each(self) -> tuple[int, int]:
        """The most ids from one character: if C normalizes the text, and if a library does."""
        most, formed = 1.0, 1
        for step in self.steps:
            if step.kind == _cpu.MAPPED:
                most *= max(1, *(len(text.decode()) for text in step.new.split(b"\0")))
            elif step.old:
                most *= max(1.0, len(step.new.decode()) / len(step.old.decode()))
            elif step.kind != _cpu.STRIPPED:
                formed = FORMED
        return math.ceil(most) + 3, math.ceil(most) * formed + 3


def _check_added(before: Sequence[int], after: Sequence[int], contents: Sequence[str]) -> None:
    if len(contents) > MOST_ADDED:
        raise ValueError(f"{len(contents)} tokens are added, more than {MOST_ADDED}")
    for content in contents:
        if not content.isascii() or not content.isprintable() or " " in content or not content:
            raise ValueError(f"the added token {content!r:.40} is no word of ASCII")
    if any(not 0 <= each < 2**31 for each in (*before, *after)):
        raise ValueError("an id at the ends of texts has more than 31 bits")


class CompiledTokenizer:
    """A compiled tokenizer."""

    compiled: _cpu.Tokenizer

    def tokenize(
        self, texts: Sequence[str], limit: int, special: bool = True, threads: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return (ids (N,), offsets (B+1,), indices of cut texts): text i has ids[offsets[i]:offsets[i+1]].

        ``limit``: the most ids of a text, with start and end ids if ``special``. Raises ValueError for half a surrogate
        pair or too low a limit, TypeError for other types than str.
        """
        ids, offsets, states = self.compiled.tokenize(list(texts), limit, special, resolve_threads(threads))
        if states is None:
            return ids, offsets, NONE
        if (half := np.flatnonzero(states == _cpu.HALF)).size:
            raise ValueError(f"text {half[0]} holds half a surrogate pair")
        return ids, offsets, np.flatnonzero(states == _cpu.CUT)


class WordPiece(CompiledTokenizer):
    """A tokenizer of ``vocabulary`` by ``rules``; raises ValueError as ``WordPieceRules.check``."""

    def __init__(self, vocabulary: Vocabulary, rules: WordPieceRules) -> None:
        unknown, added = rules.check(vocabulary.get), [Token(*token) for token in rules.added]
        whole = Vocabulary(json.dumps(dict(rules.whole)).encode()) if rules.whole else None
        shared = (vocabulary, unknown, _sort_longest(added), *_make_ends(rules))
        self.compiled = _cpu.WordPiece(*shared, rules.steps, rules.longest, whole)


class Unigram(CompiledTokenizer):
    """A tokenizer of ``vocabulary`` by ``rules``; raises ValueError as ``UnigramRules.check``.

    ``normalize``: all steps by a library, called for the few texts that need more of Unicode than C has.
    """

    def __init__(self, vocabulary: Vocabulary, rules: UnigramRules, normalize: Callable[[str], str]) -> None:
        rules.check()
        normalizer = _cpu.Normalizer(list(rules.steps))
        later = [
            token._replace(content=normalizer.normalize(token.content) or "") for token in rules.added if token.later
        ]
        rules._replace(added=tuple(later)).check()
        if len({token.content for token in later}) < len(later):
            raise ValueError("two added tokens are the same once normalized")
        added = [token for token in rules.added if not token.later]
        shared = (vocabulary, rules.unknown, _sort_longest(added), *_make_ends(rules))
        chunks = _keeps_letters(normalizer, rules.steps)
        self.compiled = _cpu.Unigram(
            *shared, _sort_longest(later), normalizer, normalize, rules.each, rules.spaced, chunks
        )


def _sort_longest(added: Sequence[Token]) -> list[tuple[bytes, int, int]]:
    return [(token.content.encode(), token.id, token.takes) for token in sorted(added, key=lambda t: -len(t.content))]


def _make_ends(rules: WordPieceRules | UnigramRules) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return np.array(rules.before, np.int32), np.array(rules.after, np.int32)


def _keeps_letters(normalizer: _cpu.Normalizer, steps: Sequence[NormalizerStep]) -> bool:
    """Return whether a part may be cut before a space between two ASCII letters or digits."""
    if any(step.kind == _cpu.REPLACED and b" " in step.old for step in steps):
        return False
    for letter in ascii_letters + digits:
        one = normalizer.normalize(letter)
        if not one or one.strip(WHITE_SPACE) != one or normalizer.normalize(f"{letter} {letter}") != f"{one} {one}":
            return False
    return True
