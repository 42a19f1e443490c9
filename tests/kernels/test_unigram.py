"""Unigram: the definition and the compiled body give the ids of the tokenizers library."""

from __future__ import annotations

import json
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from fastflow.kernels import _cpu
from fastflow.kernels.tokens import NormalizerStep, Unigram, UnigramRules, Vocabulary
from fastflow.model.tokenizer.native import read_unigram

from support import definitions as reference
from support.charsmaps import charsmap
from support.unicode import EDGES
from support.unigrams import (
    CLUSTERS,
    MARKED,
    RIGHT,
    RULES,
    SENTENCES,
    SPACES,
    SPLIT,
    as_bytes,
    draw,
    make_tree,
    make_xlm,
    metaspace,
    precompiled,
    sequence,
    token,
    train,
)

LOWER, UNMARKED, NFKD = {"type": "Lowercase"}, {"type": "StripAccents"}, {"type": "NFKD"}


def quote(pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": '"'}


ODD_PIECES = [
    *(("<unk>", 0.0), ("<s>", -1.0), ("</s>", -2.0), ("a", 3.0), ("aa", 5.5), ("aa", 6.0), ("b", -0.1), ("ab", 2.9)),
    *(("", -3.0), ("\u2603\u2603", 2.0), ("\u2581", -5.0), ("\u2581\u2581", -1.0), ("中" * 20, 90.0), ("x" * 255, 1e3)),
]
TREES = {
    **{rule: partial(make_xlm, rule) for rule in RULES},
    "t5": lambda: make_xlm("nmt_nfkc", normalizer=sequence(precompiled("nmt_nfkc"), MARKED)),
    "new": lambda: make_tree(train("nfkc")[0], sequence(precompiled("nfkc"), RIGHT, MARKED), metaspace()),
    "no map": lambda: make_tree(train("identity")[0], None, metaspace()),
    "albert": lambda: make_tree(
        train("nmt_nfkc")[0],
        sequence(quote("``"), quote("''"), NFKD, UNMARKED, LOWER, precompiled("nmt_nfkc"), SPACES),
        sequence(SPLIT, metaspace()),
        added=[token("<mask>", len(train("nmt_nfkc")[0]), lstrip=True, normalized=True)],
    ),
    "nfkc": lambda: make_tree(
        train("nfkc")[0],
        sequence({"type": "NFKC"}, LOWER, RIGHT),
        metaspace(),
        added=[token("<s>", 1), token("<mask>", len(train("nfkc")[0]), lstrip=True)],
    ),
    "later": lambda: make_tree(
        train("nmt_nfkc_cf")[0],
        sequence(precompiled("nmt_nfkc_cf"), SPACES),
        metaspace(),
        added=[token("<s>", 1), token("<MASK>", len(train("nmt_nfkc_cf")[0]), lstrip=True, normalized=True)],
    ),
    "odd pieces": lambda: make_tree(ODD_PIECES, None, sequence(SPLIT, metaspace())),
    "other unknown": lambda: make_tree(ODD_PIECES, None, metaspace(), unknown=3),
}


class Three:
    """A tokenizer of the library, the compiled one and the definition."""

    def __init__(self, name: str) -> None:
        data = as_bytes(TREES[name]())
        self.library = tokenizers.Tokenizer.from_buffer(data)
        tree = json.loads(data)
        vocabulary = Vocabulary(data, data.index(b'"vocab": ') + len(b'"vocab": '))
        pieces = [(piece, score) for (piece, _), score in zip(tree["model"]["vocab"], vocabulary.scores, strict=True)]
        tree["model"]["vocab"] = []
        rules, normalizer = read_unigram(tree, False)
        self.normalizer = _cpu.Normalizer(list(rules.steps))
        self.ours = {
            "cpu": Unigram(vocabulary, rules, normalizer),
            "reference": reference.Unigram(pieces, rules, normalizer),
        }


made = cache(Three)


def rows(found: Any) -> list[list[int]]:
    return [found[0][a:b].tolist() for a, b in zip(found[1], found[1][1:], strict=False)]


def check(body: str, name: str, texts: list[str], limit: int = 64, **options: Any) -> None:
    """Compare ids and cuts of ``texts`` with the library's."""
    three = made(name)
    three.library.enable_truncation(limit)
    wanted, found = three.library.encode_batch_fast(texts), three.ours[body].tokenize(texts, limit, **options)
    assert [each.dtype for each in found] == [np.int32, np.int64, np.int64]
    assert list(zip(texts, rows(found), strict=True)) == [(t, e.ids) for t, e in zip(texts, wanted, strict=True)]
    assert found[2].tolist() == [i for i, each in enumerate(wanted) if each.overflowing]


BODIES = pytest.mark.parametrize("body", ["cpu", "reference"])
NAMES = pytest.mark.parametrize("name", TREES)


@BODIES
@NAMES
@settings(deadline=None, derandomize=True, max_examples=20)
@given(seed=st.integers(0, 2**32), texts=st.lists(st.text(max_size=20), max_size=3), limit=st.integers(2, 40))
def test_ids_and_cuts_of_mixed_scripts(body, name, seed, texts, limit):
    rng = Random(seed)
    check(body, name, texts + [draw(rng, 6) for _ in range(10 if body == "cpu" else 3)], limit)


@BODIES
@NAMES
def test_edges(body, name):
    texts = ["", " ", "  ", "\t \n", "\0", "\x7f", *CLUSTERS, *SENTENCES]
    texts += [f"a {cluster}{other} b" for cluster in CLUSTERS[:18] for other in CLUSTERS[-16::3]]
    if body == "cpu":
        texts += [letter * n for n in EDGES for letter in ("a", "é", "中", "😀", "e\u0301", "ab ", " ", "\u2581", "☃")]
    check(body, name, texts)


@pytest.mark.slow
@NAMES
def test_long_words_and_texts(name):
    """In parts that are normalized apart, and with more bytes in a word than the buffers have."""
    texts = [
        "a" * 100_000,
        "中" * 40_000,
        "ab " * 30_000,
        "é☃" * 20_000,
        "x" * 5000 + "  " * 3000 + "<mask>" + "y" * 5000,
    ]
    texts += [" ".join(SENTENCES * 40), "".join(SENTENCES * 40), " a<s>  " * 3000]
    for limit in (16, 10**6):
        check("cpu", name, texts, limit)


@pytest.mark.slow
@NAMES
def test_threads_and_every_limit(name):
    rng = Random(5)
    texts = [draw(rng) for _ in range(3000)]
    for threads in (1, 2, 5):
        check("cpu", name, texts, 30, threads=threads)
    for limit in range(2, 12):
        check("cpu", name, texts[:100], limit)
    with pytest.raises(ValueError, match="fewer than those at the ends"):
        made(name).ours["cpu"].tokenize(texts, 1)


@BODIES
@pytest.mark.parametrize("odd", ["\ud800", "a\udfffb", "😀\ud83d", "a " * 100 + "\udc00", "﷽\u0600\ud800"])
def test_half_a_surrogate_pair_is_found_after_a_cut_too(body, odd):
    ours = made("nfkc").ours[body]
    with pytest.raises(ValueError, match="text 1 holds half a surrogate pair"):
        ours.tokenize(["a", odd, "b"], 4)
    with pytest.raises(TypeError):
        ours.tokenize(["a", b"b"], 4)


CODES = [*range(0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE1000), *range(0xEFF00, 0x110000, 16)]
AROUND = "{} a{} {}\u0301 {}\u0344\u0301 é{}\u0301 か{}\u0301 \u0600{} \u094d{}\u0301 ©\u200d{} {}{} \u1100{}\u0323"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "later"])
def test_every_character_is_normalized_as_by_the_library(name):
    """Or is left to it; and few are."""
    three, asked = made(name), 0
    for pattern in AROUND.split()[: None if name == "t5" else 5]:
        texts = [pattern.replace("{}", chr(i)) for i in CODES]
        found = [three.normalizer.normalize(text) for text in texts]
        wanted = [three.library.normalizer.normalize_str(text) for text in texts]
        assert [(t, a) for t, a, b in zip(texts, found, wanted, strict=True) if a not in (None, b)] == []
        asked += found.count(None) if pattern == "{}" else 0
    assert asked < 30


PAIRS = ["a=", "b=xyz", "©=(c)", "ab=no", "\r=R", "k\u0301=K", "क=ka", "\u1100=g", "中文=zw", "é=é\0rest"]
KEYS = dict(pair.split("=") for pair in PAIRS)


def test_a_map_of_characters_of_our_own():
    """Its shortest key replaces a whole short grapheme; a text in it ends at a NUL."""
    data = charsmap(KEYS)
    library, size = normalizers.Precompiled(data), 4 + int.from_bytes(data[:4], "little")
    normalizer = _cpu.Normalizer([NormalizerStep(_cpu.MAPPED, data[4:size], data[size:] + b"\0")])
    rng = Random(2)
    letters = [*KEYS, *KEYS, *"\u0301\u200d\ufe0f™ष\u094d\u1161\n\u200b\u0600\U000e0100"]
    asked = 0
    for _ in range(3000):
        text = "".join(rng.choices(letters, k=rng.randint(1, 6)))
        found = normalizer.normalize(text)
        assert found in (None, library.normalize_str(text)), text
        asked += found is None
    assert 300 < asked < 1500


@pytest.mark.parametrize("units", [b"", b"\xff" * 4, b"\0\x05\0\0" * 64, bytes(range(256)) * 4])
def test_a_map_that_leads_out_of_itself_is_left_to_the_library(units):
    if not units:
        with pytest.raises(ValueError, match="a map of characters has no units"):
            _cpu.Normalizer([NormalizerStep(_cpu.MAPPED, units, b"\0")])
        return
    normalizer = _cpu.Normalizer([NormalizerStep(_cpu.MAPPED, units, "é".encode() + b"\0")])
    for i in range(0x300):
        assert normalizer.normalize(chr(i)) in (None, chr(i), "é", "")


NUMBERS = (
    *("0", "-0", "-0.0", "3", "-3", "0.1", "1e5", "1E-5", "1.25e+3", "-7.4715776443481445", "-3.4635426998138428"),
    *("9007199254740993", "-8.5e-22", "0.30000000000000004", "-12.345678901234567", "1e31", "1844674407370955160"),
    "-0.000001234567890123",
)


def test_scores_are_read_as_the_library_reads_them():
    """It rounds twice: a third of SentencePiece's scores differ from the nearest double."""
    rng = Random(4)
    numbers = [*NUMBERS, *(repr(-20 * rng.random()) for _ in range(2000))]
    data = ("[" + ",".join(f'["p{i}", {number}]' for i, number in enumerate(numbers)) + "]").encode()
    tree = json.dumps(make_tree([])).replace('"vocab": []', f'"vocab": {data.decode()}')
    wanted = json.loads(tokenizers.Tokenizer.from_str(tree).to_str())["model"]["vocab"]
    found = Vocabulary(data).scores
    assert found == [score for _, score in wanted]
    assert sum(score != float(number) for score, number in zip(found, numbers, strict=True)) > 100


def test_a_large_vocabulary_has_every_piece_and_no_other():
    rng = Random(6)
    known = {"".join(rng.choices("aeiou中é\u2581😀xyz", k=rng.randint(1, 9))): i for i in range(60_000)}
    data = json.dumps([[piece, -float(i)] for i, piece in enumerate(known)]).encode()
    found = Vocabulary(data)
    assert sum(found.lengths) == len(known)
    assert all(found.get(piece) == i for i, piece in enumerate(known))
    others = {piece[:-1] + "q" for piece in known} | {piece + "a" for piece in known} | {piece[1:] for piece in known}
    assert all(found.get(piece) is None for piece in others - known.keys() if piece)


def test_a_library_that_fails_and_one_that_writes_more_than_it_may():
    """Errors come through; more ids than there is room for are no silent cut."""
    rules = UnigramRules((NormalizerStep(_cpu.KEPT),), False, 0, (), (), ())
    words = Vocabulary(b'[["<unk>",0],["a",0],["b",-1]]')
    with pytest.raises(ZeroDivisionError):
        Unigram(words, rules, lambda text: 1 / 0).tokenize(["b", "é"], 9)
    ids, offsets, cut = Unigram(words, rules, lambda text: "ab" * 9).tokenize(["b", "é", "a", "éb"], 9)
    assert (offsets.tolist(), cut.tolist()) == ([0, 2, 11, 13, 22], [1, 3])
    assert ids[2:11].tolist() == ids[13:].tolist() == [0, *[1, 2] * 4]
    with pytest.raises(MemoryError):
        Unigram(words, rules, lambda text: "ab" * 99).tokenize(["b", "é"], 100)
