"""Long texts: the tokens and the cut of the whole, in memory that does not grow with the text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.errors import FastflowError
from fastflow.model.tokenizer import long_texts
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.model.tokenizer.long_texts import LongTexts, last

from support.builders import byte_level, unigram, vocabulary_only, wordpiece
from support.places import USERS

PIECES = [
    *("a", "the", "dog", " ", " ", "  ", "\n", "\t", "\u3000", "\u0301", "\u200b", "中文", "か", "가", "é", "😀", "\1"),
    *("[SEP]", "[MA", "SK]", "<mask>", "<s>", "'s", ",", ".", "-", "1", "w" * 101, "w" * 130, " " * 30, "\u0301" * 30),
]
SMALL = {"SHARE": 2, "LEAST": 8, "WINDOW": 16, "GROW": 2}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    found = {}
    for name, make in (("bert", wordpiece), ("roberta", byte_level), ("xlm-roberta", unigram)):
        found[name] = tmp_path_factory.mktemp(name)
        make().save(str(found[name] / "tokenizer.json"))
        (found[name] / "config.json").write_text(json.dumps({"vocab_size": 1000}))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=60).map("".join), min_size=1, max_size=6),
    limit=st.integers(3, 20),
)
def test_ids_and_cuts_are_those_of_the_whole(directories, name, texts, limit):
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in SMALL.items():
            patch.setattr(long_texts, constant, value)
        patch.setattr(long_texts, "TOGETHER", 50)
        tokenizer = Tokenizer(directories[name], limit)
        found = tokenizer(texts)
    whole = tokenizer._tokenizer.encode_batch_fast(texts)
    rows = [found.ids[start:stop].tolist() for start, stop in zip(found.offsets, found.offsets[1:], strict=False)]
    assert rows == [each.ids for each in whole]
    assert found.cut.tolist() == [i for i, each in enumerate(whole) if each.overflowing]


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
def test_a_long_text_is_not_tokenized_beyond_its_head(directories, name):
    tokenizer = Tokenizer(directories[name], 64)
    text = "the dog " * 100_000
    for limit, size in ((8, 1024), (64, 1024), (512, 8192)):
        head = LongTexts(tokenizer._tokenizer, limit).head(text)
        assert text.startswith(head)
        assert size - 8 < len(head) < size


@pytest.mark.slow
def test_a_text_without_an_end_of_its_words_is_refused_when_it_is_too_long(directories, monkeypatch):
    monkeypatch.setattr(long_texts, "LONGEST", 5000)
    monkeypatch.setattr(long_texts, "WINDOW", 1000)
    tokenizer = Tokenizer(directories["roberta"], 8)
    assert tokenizer(["a" * 5000]).cut.tolist() == [0]
    with pytest.raises(FastflowError, match=r"5000 characters .*: shorten"):
        tokenizer(["a" * 5001])
    assert Tokenizer(directories["bert"], 8)(["a" * 9000]).ids.tolist() == [2, 1, 3]


def test_rules_that_are_not_known_take_a_text_whole(directories, monkeypatch, tmp_path):
    saved = byte_level()
    saved.pre_tokenizer.use_regex = False
    saved.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 1000}))
    monkeypatch.setattr(long_texts, "LONGEST", 5000)
    tokenizer = Tokenizer(tmp_path, 8)
    assert tokenizer(["the dog " * 600]).cut.tolist() == [0]
    with pytest.raises(FastflowError, match="5000 characters"):
        tokenizer(["the dog " * 700])


def test_half_a_surrogate_pair_is_found_where_the_tokens_are_cut_off(directories):
    with pytest.raises(FastflowError, match=r"no UTF-8 form: .*\\ud800"):
        Tokenizer(directories["bert"], 8)(["the dog " * 1000 + "\ud800"])


def test_the_last_place_is_found_wherever_it_is():
    cuts = LongTexts(wordpiece(), 8)._cuts
    places = {"a b c": 3, "a b" + "c" * 100: 1, "a b" + "c" * 9000: 1, "abc": 0, " abc": 0, "": 0}
    for text, place in places.items():
        assert last(cuts, text) == place


def test_texts_are_joined_up_to_a_number_of_characters(monkeypatch):
    monkeypatch.setattr(long_texts, "TOGETHER", 5)
    long = LongTexts(wordpiece(), 8)
    texts = ["aa", "aaa", "a", "aaaaaaa", "a", "aaaa", "a"]
    assert list(long.together(texts)) == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]
    assert list(long.together([])) == []
    assert list(long.together(["aaaaaaa"])) == [(0, 1)]


CHILD = """
import resource, sys
from pathlib import Path
from fastflow.model.tokenizer.encode import Tokenizer
tokenizer = Tokenizer(Path(sys.argv[1]), 128)
many = 2_000_000
texts = ["the dog sleeps. " * (many // 16), " " * many, "a" * many, "中文" * (many // 2), "e" + "\\u0301" * many,
         "😀" * many, ("a" + " " * 9999) * (many // 10_000), "[SEP]" * (many // 5)]
tokenizer(["a" * 2000])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
for text in texts:
    tokenizer([text])
tokenizer(["the dog sleeps. " * 1000] * 400)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is counted as Linux counts it")
def test_memory_does_not_grow_with_a_text(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, vocabulary_only(tmp_path)], capture_output=True, text=True, check=False, env=USERS
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40 * 1024  # KiB; whole, the first text alone takes 240 MB
