"""Cuts of a text before it is tokenized, at the places that a rule finds; memory does not grow with a long text."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from fastflow.errors import FastflowError
from fastflow.model.tokenizer import Tokenizer as Limited
from fastflow.model.tokenizer import cuts
from fastflow.model.tokenizer.cuts import LongTexts, find_cuts, last

from support import builders
from support.memory import grown

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


def without_splitter() -> Tokenizer:
    out = builders.unigram()
    out.pre_tokenizer = None
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
        without_splitter(),
    ],
)  # fmt: skip
def test_rules_that_are_not_known_have_none(tokenizer):
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


# ---- long texts

SMALL = {"SHARE": 2, "LEAST": 8, "WINDOW": 16, "GROW": 2}


SAVED = {"bert": builders.wordpiece, "roberta": builders.byte_level, "xlm-roberta": builders.unigram}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    found = {}
    for name, make in SAVED.items():
        found[name] = tmp_path_factory.mktemp(name)
        make().save(str(found[name] / "tokenizer.json"))
        (found[name] / "config.json").write_text(json.dumps({"vocab_size": 1000}))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SAVED)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(texts=st.lists(TEXTS, min_size=1, max_size=6), limit=st.integers(3, 20))
def test_ids_and_cuts_are_those_of_the_whole(directories, name, texts, limit):
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in SMALL.items():
            patch.setattr(cuts, constant, value)
        patch.setattr(cuts, "TOGETHER", 50)
        tokenizer = Limited(directories[name], limit)
        found = tokenizer(texts)
    whole = tokenizer._tokenizer.encode_batch_fast(texts)
    rows = [found.ids[start:stop].tolist() for start, stop in zip(found.offsets, found.offsets[1:], strict=False)]
    assert rows == [each.ids for each in whole]
    assert found.cut.tolist() == [i for i, each in enumerate(whole) if each.overflowing]


@pytest.mark.parametrize("name", SAVED)
def test_a_long_text_is_not_tokenized_beyond_its_head(directories, name):
    tokenizer = Limited(directories[name], 64)
    text = "the dog " * 100_000
    for limit, size in ((8, 1024), (64, 1024), (512, 8192)):
        head = LongTexts(tokenizer._tokenizer, limit).head(text)
        assert text.startswith(head)
        assert size - 8 < len(head) < size


@pytest.mark.slow
def test_a_text_without_an_end_of_its_words_is_refused_when_it_is_too_long(directories, monkeypatch):
    monkeypatch.setattr(cuts, "LONGEST", 5000)
    monkeypatch.setattr(cuts, "WINDOW", 1000)
    tokenizer = Limited(directories["roberta"], 8)
    assert tokenizer(["a" * 5000]).cut.tolist() == [0]
    with pytest.raises(FastflowError, match=r"5000 characters .*: shorten"):
        tokenizer(["a" * 5001])
    assert Limited(directories["bert"], 8)(["a" * 9000]).ids.tolist() == [2, 1, 3]


def test_rules_that_are_not_known_take_a_text_whole(directories, monkeypatch, tmp_path):
    saved = builders.byte_level()
    saved.pre_tokenizer.use_regex = False
    saved.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 1000}))
    monkeypatch.setattr(cuts, "LONGEST", 5000)
    tokenizer = Limited(tmp_path, 8)
    assert tokenizer(["the dog " * 600]).cut.tolist() == [0]
    with pytest.raises(FastflowError, match="5000 characters"):
        tokenizer(["the dog " * 700])


def test_half_a_surrogate_pair_is_found_where_the_tokens_are_cut_off(directories):
    with pytest.raises(FastflowError, match=r"no UTF-8 form: .*\\ud800"):
        Limited(directories["bert"], 8)(["the dog " * 1000 + "\ud800"])


def test_the_last_place_is_found_wherever_it_is():
    cuts = LongTexts(builders.wordpiece(), 8)._cuts
    places = {"a b c": 3, "a b" + "c" * 100: 1, "a b" + "c" * 9000: 1, "abc": 0, " abc": 0, "": 0}
    for text, place in places.items():
        assert last(cuts, text) == place


def test_texts_are_joined_up_to_a_number_of_characters(monkeypatch):
    monkeypatch.setattr(cuts, "TOGETHER", 5)
    long = LongTexts(builders.wordpiece(), 8)
    texts = ["aa", "aaa", "a", "aaaaaaa", "a", "aaaa", "a"]
    assert list(long.together(texts)) == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]
    assert list(long.together([])) == []
    assert list(long.together(["aaaaaaa"])) == [(0, 1)]


BEFORE = """
from pathlib import Path
from fastflow.model.tokenizer import Tokenizer
tokenizer = Tokenizer(Path(sys.argv[1]), 128)
many = 2_000_000
texts = ["the dog sleeps. " * (many // 16), " " * many, "a" * many, "中文" * (many // 2), "e" + "\\u0301" * many,
         "😀" * many, ("a" + " " * 9999) * (many // 10_000), "[SEP]" * (many // 5)]
tokenizer(["a" * 2000])
"""
WORK = """
for text in texts:
    tokenizer([text])
tokenizer(["the dog sleeps. " * 1000] * 400)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is counted as Linux counts it")
def test_memory_does_not_grow_with_a_text(tmp_path, run_python):
    grew = grown(run_python, BEFORE, WORK, builders.vocabulary_only(tmp_path))
    assert grew < 40 * 1024  # KiB; whole, the first text alone takes 240 MB
