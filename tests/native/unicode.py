"""Make the Unicode tables of the native tokenizers by asking ``tokenizers`` about every code point.

Its rules come from libraries of several Unicode versions, so no single version gives the same classes.

    python tests/native/unicode.py           # compares unicode.h and marks.h of kernels/c/tokens with the answers
    python tests/native/unicode.py --write   # writes them
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.charsmaps import charsmap  # noqa: E402

HEADER, MARKS = ROOT / "kernels/c/tokens/unicode.h", ROOT / "kernels/c/tokens/marks.h"
POINTS = [i for i in range(0x110000) if not 0xD800 <= i < 0xE000]
SPLITS, WORD = 32, 128  # as in kernels/c/tokens/tokens.h; the answers below are in the order of its flags
HANGUL = range(0xAC00, 0xD7A4)  # decomposed by arithmetic
DOTTED = 0x130  # the only character with two lower-case characters
UNIT, BLOCK = 16, 64  # code points in a unit, units in a block: the smallest tables of those tried
SEVERAL = 0x110000  # in TO: numbers from here on are places in MORE, of a count and code points


class Tables(NamedTuple):
    """The arrays of the header."""

    rows: list[tuple[int, int, int]]  # flags, canonical class of kept accents, lower - c
    blocks: list[int]
    units: list[int]
    classes: list[int]
    split: list[int]  # code points that decompose, ascending
    to: list[int]
    more: list[int]


def steps() -> dict[str, Callable[[str], str]]:
    """Return each step of BertNormalizer as a function."""
    names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    none = dict.fromkeys(names, False)
    return {name: normalizers.BertNormalizer(**(none | {name: True})).normalize_str for name in names}


def find_orders(strip: Callable[[str], str]) -> tuple[dict[int, int], set[int]]:
    """Return the classes of marks that ``strip`` keeps, and the stripped characters that no mark moves across."""
    nfd = normalizers.NFD().normalize_str
    first, last = "\u0334", "\u0345"  # of the classes 1 and 240
    moving = [c for c in map(chr, POINTS) if nfd(c) == c and (nfd(last + c) == c + last or nfd(c + first) == first + c)]
    known: dict[int, str] = {}
    for c in moving:
        known.setdefault(unicodedata.combining(c), c)
    known.pop(0, None)  # characters that this Python does not know
    kept = {ord(c): min(k for k in known if nfd(c + known[k]) == c + known[k]) for c in moving if strip(c) == c}
    low, high = chr(min(kept, key=kept.__getitem__)), chr(max(kept, key=kept.__getitem__))
    fences = {i for i in POINTS if not strip(chr(i)) and strip(high + chr(i) + low) == high + low}
    return kept, fences


def find_words() -> set[int]:
    """Return the code points that continue a word: an added single word next to them is not found."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.add_tokens([tokenizers.AddedToken("q", single_word=True)])
    found = []
    for text in ("{}q", "q{}"):
        alone = tokenizer.encode_batch_fast([text.format(chr(i)) for i in POINTS])
        found.append({i for i, encoding in zip(POINTS, alone, strict=True) if 1 not in encoding.ids})
    assert found[0] == found[1]
    return found[0]


def cut_pages(values: Sequence[int], size: int) -> tuple[list[int], list[int]]:
    """Return (numbers of pages, the different pages joined) of ``values`` in pages of ``size``."""
    pages: dict[tuple[int, ...], int] = {}
    numbers = [pages.setdefault(tuple(values[i : i + size]), len(pages)) for i in range(0, len(values), size)]
    return numbers, [value for page in pages for value in page]


def probe() -> Tables:
    """Ask the library about every code point; raises AssertionError for an answer that the tables cannot hold."""
    clean, ideographs, strip, lower = steps().values()
    words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    (order, fences), word = find_orders(strip), find_words()
    rows: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
    numbers, split, to, more = [0] * 0x110000, [], [], []
    for i in POINTS:
        c = chr(i)
        around, stripped, lowered = len(words(f"a{c}b")), strip(c), lower(c)
        answers = (
            not clean(c), around == 2, around == 3, ideographs(c) == f" {c} ", not stripped,
            stripped not in ("", c), i in fences, i in word,
        )  # fmt: skip
        if i == DOTTED:
            assert lowered == "i\u0307"
            lowered = c
        flags = sum(answer << bit for bit, answer in enumerate(answers))
        numbers[i] = rows.setdefault((flags, order.get(i, 0), ord(lowered) - i), len(rows))
        if flags & SPLITS and i not in HANGUL:
            split.append(i)
            to.append(ord(stripped) if len(stripped) == 1 else SEVERAL + len(more))
            more += [len(stripped), *map(ord, stripped)] if len(stripped) > 1 else []
    assert all(flags & WORD for flags, number, _ in rows if number), "a mark that moves continues a word"
    units, classes = cut_pages(numbers, UNIT)
    blocks, units = cut_pages(units, BLOCK)
    assert len(rows) < 256
    return Tables(list(rows), blocks, units, classes, split, to, more)


def format_lines(values: Sequence[object], indent: str) -> str:
    """``values`` as lines of at most 120 characters."""
    lines, line = [], indent
    for value in values:
        piece = f"{value},"
        if len(line) + len(piece) + 1 > 120:
            lines.append(line.rstrip())
            line = indent
        line += f"{piece} "
    return "\n".join([*lines, line.rstrip()])


EXPLANATION = f"""\
/* Unicode as tokenizers {tokenizers.__version__} sees it, by tests/native/unicode.py: do not edit.
   Code point c has the row classes[16 units[64 blocks[c >> 10] + (c >> 4 & 63)] + (c & 15)]: its flags, its canonical
   class if it is a mark that is kept, and its lower case less c. The array split has the code points that decompose,
   ascending; each becomes the one in the array to, or from FF_SEVERAL on the several in the array more: at
   to - FF_SEVERAL their count, then they follow. The flags are in tokens.h. */
#ifndef FASTFLOW_UNICODE_H
#define FASTFLOW_UNICODE_H

#include <stdint.h>
"""


def header(t: Tables) -> str:
    """The text of the file."""
    out = [EXPLANATION, f"enum {{ FF_SEVERAL = {SEVERAL}, FF_SPLITTING = {len(t.split)} }};", ""]
    out += ["static const struct { uint8_t flags, order; int32_t lower; } unicode_rows[] = {"]
    out += [format_lines([f"{{{a}, {b}, {c}}}" for a, b, c in t.rows], "    "), "};"]
    kinds = {"blocks": "uint8_t", "units": "uint16_t", "classes": "uint8_t"}
    for name, kind in (kinds | dict.fromkeys(("split", "to", "more"), "int32_t")).items():
        out += [f"static const {kind} unicode_{name}[] = {{", format_lines(getattr(t, name), "    "), "};"]
    return "\n".join([*out, "", "#endif", ""])


MARKS_EXPLANATION = f"""\
/* Unicode as tokenizers {tokenizers.__version__} sees it, by tests/native/unicode.py: do not edit.
   Runs of code points: the code points before it of no kind, its code points, and their kind, a sum of the flags
   in normalize.h. */
#include <stdint.h>

static const uint16_t mark_runs[][3] = {{
"""


def find_marks() -> dict[int, int]:
    """Return the kinds of code points, by a map of one character: it replaces a whole grapheme of under six bytes."""
    letter, accent = (normalizers.Precompiled(charsmap({c: "X"})).normalize_str for c in "a\u0301")
    kinds = {}
    for i in POINTS:
        c = chr(i)
        joins, takes = letter(f"a{c}") == "X", letter(f"{c}a\u0301").endswith("X\u0301")
        breaks = accent(f"{c}\u0301\u0302") == f"{c}X"  # the accents are a grapheme
        kinds[i] = joins + 2 * breaks + 4 * takes
    return kinds


def marks_header() -> str:
    """The text of the file."""
    runs, end = [], 0
    for kind, group in groupby(sorted(find_marks().items()), lambda item: item[1]):
        codes = [i for i, _ in group]
        if kind:
            assert codes[-1] - codes[0] == len(codes) - 1
            gap = codes[0] - end
            runs += [f"{{{min(gap - i, 65535)}, 0, 0}}" for i in range(0, gap - 65535, 65535)]
            runs.append(f"{{{gap if gap <= 65535 else (gap - 1) % 65535 + 1}, {len(codes)}, {kind}}}")
            end = codes[-1] + 1
    return MARKS_EXPLANATION + format_lines(runs, "    ") + "\n};\n"


def main(arguments: Sequence[str]) -> int:
    """Write the headers, or compare them: 1 if one differs."""
    found = {HEADER: header(probe()), MARKS: marks_header()}
    for path, text in found.items():
        if "--write" in arguments:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            print(f"{path} differs from what tokenizers {tokenizers.__version__} answers")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
