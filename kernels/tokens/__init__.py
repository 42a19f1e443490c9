"""Texts to token ids by WordPiece or Unigram, compiled; ``reference`` defines them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from string import ascii_letters, digits
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu
from fastflow.kernels._cpu import IDEOGRAPH, LONGEST, MARK, PUNCTUATION, SPLITS, WHITE, WORD, Part, character
from fastflow.kernels._cpu import Pieces as Pieces
from fastflow.kernels._cpu import Vocabulary as Vocabulary
from fastflow.kernels.processor import resolve_threads

MOST_ADDED, MOST_ADDED_UNIGRAM = 64, 256  # tokens, tried one after another
WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
NONE = np.empty(0, np.int64)
LETTERS, MOST = ascii_letters + digits, 2**62  # MOST: a limit that cuts no text
Found = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int8]]  # ids, offsets, states
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


class Step(NamedTuple):
    """A step of Unigram's normalizer, as ``c/tokens/tokens.h``; MAPPED has units and texts of a charsmap."""

    kind: int
    old: bytes = b""
    new: bytes = b""
    left: bool = False
    right: bool = False


class Token(NamedTuple):
    """A token found before normalization or, ``later``, after it; it takes white space to its left or right."""

    content: str
    id: int
    left: bool = False
    right: bool = False
    later: bool = False

    @property
    def takes(self) -> int:
        """The bits of the white space, for C."""
        return _cpu.SPACES_BEFORE * self.left + _cpu.SPACES_AFTER * self.right


class UnigramRules(NamedTuple):
    """The settings of a Unigram tokenizer, without its pieces."""

    steps: tuple[Step, ...]
    words: bool  # white space ends a word, and is dropped
    marked: bool  # a space becomes \u2581
    prefixed: int  # NOWHERE, AT_START or EVERYWHERE: the parts that get a \u2581 before them
    splits: bool  # \u2581 begins a word
    unknown: int
    by_bytes: bool  # an unknown run becomes pieces of its bytes, if all exist
    added: tuple[Token, ...]
    before: tuple[int, ...]  # ids at the start of every text
    after: tuple[int, ...]  # ids at the end of every text

    def check(self) -> None:
        """Raise ValueError for the first rule that cannot run."""
        if len(self.added) > MOST_ADDED_UNIGRAM:
            raise ValueError(f"{len(self.added)} tokens are added, more than {MOST_ADDED_UNIGRAM}")
        for token in self.added:
            if (
                not (token.content.isascii() and token.content.isprintable())
                or " " in token.content
                or not token.content
            ):
                raise ValueError(f"the added token {token.content!r:.40} is no word of ASCII")
            if token.later and token.right:
                raise ValueError(f"the added token {token.content!r:.40} is normalized and takes the spaces after it")
        if any(not 0 <= each < 2**31 for each in (*self.before, *self.after)):
            raise ValueError("an id at the ends of texts has more than 31 bits")
        if self.prefixed == _cpu.AT_START:
            lost = any(
                step.kind == _cpu.UNMARKED or step.left or (step.kind in (_cpu.REPLACED, _cpu.JOINED) and not step.new)
                for step in self.steps
            )
            if self.words or lost or any(token.later for token in self.added):
                raise ValueError("only the first word gets a prefix, and other rules may move it")

    @property
    def each(self) -> int:
        """The most ids from one character of a text: its characters, or their bytes, after all steps, and a prefix."""
        most = 1.0
        for step in self.steps:
            if step.kind == _cpu.MAPPED:
                most *= max(1, *(len(text.decode()) for text in step.new.split(b"\0")))
            elif step.kind in (_cpu.REPLACED, _cpu.JOINED):
                most *= max(1.0, len(step.new.decode()) / len(step.old.decode() or "  "))
            elif step.kind == _cpu.LOWERED:
                most *= 2
        return math.ceil(most) * (4 if self.by_bytes else 1) + 3


class Tokenizer:
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
        if (asked := np.flatnonzero(states == _cpu.ASKED)).size:
            ids, offsets, states = self._ask(texts, asked, (ids, offsets, states), limit, special)
        return ids, offsets, np.flatnonzero(states == _cpu.CUT)

    def _ask(self, texts: Sequence[str], asked: NDArray[np.int64], found: Found, limit: int, special: bool) -> Found:
        raise NotImplementedError


class WordPiece(Tokenizer):
    """A tokenizer of ``vocabulary`` by ``rules``; raises ValueError as ``Rules.check``."""

    def __init__(self, vocabulary: Vocabulary, rules: Rules) -> None:
        unknown = rules.check(vocabulary.get)
        added = sorted(
            ((content.encode(), number, 0) for content, number in rules.added), key=lambda token: -len(token[0])
        )
        ends = (np.array(ids, np.int32) for ids in (rules.before, rules.after))
        whole = Vocabulary(json.dumps(dict(rules.whole)).encode()) if rules.whole else None
        self.compiled = _cpu.WordPiece(vocabulary, rules.steps, unknown, rules.longest, added, *ends, whole)


class Unigram(Tokenizer):
    """A tokenizer of ``pieces`` by ``rules``; raises ValueError as ``UnigramRules.check``.

    ``normalize``: all steps by a library, called for the few texts that need more of Unicode than C has.
    """

    def __init__(self, pieces: Pieces, rules: UnigramRules, normalize: Callable[[str], str]) -> None:
        rules.check()
        self._rules, self._normalize = rules, normalize
        plain = Unigram._compile(pieces, rules, [], False)
        later = [token._replace(content=plain.normalize(token.content) or "") for token in rules.added if token.later]
        rules._replace(added=tuple(later)).check()
        if len({token.content for token in later}) < len(later):
            raise ValueError("two added tokens are the same once normalized")
        self.compiled = Unigram._compile(pieces, rules, later, rules.splits and _keeps_letters(plain, rules.steps))

    @staticmethod
    def _compile(pieces: Pieces, rules: UnigramRules, later: list[Token], chunks: bool) -> _cpu.Unigram:
        groups = ([token for token in rules.added if not token.later], later)
        added = [
            [(token.content.encode(), token.id, token.takes) for token in sorted(group, key=lambda t: -len(t.content))]
            for group in groups
        ]
        ends = [np.array(ids, np.int32) for ids in (rules.before, rules.after)]
        return _cpu.Unigram(
            pieces,
            list(rules.steps),
            rules.unknown,
            *added,
            *ends,
            rules.by_bytes,
            rules.words,
            rules.marked,
            rules.splits,
            rules.prefixed,
            chunks,
            rules.each,
        )

    def _ask(self, texts: Sequence[str], asked: NDArray[np.int64], found: Found, limit: int, special: bool) -> Found:
        """Tokenize the texts ``asked``, normalized by the library, and put their rows into what is ``found``."""
        ids, offsets, states = found
        rows = [ids[a:b] for a, b in pairwise(offsets)]
        before, after = (self._rules.before, self._rules.after) if special else ((), ())
        room = limit - len(before) - len(after)
        for i in asked:
            row: list[int] = []
            for part in self._split(texts[i]):
                row += [part] if isinstance(part, int) else self.compiled.tokenize([part], MOST, False, 1)[0].tolist()
            rows[i] = np.array([*before, *row[:room], *after], np.int32)
            states[i] = _cpu.CUT if len(row) > room else 0
        return np.concatenate(rows), np.cumsum([0, *map(len, rows)], dtype=np.int64), states

    def _split(self, text: str) -> Iterator[Part | int]:
        """Yield the ids of added tokens, and the normalized parts between them."""
        start = 0
        for place, token in find_tokens(text, self._rules.added):
            part = text[start:place]
            part = part.rstrip(WHITE_SPACE) if token.left else part
            yield from self._part(part, start > 0)
            yield token.id
            start = place + len(token.content)
            if token.right:
                start = len(text) - len(text[start:].lstrip(WHITE_SPACE))
        yield from self._part(text[start:], start > 0)

    def _part(self, text: str, later: bool) -> Iterator[Part]:
        if text:
            part = Part(self._normalize(text))
            part.later = later
            yield part


def find_tokens(text: str, added: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Yield the place and token of each match before normalization; the longest token at a place counts."""
    known = {token.content: token for token in added if not token.later}
    if known:
        for match in re.finditer("|".join(map(re.escape, sorted(known, key=len, reverse=True))), text):
            yield match.start(), known[match[0]]


def _keeps_letters(plain: _cpu.Unigram, steps: Sequence[Step]) -> bool:
    """Return whether a part may be cut before a space between two ASCII letters or digits."""
    if any(step.kind == _cpu.REPLACED and b" " in step.old for step in steps):
        return False
    for letter in LETTERS:
        one = plain.normalize(letter)
        if not one or one.strip(WHITE_SPACE) != one or plain.normalize(f"{letter} {letter}") != f"{one} {one}":
            return False
    return True
