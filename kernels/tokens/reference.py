"""The definition of WordPiece with BERT's normalizer. Ids equal those of Hugging Face's ``tokenizers``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels._cpu import CONTROL, FENCE, IDEOGRAPH, PUNCTUATION, WHITE, WORD, character
from fastflow.kernels.tokens import Rules

PREFIX = "##"  # of a piece that continues a word


class WordPiece:
    """A tokenizer of ``vocabulary`` by ``rules``, as ``tokens.WordPiece``."""

    def __init__(self, vocabulary: Mapping[str, int], rules: Rules) -> None:
        self._ids, self._rules, self._whole = vocabulary, rules, dict(rules.whole)
        self._unknown = rules.check(lambda piece: None if piece.startswith(PREFIX) else vocabulary.get(piece))

    def tokenize(
        self, texts: Sequence[str], limit: int, special: bool = True, threads: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Define ``tokens.WordPiece.tokenize``."""
        ends = (self._rules.before, self._rules.after) if special else ((), ())
        room = limit - len(ends[0]) - len(ends[1])
        if room < 0:
            raise ValueError(f"{limit} ids are fewer than those at the ends of a text")
        rows, cut = [], []
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"text {i} is {type(text).__name__}, not str")
            if any(0xD800 <= ord(c) < 0xE000 for c in text):
                raise ValueError(f"text {i} holds half a surrogate pair")
            ids = list(self._text(text))
            cut += [i] if len(ids) > room else []
            rows.append([*ends[0], *ids[:room], *ends[1]])
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return np.array([i for row in rows for i in row], np.int32), offsets, np.array(cut, np.int64)

    def _text(self, text: str) -> Iterator[int]:
        added = sorted(self._rules.added, key=lambda token: -len(token[0]))
        start = at = 0
        while at < len(text):
            found = next((token for token in added if text.startswith(token[0], at)), None)
            if found:
                yield from self._between(text[start:at])
                yield found[1]
                start = at = at + len(found[0])
            else:
                at += 1
        yield from self._between(text[start:])

    def _between(self, text: str) -> Iterator[int]:
        before = ""
        for is_run, characters in groupby(normalize(text, self._rules), lambda c: bool(flags(c) & WORD)):
            run = "".join(characters)
            if is_run and run in self._whole:
                yield from self._words(before)
                yield self._whole[run]
                before = ""
            else:
                before += run
        yield from self._words(before)

    def _words(self, text: str) -> Iterator[int]:
        for word in split(text):
            yield from self._word(word)

    def _word(self, word: str) -> list[int]:
        pieces: list[int] = []
        start = 0
        while len(word) <= self._rules.longest and start < len(word):
            prefix = PREFIX if start else ""
            ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in self._ids)
            if (end := next(ends, 0)) == 0:
                break
            pieces.append(self._ids[prefix + word[start:end]])
            start = end
        return pieces if start == len(word) else [self._unknown]


def normalize(text: str, rules: Rules) -> str:
    """Apply BERT's normalizer."""
    if rules.lower_first:
        text = "".join(map(lower, text))
    if rules.clean:
        text = "".join(" " if flags(c) & WHITE else c for c in text if not flags(c) & CONTROL)
    if rules.ideographs:
        text = "".join(f" {c} " if flags(c) & IDEOGRAPH else c for c in text)
    if rules.strip:
        text = strip_accents(text)
    return "".join(map(lower, text)) if rules.lower else text


def strip_accents(text: str) -> str:
    """Decompose characters, drop accents, and order other marks canonically, but not across a FENCE."""
    found: list[tuple[int, str]] = []  # canonical class, character
    for c in text:
        found += [(character(code)[1], chr(code)) for code in character(ord(c))[3]]
        found += [(0, "")] if flags(c) & FENCE else []
    out: list[tuple[int, str]] = []
    for order, c in found:
        at = len(out)
        while order and at and out[at - 1][0] > order:
            at -= 1
        out.insert(at, (order, c))
    return "".join(c for _, c in out)


def lower(c: str) -> str:
    """Return the lower case of a character; U+0130 has two characters."""
    return "i\u0307" if c == "\u0130" else chr(character(ord(c))[2])


def split(text: str) -> Iterator[str]:
    """Yield the words between spaces, and each punctuation mark."""
    word = ""
    for c in text:
        if flags(c) & (WHITE | PUNCTUATION):
            yield from filter(None, (word, "" if flags(c) & WHITE else c))
            word = ""
        else:
            word += c
    yield from filter(None, (word,))


def flags(c: str) -> int:
    """Return the flags of a character, such as WHITE."""
    return int(character(ord(c))[0])
