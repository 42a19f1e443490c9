"""Definitions in NumPy that only tests read: WordPiece, Unigram, ``kernels.embed`` and ``_cpu.pack``."""

from __future__ import annotations

import re
from itertools import groupby

import numpy as np

from fastflow.kernels._cpu import CONTROL, FENCE, IDEOGRAPH, PUNCTUATION, WHITE, WORD, character
from fastflow.kernels.flow import execute
from fastflow.kernels.stored import STORED, quantise, raw, to_bfloat16, widen
from fastflow.kernels.tokens import WHITE_SPACE, Token

PREFIX = "##"  # of a piece that continues a word
SPACE = "\u2581"


class Tokenizer:
    """The frame of a tokenizer."""

    def tokenize(self, texts, limit, special=True, threads=None):
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
    """WordPiece with BERT's normalizer, as ``tokens.WordPiece``."""

    def __init__(self, vocabulary, rules):
        self._ids, self._rules, self._whole = vocabulary, rules, dict(rules.whole)
        self._unknown = rules.check(lambda piece: None if piece.startswith(PREFIX) else vocabulary.get(piece))

    def _text(self, text):
        yield from _between(text, [Token(*token) for token in self._rules.added], self._part)

    def _part(self, text):
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

    def _words(self, text):
        for word in split(text):
            yield from self._word(word)

    def _word(self, word):
        pieces, start = [], 0
        while len(word) <= self._rules.longest and start < len(word):
            prefix = PREFIX if start else ""
            ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in self._ids)
            if (end := next(ends, 0)) == 0:
                break
            pieces.append(self._ids[prefix + word[start:end]])
            start = end
        return pieces if start == len(word) else [self._unknown]


def normalize(text, rules):
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


def strip_accents(text):
    """Decompose characters, drop accents, and order other marks canonically, but not across a FENCE."""
    found = []  # canonical class, character
    for c in text:
        found += [(character(code)[1], chr(code)) for code in character(ord(c))[3]]
        found += [(0, "")] if flags(c) & FENCE else []
    out = []
    for order, c in found:
        at = len(out)
        while order and at and out[at - 1][0] > order:
            at -= 1
        out.insert(at, (order, c))
    return "".join(c for _, c in out)


def lower(c):
    """Return the lower case of a character; U+0130 has two characters."""
    return "i\u0307" if c == "\u0130" else chr(character(ord(c))[2])


def split(text):
    """Yield the words between spaces, and each punctuation mark."""
    word = ""
    for c in text:
        if flags(c) & (WHITE | PUNCTUATION):
            yield from filter(None, (word, "" if flags(c) & WHITE else c))
            word = ""
        else:
            word += c
    yield from filter(None, (word,))


def flags(c):
    return int(character(ord(c))[0])


class Unigram(Tokenizer):
    """Unigram with SentencePiece's normalizer, as ``tokens.Unigram``; ``normalize``: all steps."""

    def __init__(self, pieces, rules, normalize):
        rules.check()
        self._rules, self._normalize = rules, normalize
        self._ids = {piece: i for i, (piece, _) in enumerate(pieces)}
        self._scores = [score for _, score in pieces]
        self._longest = max(len(piece) for piece, _ in pieces)
        self._added = [token for token in rules.added if not token.later]
        self._later = [each._replace(content=normalize(each.content)) for each in rules.added if each.later]

    def _text(self, text):
        yield from _between(text, self._added, self._part)

    def _part(self, text):
        yield from _between(self._normalize(text), self._later, self._words)

    def _words(self, text):
        for part in re.split(f"[{WHITE_SPACE}]+", text) if self._rules.spaced else [text]:
            marked = part.replace(" ", SPACE)
            marked = SPACE + marked if marked and not marked.startswith(SPACE) else marked
            for word in re.findall(f"{SPACE}?[^{SPACE}]*", marked):
                yield from self._word(word)

    def _word(self, word):
        """Yield the ids of the pieces with the largest sum of scores; unknown characters next to each other are one."""
        unknown, rows, end = self._rules.unknown, [], len(word)
        best = [(0.0, 0, unknown)]  # score, start and id of the last piece, by its end
        for stop in range(1, end + 1):
            found = []
            for start in range(max(0, stop - self._longest), stop):
                number = self._ids.get(word[start:stop])
                if number is not None:
                    found.append((best[start][0] + self._scores[number], start, number))
                elif start == stop - 1:
                    found.append((best[start][0] + min(self._scores) - 10, start, unknown))
            best.append(max(found, key=lambda row: row[0]))
        while end:
            _, start, number = best[end]
            rows.append((start, end, number))
            end = start
        for is_unknown, group in groupby(reversed(rows), lambda row: row[2] == unknown):
            pieces = list(group)
            run = word[pieces[0][0] : pieces[-1][1]]
            yield from [self._ids.get(run, unknown)] if is_unknown else [number for *_, number in pieces]


def _between(text, added, inner):
    """Yield the ids of ``added`` tokens, the longest at a place, and ``inner``'s ids of the text between."""
    known, start = {token.content: token for token in added}, 0
    for match in re.finditer("|".join(map(re.escape, sorted(known, key=len, reverse=True))) or "(?!)", text):
        token = known[match[0]]
        yield from inner(text[start : match.start()].rstrip(WHITE_SPACE if token.takes else ""))
        yield token.id
        start = match.end()
    yield from inner(text[start:])


def embed_texts(words, pool, limit, plans, texts, normalize, truncate):
    """Define ``embed.Texts`` by ``pool``, ids and offsets -> (B, D): the pooled vectors, the embeddings, the cuts."""
    ids, offsets, cut = words.tokenize(texts, limit)
    pooled = z = pool(ids, offsets)
    for plan in plans:
        z = execute(plan, z)
    z = z[:, :truncate]
    return pooled, z / np.linalg.norm(z, axis=1, keepdims=True) if normalize else z, len(cut)


def pack(matrices, memory, panel):
    """Define ``_cpu.pack``: fill ``memory`` (uint8) with ``matrices`` in panels of ``panel`` rows."""
    for m in matrices:
        parts = [part.view(STORED[m.stored]).reshape(m.part_rows, m.columns) for part in m.parts]
        stacked = np.concatenate([widen(part).astype(np.float32) for part in parts])
        stacked[: m.part_rows] *= np.float32(m.factor)
        values = np.zeros((len(m.rows), m.groups, m.padded), np.float32)
        used = m.rows >= 0
        values[used, :, : m.columns // m.groups] = stacked[m.rows[used]].reshape(-1, m.groups, m.columns // m.groups)
        packed = values.reshape(len(m.rows), -1)
        if m.by is not None:
            packed[:, : m.columns] *= m.by
        if m.lanes == 2:
            packed = to_bfloat16(packed)
        elif m.lanes == 4:
            packed, scale = quantise(packed)
            sums = packed.sum(axis=1, dtype=np.int32)
            memory[m.scale : m.scale + scale.nbytes] = raw(scale)
            memory[m.shift : m.shift + sums.nbytes] = raw(-m.zero * sums)
        packed = np.pad(packed, ((0, 0), (0, m.spare * m.lanes)))
        steps = packed.shape[1] // m.lanes
        panels = packed.reshape(-1, panel, steps // m.together, m.together * m.lanes).swapaxes(1, 2)
        memory[m.panels : m.panels + packed.nbytes] = raw(np.ascontiguousarray(panels))
