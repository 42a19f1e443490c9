"""Shares of tokens in English at large: the words of the file, cut by the encoder's own tokenizer."""

import json
from importlib.resources import files

import numpy as np
import pytest

from fastflow.model.tokens import Tokenizer
from fastflow.train.data.background import (
    FEWEST_WORDS,
    MEAN_WORDS,
    MOST_WORDS,
    background,
    is_english,
    read_words,
    sentences,
)

from support.builders import make_encoder
from support.places import ROOT

FILE = ROOT / "train" / "data" / "background.txt"


def opened(directory):
    """(tokenizer, size of the vocabulary, piece -> id)."""
    size = json.loads((directory / "config.json").read_text())["vocab_size"]
    tokenizer = Tokenizer(directory, 64)
    return tokenizer, size, tokenizer._tokenizer.get_vocab()


@pytest.fixture(scope="module")
def packaged():
    return opened(ROOT / "fastflow" / "default" / "0_Transformer")


def test_the_words_of_the_file():
    words, length = read_words()
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert length == float(lines[2]) == 21.1
    assert (words["."], words["the"], words[","]) == (46341, 46341, 38968)
    assert list(words.values()) == sorted(words.values(), reverse=True)
    assert 0.4e6 < sum(words.values()) < 1e6  # the rest are rarer words
    assert len(words) == sum(line.count(" ") for line in lines[3:]), "a word stands there twice"
    assert all(word and not word[0].isspace() for word in words)
    assert files("fastflow.train.data").joinpath("background.txt").read_bytes() == FILE.read_bytes()


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_shares_of_every_kind_of_vocabulary(encoders, family):
    tokenizer, size, _ = opened(encoders(family))
    shares = background(tokenizer, size)
    assert (shares.shape, shares.dtype) == ((size,), np.float64)
    assert shares.min() >= 0
    assert 0.3 < shares.sum() < 1


def test_a_common_word_has_its_own_share_and_one_of_another_language_none(packaged):
    tokenizer, size, ids = packaged
    shares, (words, length) = background(tokenizer, size), read_words()
    total = 1e6 * (1 + 2 / length)  # the tokens of a million words: about one each, and two around a sentence
    wanted = {word: words[word] for word in ("house", "water", "because", ",")}
    wanted |= {"the": words["the"] + words["The"], "[CLS]": 1e6 / length, "[SEP]": 1e6 / length}
    assert {word: shares[ids[word]] * total for word in wanted} == pytest.approx(wanted, rel=0.05)
    assert shares.argmax() == ids["the"]
    assert shares[ids["[PAD]"]] == shares[ids["[MASK]"]] == 0
    pieces = [piece for piece in ("которые", "の", "और", "ال", "된") if piece in ids]
    cyrillic = [piece for piece in ids if any("Ѐ" <= letter <= "ӿ" for letter in piece)]
    assert len(cyrillic) > 20
    assert not shares[[ids[piece] for piece in (*pieces, *cyrillic)]].any()


def test_a_byte_level_word_is_counted_as_it_stands_in_a_sentence(encoders):
    """After a blank, if its token is another than at the start of a text."""
    tokenizer, size, ids = opened(encoders("roberta"))
    shares, (words, length) = background(tokenizer, size), read_words()
    starts = sum(share for word, share in words.items() if word.startswith("the"))
    assert ids["Ġthe"] != ids["the"]
    assert shares[ids["Ġthe"]] / shares[ids["<s>"]] == pytest.approx(starts / (1e6 / length), rel=1e-9)
    inside = sum(share * word.count("the", 1) for word, share in words.items())
    assert shares[ids["the"]] / shares[ids["<s>"]] == pytest.approx(inside / (1e6 / length), rel=1e-9)


def test_a_word_that_is_cut_counts_in_every_piece(tmp_path):
    tokenizer, size, ids = opened(make_encoder(tmp_path / "e"))
    shares, (words, length) = background(tokenizer, size), read_words()
    counts = np.zeros(size)
    for word, share in words.items():
        for piece in tokenizer([word]).ids[1:-1]:
            counts[piece] += share
    ratio = shares / shares[ids["[CLS]"]] * (1e6 / length)
    where = np.ones(size, bool)
    where[[ids["[CLS]"], ids["[SEP]"]]] = False
    assert np.allclose(ratio[where], counts[where], rtol=1e-9)
    assert len(words) > 5 * size  # so most of them are cut


def test_sentences_are_words_as_often_as_they_occur():
    made, (words, _) = [text.split() for text in sentences(5000)], read_words()
    lengths = [len(text) for text in made]
    assert (min(lengths), max(lengths)) == (FEWEST_WORDS, MOST_WORDS)
    assert np.mean(lengths) == pytest.approx(MEAN_WORDS, rel=0.05)
    drawn = [word for text in made for word in text]
    assert set(drawn) <= set(words)
    for word in ("the", ",", "of", "man"):
        assert drawn.count(word) / len(drawn) == pytest.approx(words[word] / sum(words.values()), rel=0.1), word
    assert sentences(3) == sentences(50)[:3], "the first are always the same"
    assert len(set(sentences(50))) == 50
    assert sentences(0) == []
    assert sentences(2)[1] == "their jacket morning with eating of part from . do The"


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("A man is playing the guitar in front of a house.", True),
        ("Obama vows to work with new Congress, as markets fall", True),
        ("THE DOG RUNS", True),
        ("Mary, Robert: London, January!", True),  # words that stand there with a capital alone
        ("Der Hund läuft über die Wiese, und das Kind sieht ihm dabei zu.", False),
        ("Le chat dort sur la table de la cuisine.", False),
        ("El perro corre por la calle y el niño lo mira.", False),
        ("Собака бежит по улице", False),
        ("犬が走っている", False),
        ("12 + 30 = 42", True),  # without a word there is no sign of another language
    ],
)
def test_english_shows_by_its_words(text, english):
    assert is_english([text]) == english
    assert is_english(["", text]) == english


def test_the_first_words_decide_what_is_english():
    english, german = ["the dog runs with the man"] * 400, ["der Hund rennt mit dem Mann"] * 400
    assert is_english([*english, *german])
    assert not is_english([*german, *english])
    assert is_english([*english[:200], *german[:134]])  # both within the words that are looked at
