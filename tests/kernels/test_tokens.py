"""WordPiece: the definition and the compiled body give the ids of the tokenizers library."""

from __future__ import annotations

import json
import runpy
from functools import cache
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.kernels import tokens as compiled
from fastflow.kernels.tokens import Vocabulary, WordPieceRules

from support import definitions as reference
from support.places import TESTS
from support.unicode import EDGES, mixed

SPECIAL = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "[MA]": 5}
WORDS = "a ab abcdefgh abcdefghi b un ##aff ##able ##a ##b ##c the é e i İ [ ] # ## - 中 ñ ##ñ か ##か"
MARKS = "\u1112 ##\u1161 ##\u11ab i\u0307 ##\u302e ##\u302f ##\u1b44 ##\U0001d165 ##ん"
LONG = ["w" * 15, "w" * 16, "w" * 17, "##" + "w" * 17, "w" * 40]
LETTERS = "##😀 😀 k å a\u030a ß ss \0 A É"
KNOWN = [*WORDS.split(), *MARKS.split(), *LONG, *LETTERS.split()]
PIECES = SPECIAL | {piece: i for i, piece in enumerate(dict.fromkeys(KNOWN), len(SPECIAL))}
BERT = WordPieceRules(True, True, True, True, False, "[UNK]", 100, tuple(SPECIAL.items()), (2,), (3,))
STEPS = list(product((True, False), repeat=5))


@cache
def library(rules: WordPieceRules) -> tokenizers.Tokenizer:
    """The tokenizer of the library with these rules."""
    from tokenizers import models, normalizers, pre_tokenizers, processors

    out = tokenizers.Tokenizer(models.WordPiece(PIECES, unk_token="[UNK]", max_input_chars_per_word=rules.longest))
    out.normalizer = normalizers.BertNormalizer(rules.clean, rules.ideographs, rules.strip, rules.lower)
    if rules.lower_first:
        out.normalizer = normalizers.Sequence([normalizers.Lowercase(), out.normalizer])
    out.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    out.add_special_tokens([name for name, _ in rules.added])
    out.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return out


@cache
def ours(module: Any, rules: WordPieceRules) -> Any:
    pieces = PIECES if module is reference else Vocabulary(json.dumps(PIECES).encode())
    return module.WordPiece(pieces, rules)


WHOLE = ("zebra", "ab1", "abab", "x2y", "q", "zz", "ñandú", "straße", "が", "aé", "w" * 99, "Zebra")


@cache
def with_words(rules: WordPieceRules) -> tuple[tokenizers.Tokenizer, WordPieceRules]:
    """The library's tokenizer with the normalized words of WHOLE, and the rules with their ids."""
    out = library.__wrapped__(rules)
    words = [word for word in WHOLE if rules.is_word(word) and len(word) <= rules.longest]
    out.add_tokens([tokenizers.AddedToken(word, single_word=True, normalized=True) for word in words])
    return out, rules._replace(whole=tuple((word, out.token_to_id(word)) for word in words))


def rows(found: tuple[np.ndarray, np.ndarray, np.ndarray]) -> list[list[int]]:
    return [found[0][a:b].tolist() for a, b in zip(found[1], found[1][1:], strict=False)]


def check(module: Any, rules: WordPieceRules, texts: list[str], limit: int = 64, **options: Any) -> None:
    """Compare ids, offsets and cuts of ``texts`` with the library's."""
    theirs = library(rules)
    theirs.enable_truncation(limit)
    wanted, found = theirs.encode_batch_fast(texts), ours(module, rules).tokenize(texts, limit, **options)
    assert [each.dtype for each in found] == [np.int32, np.int64, np.int64]
    assert rows(found) == [each.ids for each in wanted]
    assert found[2].tolist() == [i for i, each in enumerate(wanted) if each.overflowing]


TEXT = st.integers(0, 2**32).map(lambda seed: mixed(Random(seed)))
BODIES = pytest.mark.parametrize("module", [compiled, reference], ids=["cpu", "reference"])


@BODIES
@settings(deadline=None, derandomize=True, max_examples=60)
@given(texts=st.lists(TEXT | st.text(max_size=30), max_size=6), steps=st.sampled_from(STEPS), limit=st.integers(2, 40))
def test_ids_and_cuts_of_mixed_scripts(module, texts, steps, limit):
    check(module, WordPieceRules(*steps, *BERT[5:]), texts, limit)


@BODIES
@pytest.mark.parametrize("rules", [BERT, BERT._replace(longest=16), BERT._replace(longest=0)], ids=str)
def test_edges(module, rules):
    texts = ["", " ", " \t\n" * 40, "\0", "\0a\0b", "a\x85b\x0bc\xa0d"]
    texts += ["[MASK]", "[MASK][MA][MA", "[[SEP]]", "##a", "a##a", "#"]
    texts += [letter * n for n in EDGES for letter in "awb中😀かé\u302e각- q"]
    texts += ["x" * k + "w" * n for n in EDGES for k in range(9)] + ["un" + "a" * n + "b" * 99 for n in EDGES]
    check(module, rules, texts)


SINGLES = "İ AİB ΑΣ ẞ \u212b\u212a \u2260 \u1fef 한글 a\u0301\u030a \U0001d160\u302e ﬁ"


@BODIES
def test_what_unicode_does_to_one_character_and_the_next(module):
    """Marks that are kept are put in order, but not over some that are dropped; letters of two lower cases."""
    marks = "\u302e\u302f\u1b44\U0001d165\u0334\u0f73\u0f71\ufe0f\u0f93\x01\u0301a"
    texts = [f"か{''.join(group)}ん" for group in product(marks, repeat=3)]
    texts += SINGLES.split()
    for steps in STEPS:
        if module is compiled or steps[:4] in ((True,) * 4, (False, True, True, False)):
            check(module, WordPieceRules(*steps, *BERT[5:]), texts)


SIGNS = (*"€™_‿- 中\u0301\u302e\u200d\ufeff😀²İÉ\x01", "[SEP]", "[MA]")
REPEATED = [c * n for c in "w€é" for n in (1, 40, 99, 100, 101, 102, 210)]


def around_words(rng: Random) -> str:
    """Whole words next to signs and to each other, in words of up to a few hundred characters."""
    drawn = "".join(rng.choice((*WHOLE, *WHOLE, *SIGNS, *SIGNS, *REPEATED)) for _ in range(rng.randint(1, 8)))
    return drawn.upper() if rng.random() < 0.2 else drawn


@BODIES
@pytest.mark.parametrize("rules", [BERT, BERT._replace(longest=16)], ids=["BERT", "short words"])
@pytest.mark.parametrize("steps", [steps for steps in STEPS if steps[0]], ids=str)
def test_whole_words_are_not_cut(module, rules, steps):
    theirs, rules = with_words(WordPieceRules(*steps, *rules[5:]))
    rng = Random(11)
    texts = [around_words(rng) for _ in range(400 if module is compiled else 60)]
    texts += [mixed(rng, 3) + rng.choice(WHOLE) + mixed(rng, 3) for _ in range(len(texts) // 2)]
    texts += ["AB1", "ab1 ab12", "_ab1 ab1_", "€ab1€q", "[MASK]q-q", "€" * 5000 + "ab1" + "€" * 5000]
    for limit in (5, 500):
        theirs.enable_truncation(limit)
        found = ours(module, rules).tokenize(texts, limit)
        assert rows(found) == [each.ids for each in theirs.encode_batch_fast(texts)]


@BODIES
def test_without_the_ends_and_with_every_limit(module):
    texts = ["", "a", "unaffable [SEP] unaffable", "q" * 300]
    for limit in range(6):
        found = rows(ours(module, BERT).tokenize(texts, limit, special=False))
        assert [len(row) for row in found] == [0, min(1, limit), min(7, limit), min(1, limit)]
    for limit in range(2, 12):
        check(module, BERT, texts, limit)
    for limit in (-1, 0, 1):
        with pytest.raises(ValueError, match="fewer than those at the ends"):
            ours(module, BERT).tokenize(texts, limit)


@BODIES
@pytest.mark.parametrize("odd", ["\ud800", "a\udfffb", "😀\ud83d", "a" * 100 + "\udc00", "中" * 9 + "\udbff"])
def test_half_a_surrogate_pair_is_found_after_a_cut_too(module, odd):
    with pytest.raises(ValueError, match="text 1 holds half a surrogate pair"):
        ours(module, BERT).tokenize(["a", odd, "b"], 4)
    with pytest.raises(TypeError):
        ours(module, BERT).tokenize(["a", b"b"], 4)


def test_an_array_of_pieces_is_read_as_json_reads_it():
    text = ' [["b", -7],\t["\\ud83d\\ude00\\n",3.5], ["é中😀" ,0],["b" , 9e0] , ["",4]]  , "rest"'
    found = Vocabulary(text.encode(), 1)
    assert (len(found), found.largest, found.scores) == (5, 4, [-7, 3.5, 0, 9, 4])
    assert (found.end, found.lengths[:4]) == (text.encode().rindex(b"]") + 1, [1, 1, 1, 1])
    assert [found.get(piece) for piece in ("b", "😀\n", "é中😀", "", "a", "é")] == [3, 1, 2, 4, None, None]


def test_a_vocabulary_is_read_as_json_reads_it():
    text = ' {\r\n"a\\u0062" : 7,\t"\\ud83d\\ude00\\n":3, "é中😀":0,"##x\\"}":12 , "a\\u0062":9, "":4}  , "rest"'
    for spaces in ("", " "):
        data = (spaces + text).encode()
        found = Vocabulary(data, len(spaces))
        assert (len(found), found.largest, found.end) == (5, 12, len(spaces) + text.encode().rindex(b"}") + 1)
        assert [found.get(piece) for piece in ("ab", "😀\n", "é中😀", '##x"}', "", "b")] == [9, 3, 0, None, None, None]
        assert found.lengths[:7] == [1, 0, 2, 1, 0, 1, 0]
    assert len(Vocabulary(b"{}")) == 0


def test_a_large_vocabulary_has_every_piece():
    pieces = {("##" if i % 3 else "") + f"{i * 7919:x}" * (1 + i % 4): i for i in range(20_000)}
    found = Vocabulary(json.dumps(pieces).encode())
    assert len(found) == len(pieces)
    assert all(found.get(piece) == (None if piece.startswith("##") else i) for piece, i in pieces.items())


def test_pieces_of_one_slot_and_one_upper_half_of_a_hash_differ_by_their_letters():
    found = Vocabulary(b'{"[UNK]":1,"collided":2}')
    assert [found.get(piece) for piece in ("collided", "cwymfooz", "cdmqf91j")] == [2, None, None]
    both = Vocabulary(b'{"cwymfooz":3,"collided":2,"cdmqf91j":4}')
    assert [both.get(piece) for piece in ("collided", "cwymfooz", "cdmqf91j")] == [2, 3, 4]


CODES = [*range(0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE1000), *range(0xEFF00, 0x110000, 16)]


@pytest.mark.slow
def test_every_character_before_and_after_every_kind():
    """By two sets of steps, and by one of the others; private use, all alike, by samples."""
    texts = [f"a{chr(i)}{chr(i)}b {chr(i)}" for i in CODES]
    for number, steps in enumerate(STEPS):
        check(compiled, WordPieceRules(*steps, *BERT[5:]), texts if number < 2 else texts[number - 2 :: len(STEPS) - 2])


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(True,) * 5, (True, False, False, False, False)], ids=["all steps", "one"])
def test_every_character_next_to_a_word_that_is_not_cut(steps):
    theirs, rules = with_words(WordPieceRules(*steps, *BERT[5:]))
    theirs.no_truncation()
    texts = [f"zebra{chr(i)} {chr(i)}zebra x{chr(i)}zebra{chr(i)}{chr(i)}q" for i in CODES]
    assert rows(ours(compiled, rules).tokenize(texts, 64)) == [each.ids for each in theirs.encode_batch_fast(texts)]


@pytest.mark.whole
def test_the_tables_are_those_of_the_library():
    """Made with the version that the header names; another one may know more of Unicode."""
    script = runpy.run_path(str(TESTS / "native" / "unicode.py"))
    header = script["HEADER"].read_text(encoding="utf-8")
    assert f"tokenizers {tokenizers.__version__} sees it" in header, "made with another version: see what has changed"
    assert script["header"](script["probe"]()) == header
    assert script["marks_header"]() == script["MARKS"].read_text(encoding="utf-8")
