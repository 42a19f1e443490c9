"""The definitions of WordPiece with BERT's normalizer and of Unigram with SentencePiece's.

Ids equal those of Hugging Face's ``tokenizers``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu
from fastflow.kernels._cpu import CONTROL, FENCE, IDEOGRAPH, MARK, PUNCTUATION, SPLITS, WHITE, WORD, character, mark
from fastflow.kernels.tokens import HANGUL, WHITE_SPACE, Rules, Step, UnigramRules, find_tokens

PREFIX = "##"  # of a piece that continues a word
SHORT = 6  # a grapheme of fewer bytes is looked up whole
SPACE = "\u2581"


class Tokenizer:
    """The frame of a tokenizer."""

    _rules: Rules | UnigramRules

    def _text(self, text: str) -> Iterator[int]:
        raise NotImplementedError

    def tokenize(
        self, texts: Sequence[str], limit: int, special: bool = True, threads: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Define ``tokens.Tokenizer.tokenize``."""
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


class WordPiece(Tokenizer):
    """A tokenizer of ``vocabulary`` by ``rules``, as ``tokens.WordPiece``."""

    _rules: Rules

    def __init__(self, vocabulary: Mapping[str, int], rules: Rules) -> None:
        self._ids, self._rules, self._whole = vocabulary, rules, dict(rules.whole)
        self._unknown = rules.check(lambda piece: None if piece.startswith(PREFIX) else vocabulary.get(piece))

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


class Unigram(Tokenizer):
    """A tokenizer of ``pieces`` and their scores by ``rules``, as ``tokens.Unigram``."""

    _rules: UnigramRules

    def __init__(
        self, pieces: Sequence[tuple[str, float]], rules: UnigramRules, normalize: Callable[[str], str]
    ) -> None:
        rules.check()
        self._rules, self._normalize = rules, normalize
        self._ids = {piece: i for i, (piece, _) in enumerate(pieces)}
        self._scores = [score for _, score in pieces]
        self._least = min(self._scores)
        self._longest = max(len(piece) for piece, _ in pieces)
        self._later = [
            each._replace(content=self._part(each.content), later=False) for each in rules.added if each.later
        ]

    def _text(self, text: str) -> Iterator[int]:
        start = 0
        for place, token in find_tokens(text, self._rules.added):
            yield from self._between(text[start:place].rstrip(WHITE_SPACE if token.left else ""), start == 0)
            yield token.id
            start = place + len(token.content)
            start = len(text) - len(text[start:].lstrip(WHITE_SPACE if token.right else ""))
        yield from self._between(text[start:], start == 0)

    def _between(self, text: str, first: bool) -> Iterator[int]:
        start, text = 0, self._part(text)
        for place, token in find_tokens(text, self._later):
            yield from self._words(text[start:place].rstrip(WHITE_SPACE if token.left else ""), first)
            yield token.id
            start = place + len(token.content)
        yield from self._words(text[start:], first)

    def _part(self, text: str) -> str:
        found: str | None = text
        for step in self._rules.steps:
            found = None if found is None else apply(step, found)
        return self._normalize(text) if found is None else found

    def _words(self, text: str, first: bool) -> Iterator[int]:
        rules = self._rules
        for part in re.split(f"[{WHITE_SPACE}]+", text) if rules.words else [text]:
            marked = part.replace(" ", SPACE) if rules.marked else part
            prefixed = rules.prefixed == _cpu.EVERYWHERE or (rules.prefixed == _cpu.AT_START and first)
            if marked and prefixed and not marked.startswith(SPACE):
                marked = SPACE + marked
            for word in re.findall(f"{SPACE}?[^{SPACE}]*", marked) if rules.splits else [marked]:
                yield from self._word(word)

    def _word(self, word: str) -> Iterator[int]:
        unknown, start, rows = self._rules.unknown, 0, []
        best: list[tuple[float, int, int] | None] = [None] * (len(word) + 1)  # score, start, id of the last piece
        for at in range(len(word)):
            here = best[at]
            score = 0.0 if here is None else here[0]
            found = [
                (end, self._ids.get(word[at:end], -1)) for end in range(at + 1, min(len(word), at + self._longest) + 1)
            ]
            ends = [(end, number, self._scores[number]) for end, number in found if number >= 0]
            ends += [] if found[0][1] >= 0 else [(at + 1, unknown, self._least - 10)]
            for end, number, own in ends:
                if (known := best[end]) is None or own + score > known[0]:
                    best[end] = own + score, at, number
        end = len(word)
        while end and (node := best[end]):
            rows.append((node[1], end, node[2]))
            end = node[1]
        for is_unknown, group in groupby(reversed(rows), lambda row: row[2] == unknown):
            pieces = list(group)
            start, end = pieces[0][0], pieces[-1][1]
            yield from self._unknown(word[start:end]) if is_unknown else (number for *_, number in pieces)

    def _unknown(self, run: str) -> list[int]:
        if run in self._ids or not self._rules.by_bytes:
            return [self._ids.get(run, self._rules.unknown)]
        ids = [self._ids.get(f"<0x{byte:02X}>", -1) for byte in run.encode()]
        return [self._rules.unknown] if -1 in ids else ids


def apply(step: Step, text: str) -> str | None:
    """Apply a step of Unigram's normalizer; return None if it needs more of Unicode."""
    new = "" if step.kind == _cpu.MAPPED else step.new.decode()
    if step.kind == _cpu.MAPPED:
        return map_graphemes(step, text)
    if step.kind in (_cpu.COMPOSED, _cpu.DECOMPOSED):
        return None if any(changes(ord(c), step.kind == _cpu.DECOMPOSED) for c in text) else text
    if step.kind == _cpu.LOWERED:
        return "".join(map(lower, text))
    if step.kind == _cpu.UNMARKED:
        return "".join(c for c in text if not mark(ord(c)) & _cpu.ACCENT)
    if step.kind == _cpu.REPLACED:
        return text.replace(step.old.decode(), new)
    if step.kind == _cpu.JOINED:
        return re.sub(" {2,}", lambda _: new, text)
    text = text.lstrip(WHITE_SPACE) if step.left else text
    return text.rstrip(WHITE_SPACE) if step.right else text


def changes(code: int, decomposed: bool) -> bool:
    """Return whether a form of Unicode may change a character or its place."""
    if code < 128:
        return False
    return bool(mark(code) & _cpu.CHANGES or (decomposed and (character(code)[0] & (SPLITS | MARK) or is_hangul(code))))


def is_hangul(code: int) -> bool:
    """Return whether a character is a syllable or a part of one."""
    return code in range(0x1100, 0x1200) or code in range(0xA960, 0xA980) or code in range(HANGUL.start, 0xD800)


def map_graphemes(step: Step, text: str) -> str | None:
    """Replace graphemes of few bytes whole, by the shortest key that begins them, and others by character."""
    out, graphemes = "", list(re.findall("\r\n|.", text, re.DOTALL))
    joined: list[str] = []
    for grapheme in graphemes:
        code = ord(grapheme[0])
        if mark(code) & _cpu.TAKES:
            return None
        if mark(code) & _cpu.JOINS and joined and not mark(ord(joined[-1][0])) & _cpu.BREAKS:
            joined[-1] += grapheme
        else:
            joined.append(grapheme)
    for before, grapheme in zip(["\0", *joined], joined, strict=False):
        short = len(grapheme.encode()) < SHORT
        if short and len(grapheme) > 1 and may_join(before[-1], grapheme):
            return None
        whole = find(step, grapheme) if short else None
        out += "".join(c if (new := find(step, c)) is None else new for c in grapheme) if whole is None else whole
    return out


def may_join(before: str, grapheme: str) -> bool:
    """Return whether a short grapheme may be part of a longer one by rules for emoji, Hangul or Indic syllables."""
    pictured, code = grapheme[0] in "\u00a9\u00ae", ord(before)
    joins = is_hangul(code) or (mark(code) & _cpu.JOINS and len(before.encode()) == 3)
    wide = pictured or len(grapheme[0].encode()) == 3
    return bool((pictured and grapheme[-1] == "\u200d") or (wide and joins))


def find(step: Step, text: str) -> str | None:
    """Return the replacement of the shortest key that begins ``text`` in a double array of UTF-8 bytes, or None."""
    units = read_units(step.old)
    at, unit = 0, units[0]
    at ^= unit >> 10 << ((unit & 0x200) >> 6)
    for byte in text.encode():
        at ^= byte
        unit = units[at]
        if not byte or unit & 0x800000FF != byte:
            return None
        at ^= unit >> 10 << ((unit & 0x200) >> 6)
        if unit & 0x100:
            start = units[at] & 0x7FFFFFFF
            return step.new[start : step.new.index(b"\0", start)].decode()
    return None


@cache
def read_units(array: bytes) -> list[int]:
    """Return the units of a double array."""
    return [int(unit) for unit in np.frombuffer(array, "<u4")]


def read_score(number: str) -> float:
    """Read a JSON number as serde_json does: digits as a float, then times or by a power of ten, rounded twice."""
    digits, _, power = number.lower().partition("e")
    whole, _, part = digits.removeprefix("-").partition(".")
    shift = int(power or 0) - len(part)
    value = float(int(whole + part))
    value = value * float(f"1e{shift}") if shift >= 0 else value / float(f"1e{-shift}")
    return -value if digits.startswith("-") else value
