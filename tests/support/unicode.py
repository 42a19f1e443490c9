"""Texts of all scripts, by chance: what a tokenizer's normalizer treats in different ways lies close together."""

from __future__ import annotations

from random import Random

EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 99, 100, 101, 102)  # of words, about vectors and BERT's longest
# first and last code points of scripts, marks, symbols, controls and private use
BLOCKS = [
    *((0x20, 0x7E), (0, 0x1F), (0x7F, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F)),
    *((0x530, 0x5FF), (0x600, 0x6FF), (0x700, 0x8FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1000, 0x11FF)),
    *((0x1200, 0x17FF), (0x1800, 0x1CFF), (0x1D00, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x2BFF)),
    *((0x2C00, 0x2FFF), (0x3000, 0x33FF), (0x3400, 0x3500), (0x4E00, 0x4F00), (0x9F00, 0xA6FF), (0xA700, 0xABFF)),
    *((0xAC00, 0xD7FF), (0xE000, 0xE010), (0xF900, 0xFAFF), (0xFB00, 0xFFFF), (0x10000, 0x107FF), (0x10800, 0x11FFF)),
    *((0x1D100, 0x1D1FF), (0x1D400, 0x1D7FF), (0x1E000, 0x1EFFF), (0x1F000, 0x1FAFF), (0x20000, 0x20010)),
    *((0x2A6D0, 0x2A710), (0x2B730, 0x2B930), (0x2CEA0, 0x2CEC0), (0x2F800, 0x2FA1F), (0xE0000, 0xE01FF)),
    (0x10FFF0, 0x10FFFF),
]
# marks that are kept and put into canonical order, marks that no other moves across, and letters that decompose
ORDERED = (
    "\u302e\u302f\u1b44\u1baa\u08d4\u0334\u0345\U0001d165\U0001d16d\U0001d172\U0001e944\U00011446\u1dfb\u0f71\u0f72"
)
ODD = "İıſKÅẞǅΣςﬁﷺ가각힣ᄀ\u0340\u0344\u0f73\u0f81\u2260\u1fef\u037e\u2000\u3000\u180e\u200b\ufeff\ufffd\0\x85\x0b"
PIECES = (
    "[SEP]",
    "[CLS]",
    "[MASK]",
    "[PAD]",
    "[UNK]",
    "[MA",
    "SK]",
    "[",
    "<mask>",
    "<s>",
    "##s",
    "##",
    "unaffable",
    "n't",
)


def word(rng: Random) -> str:
    """Characters of one block, or of those that are treated in odd ways."""
    size = rng.choice(EDGES) if rng.random() < 0.15 else rng.randint(1, 12)
    draw = rng.random()
    if draw < 0.1:
        return rng.choice(PIECES)
    if draw < 0.2:
        return "".join(rng.choices(ORDERED + ODD + "aA", k=min(size, 20)))
    if draw < 0.3:
        return rng.choice("aAéÉ中가\u0301😀\u302e") * size
    first, last = rng.choice(BLOCKS)
    points = rng.choices(range(first, last + 1), k=size)
    return "".join(chr(i) for i in points if not 0xD800 <= i < 0xE000)


def mixed(rng: Random, words: int = 24) -> str:
    return "".join(
        word(rng) + rng.choice((" ", " ", "", "\t", "\u3000", "-", "\n")) for _ in range(rng.randint(0, words))
    )


def changed(text: str, rng: Random) -> str:
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(text))
        text = text[:at] + word(rng) + text[at + rng.choice((0, 0, 1)) :]
    return rng.choice((str, str, str.upper, str.swapcase))(text)
