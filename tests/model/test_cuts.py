"""Where texts may be cut before they are tokenized: every place that a rule finds, for tokenizers of each kind."""

from __future__ import annotations

import re
from functools import cache

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from fastflow.model.tokenizer import cuts
from fastflow.model.tokenizer.cuts import find_cuts

from support import builders

# pieces of texts that rules of normalizers, splitters and added tokens treat in different ways
PIECES = [
    *("a", "b", "the", "dog", "A", "é", "É", "ß", "İ", "ﬁ", "Ω", "\u212b", "①", "⑴", "1", "23", "½", "²"),
    *(" ", " ", " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003", "\u2028", "\u1680"),
    *("\u0301", "\u0308", "\u0338", "\u0345", "\u20e3", "\ufe0f", "\u200b", "\u200d", "\u302e", "\U0001d165", "\u0f71"),
    *("中", "文", "\u3400", "か", "\u3099", "ｶ", "ﾞ", "가", "\u1100", "\u1161", "\u11a8", "ﷺ", "\ufe70", "\u037a"),
    *("\u0600", "\u06dd", "\u0d4e", "क", "ि", "्", "ก", "\u0e33", "\u3164", "😀", "👩", "\U0001f3fd", "❤", "ℹ"),
    *("\0", "\1", "\x85", "\ufffd", "\u00ad", "\ufeff", "[SEP]", "[MASK]", "[MA", "SK]", "<mask>", "<s>", "<unk>"),
    "<a>",
    *("|||MAIL|||", "|||", "'s", "'", "``", '"', ",", ".", "-", "_", "=", "<", ">", "[", "]", "ｘ", "。", "，", "▁"),
    *("w" * 101, "w" * 130, "q" * 60, "😀" * 120, "é" * 110, " " * 9, "\u0301" * 9, "\1" * 9, "中" * 9),
]


TEXTS = st.lists(st.sampled_from([*PIECES, *[" "] * 20, *["a"] * 20]), max_size=24).map("".join)


def bert(normalizer=None, added=()) -> Tokenizer:
    out = builders.wordpiece()
    out.normalizer = normalizer or normalizers.BertNormalizer()
    out.add_tokens(list(added))
    return out


def bpe(normalizer=None, splitter=None, added=()) -> Tokenizer:
    out = builders.byte_level()
    if normalizer:
        out.normalizer = normalizer
    out.pre_tokenizer = splitter or pre_tokenizers.ByteLevel(add_prefix_space=False)
    out.add_tokens(list(added))
    return out


def unigram(normalizer=None, *splitters) -> Tokenizer:
    out = builders.unigram()
    if normalizer:
        out.normalizer = normalizer
    if splitters:
        out.pre_tokenizer = pre_tokenizers.Sequence(list(splitters))
    return out


SQUEEZED = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
TOKENIZERS = {
    "bert": bert(),
    "bert-cased": bert(normalizers.BertNormalizer(lowercase=False, strip_accents=False)),
    "bert-whole-chinese": bert(normalizers.BertNormalizer(handle_chinese_chars=False)),
    "bert-unclean": bert(normalizers.BertNormalizer(clean_text=False)),
    "bert-lower": bert(normalizers.Sequence([normalizers.Lowercase(), normalizers.BertNormalizer(lowercase=False)])),
    "bert-words": bert(added=[AddedToken("dog", normalized=True), AddedToken("<a>", lstrip=True, rstrip=True)]),
    "bert-single": bert(added=[AddedToken("dog", single_word=True)]),
    "mpnet": builders.fairseq_wordpiece(),
    "nfkc": bert(normalizers.NFKC()),
    "roberta": bpe(),
    "roberta-space": bpe(splitter=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "modernbert": bpe(normalizers.NFC(), added=[AddedToken("  ", normalized=True), "    ", AddedToken("|||MAIL|||")]),
    "bpe-stripped": bpe(normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])),
    "unigram": unigram(),
    "xlm-r": unigram(SQUEEZED, pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()),
    "camembert": unigram(SQUEEZED, pre_tokenizers.Metaspace(prepend_scheme="first")),
    "deberta": unigram(normalizers.Sequence([normalizers.Strip(), SQUEEZED])),
    "albert": unigram(
        normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents()])
    ),
}


@cache
def known(name: str) -> cuts.Cuts:
    return find_cuts(TOKENIZERS[name])


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(text=TEXTS)
def test_the_tokens_before_a_cut_are_those_of_the_whole(name, text):
    tokenizer, found = TOKENIZERS[name], known(name)
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    for place in found.at.finditer(text, 1):
        before = tokenizer.encode(text[: place.start()], add_special_tokens=False).ids
        assert before == whole[: len(before)]
    if found.runs is not None:
        short = found.runs.sub(lambda run: run[run.lastindex], text)
        assert tokenizer.encode(short, add_special_tokens=False).ids == whole


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ordinary_texts_have_places(name):
    assert [place.start() for place in known(name).at.finditer("the dog sleeps", 1)] == [3, 7]


@pytest.mark.parametrize(
    ("name", "places"), [("unigram", [3]), ("xlm-r", [1, 3]), ("camembert", [1, 3]), ("roberta", [1, 3])]
)
def test_a_line_ends_a_word_if_the_rules_say_so(name, places):
    assert [place.start() for place in known(name).at.finditer("a\nb c", 1)] == places


def test_accents_that_are_kept_are_all_kept():
    assert known("bert-cased").runs.search("e" + "\u0301" * 50) is None


def test_long_words_spaces_and_accents_are_shortened_for_bert():
    runs = known("bert").runs
    for text, short in (
        ("a" * 500 + "\u0903b", "a" * 101 + "\u0903b"),
        ("a \t\u3000 b", "a b"),
        ("e\u0301\u0302\ufe0f", "e\u0301"),
    ):
        assert runs.sub(lambda run: run[run.lastindex], text) == short


@pytest.mark.parametrize(
    "tokenizer",
    [
        bpe(splitter=pre_tokenizers.ByteLevel(use_regex=False)),
        bpe(splitter=pre_tokenizers.Split(Regex("a.*"), "isolated")),
        bpe(normalizers.Replace(Regex("a b"), "c")),
        bpe(normalizers.Replace("s d", "c")),
        bpe(normalizers.Prepend("x")),
        bpe(normalizers.Replace(" ", "▁")),
        bpe(added=["dog cat"]),
        bert(added=["dog cat"]),
        unigram(None, pre_tokenizers.Metaspace(split=False)),
    ],
)  # fmt: skip
def test_rules_that_are_not_known_have_none(tokenizer):
    assert find_cuts(tokenizer) is None


def test_a_tokenizer_without_a_splitter_has_none():
    tokenizer = builders.unigram()
    tokenizer.pre_tokenizer = None
    assert find_cuts(tokenizer) is None


def test_thousands_of_normalizers_are_not_tried_on_every_letter():
    tokenizer = builders.unigram()
    for count, known in ((2, True), (5000, False)):
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD()] * count)
        assert (find_cuts(tokenizer) is not None) is known


def members(letters: str, most: int = 0x110000) -> list[str]:
    every = "".join(chr(i) for i in range(most) if not 0xD800 <= i < 0xE000)
    return re.findall(letters, every)


@pytest.mark.slow
def test_bert_keeps_every_word_character_and_drops_the_others():
    for lowercase in (True, False):
        tokenizer = bert(normalizers.BertNormalizer(lowercase=lowercase))
        split, normal = tokenizer.pre_tokenizer.pre_tokenize_str, tokenizer.normalizer.normalize_str
        words = members(f"[{cuts.WORD}]")
        assert len(split(normal("x".join(words)))) == 1
        assert len(normal("".join(words))) >= len(words)
        assert all(len(normal(each)) for each in words)
        assert normal("".join(members(f"[{cuts.CONTROLS}]"))) == ""
        assert normal("".join(members(f"[{cuts.ACCENTS}]"))) == (
            "" if lowercase else "".join(members(f"[{cuts.ACCENTS}]"))
        )
        assert not normal("".join(members(f"[{cuts.SPACES}]"))).strip(" ")


def test_every_letter_is_a_grapheme_of_its_own():
    letters = members(cuts.LETTERS)
    assert len(letters) > 40_000
    assert regex.findall(r"\X", "".join(f"{each} " for each in letters)) == [c for each in letters for c in (each, " ")]
