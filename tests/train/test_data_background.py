"""Shares of tokens in a language at large: the words of English or of a list, cut by the encoder's own tokenizer."""

import gzip
import json
from importlib.resources import files

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.evaluation.evaluate import read_task
from fastflow.model.tokenizer import Tokenizer
from fastflow.train.data import background as module
from fastflow.train.data.background import (
    Words,
    compute_shares,
    draw_sentences,
    load_english,
    read_words,
    recognise_words,
    warn_of_case,
    warn_of_language,
)

from support.places import DATA, ROOT

FILE = ROOT / "train" / "data" / "background.txt.gz"


def open_one(directory):
    """(tokenizer, size of the vocabulary, piece -> id)."""
    size = json.loads((directory / "config.json").read_text())["vocab_size"]
    tokenizer = Tokenizer(directory, 64)
    return tokenizer, size, tokenizer._tokenizer.get_vocab()


@pytest.fixture(scope="module")
def packaged():
    return open_one(ROOT / "fastflow" / "default" / "0_Transformer")


@pytest.fixture(scope="module")
def english():
    return load_english()


def test_the_words_and_sentences_of_the_files(english):
    words, length, found = english
    lines = gzip.decompress(FILE.read_bytes()).decode("utf-8").splitlines()
    assert length == float(lines[2]) == module.LENGTH
    assert (words["."], words["the"], words[","]) == (46300, 46300, 46300)
    assert 0.9e6 < sum(words.values()) < 1.05e6  # in halves of an octave
    assert len(words) == sum(line.count(" ") for line in lines[3:]), "a word stands there twice"
    assert len(words) > 15_000
    assert all(word and not word[0].isspace() for word in words)
    assert files("fastflow.train.data").joinpath("background.txt.gz").read_bytes() == FILE.read_bytes()
    assert len(found) == len(set(found)) == 5000
    assert all(20 <= len(text) <= 300 and text == text.strip() and text[0] != "#" for text in found)
    assert recognise_words(found) is not None


@pytest.mark.data
@pytest.mark.slow
def test_no_sentence_is_a_text_of_a_scored_set(english):
    found = {text.lower() for text in english.sentences}
    for pattern in ("sts/*.tsv", "tasks/classes/*.tsv", "tasks/pairs/*.tsv"):
        for path in DATA.glob(pattern):
            cells = path.read_text(encoding="utf-8").replace("\n", "\t").lower().split("\t")
            assert not found & set(cells), path


def test_a_list_of_words_is_of_the_language_whatever_the_texts_are(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\ufeffder 30\nund\t10\nzum Beispiel 5\nder  5 \n", encoding="utf-8")
    for text in ("der Hund rennt", "the dog runs with the man"):
        words, length, own = recognise_words([text], str(path))
        assert words == pytest.approx({"der": 700_000, "und": 200_000, "zum Beispiel": 100_000})
        assert (length, own) == (module.LENGTH, ())


def test_a_language_has_the_words_of_wordfreq_and_the_marks_of_english(english):
    words, length, own = recognise_words(["der Hund rennt"], language="de")
    assert (length, own) == (module.LENGTH, ())
    assert words["."] == english.shares["."]
    assert 20_000 < words["die"] < 32_000  # of a million
    assert 900_000 < sum(words.values()) < 1e6
    assert recognise_words(["der Hund rennt"], language="en") is None


def test_a_list_of_words_that_is_none(tmp_path):
    path = tmp_path / "words.txt"
    for data, message in (
        (None, ": cannot be read as a list of words in UTF-8"),
        (b"der 30\nund\n", ", line 2: must be a word, a space or tab, and how often it occurs"),
        (b"der 30\n\nund 1\n", ", line 2: must be"),
        (b"der 30\nund oft\n", ", line 2: must be"),
        *((word, ", line 1: must be") for word in (b"30\tder\n", b"der 0\n", b"der -1\n", b"der nan\n", b"der inf\n")),
        (b"", ": holds no word"),
        (b"f\xfcr 3\n", ": cannot be read as a list of words in UTF-8"),
    ):
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(FastflowError) as refused:
            recognise_words(["der Hund"], str(path))
        assert str(refused.value).startswith(f"{path}{message}"), data


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "of the package"])
def test_a_word_counts_in_every_piece_that_it_has_in_a_sentence(encoders, packaged, english, family):
    tokenizer, size, _ = packaged if family == "of the package" else open_one(encoders(family))
    words, length = dict([*english.shares.items()][::2]), english.length  # the others are not listed
    before, counts = tokenizer(["a"]).ids, np.zeros(size)
    tokens = tokenizer([f"a {word}" for word in words])
    for share, start, stop in zip(words.values(), tokens.offsets, tokens.offsets[1:], strict=False):
        np.add.at(counts, tokens.ids[start + len(before) - 1 : stop - 1], share)
    counts[before[[0, -1]]] = 1e6 / length
    expected = counts / (counts.sum() + 1e6 - sum(words.values()))
    assert np.allclose(compute_shares(tokenizer, size, Words(words, length)), expected, rtol=1e-9)


def test_sentences_are_words_as_often_as_they_occur(english):
    words, made = english.shares, [text.split() for text in draw_sentences(5000, english)]
    lengths = [len(text) for text in made]
    assert (min(lengths), max(lengths)) == (module.FEWEST_WORDS, module.MOST_WORDS)
    assert np.mean(lengths) == pytest.approx(module.MEAN_WORDS, rel=0.05)
    drawn = [word for text in made for word in text]
    assert set(drawn) <= set(words)
    for word in ("the", ",", "of", "man"):
        assert drawn.count(word) / len(drawn) == pytest.approx(words[word] / sum(words.values()), rel=0.1), word
    fifty = draw_sentences(50, english)
    assert draw_sentences(3, english) == fifty[:3], "the first are always the same"
    assert len(set(fifty)) == 50
    assert draw_sentences(0, english) == []
    assert draw_sentences(1, Words({"der": 1.0}, module.LENGTH))[0].split() == ["der"] * len(made[0])


def test_english_shows_by_the_first_words(english):
    for text, known in (
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
    ):
        for texts in ([text], ["", text]):
            assert recognise_words(texts) == (english if known else None), text
    ours, german = ["the dog runs with the man"] * 400, ["der Hund rennt mit dem Mann"] * 400
    assert recognise_words([*ours, *german])
    assert recognise_words([*german, *ours]) is None
    assert recognise_words([*ours[:200], *german[:134]])  # both within the words that are looked at


GERMAN = ["Der Hund läuft über die Wiese, und das Kind sieht ihm dabei zu."] * 12
OF_GERMAN = "der 30000\ndie 30000\nund 26000\ndas 14000\nzu 10000\nüber 2400\nHund 200\nKind 190\nselten 99000\n"


@pytest.mark.slow
def test_a_list_of_another_language_shows_by_its_common_words(tmp_path, english):
    path = tmp_path / "words.txt"
    path.write_text(OF_GERMAN + "".join(f"rar{'x' * i} 80\n" for i in range(9000)), encoding="utf-8")
    german, ours = read_words(path), ["The dog runs with the man, and a child is in front of the house."] * 12
    assert warn_of_language(german, GERMAN) is None
    assert warn_of_language(english, ours) is None
    assert warn_of_language(english, GERMAN) == (
        "the common words of --background-words are 8% of the words of the corpus, where 65% is usual: the list is "
        "of another language, or too short; give one of the language of the corpus, or none"
    )
    assert "are 0% of the words" in warn_of_language(german, ours)
    lower = Words({word.lower(): share for word, share in german.shares.items()}, module.LENGTH)
    assert warn_of_language(lower, GERMAN) is None, "case does not count"
    for few in ([], ["Der Hund läuft."], ["犬が走っている、子供が見ている。"] * 200, ["12 + 30 = 42"] * 200):
        assert warn_of_language(english, few) is None  # too few words that are a run of letters


def test_a_list_in_lower_case_shows_with_an_encoder_that_has_capitals(encoders, packaged):
    lower, cased = Words({"der": 700.0, "hund": 300.0}, module.LENGTH), open_one(encoders("roberta"))[0]
    assert warn_of_case(lower, ["und ein Text:", "Der Hund läuft."], cased) == (
        "--background-words has no capitals, and the encoder distinguishes Der from der: common words that begin a "
        "sentence count as rare; give words counted in text as it is written"
    )
    assert warn_of_case(lower, GERMAN, packaged[0]) is None, "the encoder makes one of their cases"
    assert warn_of_case(lower, ["der hund läuft."], cased) is None
    for words, texts in (({"der": 700.0, "Hund": 300.0}, GERMAN), ({"犬": 700.0}, ["犬が走っている"])):
        assert warn_of_case(Words(words, module.LENGTH), texts, cased) is None


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "own"),
    [("sts/STSb-test.tsv", True), ("tasks/classes/agnews-titles.tsv", True), ("tasks/retrieval/scifact", True),
     ("tasks/sts-multi/STSb-test-de.tsv", False), ("tasks/sts-multi/STSb-test-ru.tsv", False),
     ("tasks/classes/10kgnad-test-de.tsv", False)],
)  # fmt: skip
def test_english_words_are_doubted_on_other_languages_alone(english, file, own):
    assert (warn_of_language(english, read_task(DATA / file).texts) is None) == own
