"""Shares of tokens in a language at large: the words of English or of a list, cut by the encoder's own tokenizer."""

import gzip
import json
from importlib.resources import files

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.evaluation.evaluate import read_task
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.train.data import background as module
from fastflow.train.data.background import (
    FEWEST_WORDS,
    LENGTH,
    MEAN_WORDS,
    MOST_WORDS,
    Words,
    compute_shares,
    draw_sentences,
    load_english,
    read_words,
    recognise_words,
    warn_of_case,
    warn_of_language,
)

from support.builders import make_encoder
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


def test_the_words_of_the_file():
    words, length, _ = load_english()
    lines = gzip.decompress(FILE.read_bytes()).decode("utf-8").splitlines()
    assert length == float(lines[2]) == LENGTH
    assert (words["."], words["the"], words[","]) == (46300, 46300, 46300)
    assert 0.9e6 < sum(words.values()) < 1.05e6  # in halves of an octave
    assert len(words) == sum(line.count(" ") for line in lines[3:]), "a word stands there twice"
    assert len(words) > 15_000
    assert all(word and not word[0].isspace() for word in words)
    assert files("fastflow.train.data").joinpath("background.txt.gz").read_bytes() == FILE.read_bytes()


def test_the_sentences_of_the_file():
    found = load_english().sentences
    assert len(found) == len(set(found)) == 5000
    assert all(20 <= len(text) <= 300 and text == text.strip() for text in found)
    assert recognise_words(found) is not None
    assert not [text for text in found if text.startswith("#")]


@pytest.mark.data
@pytest.mark.slow
def test_no_sentence_is_a_text_of_a_scored_set():
    found = {text.lower() for text in load_english().sentences}
    for pattern in ("sts/*.tsv", "tasks/classes/*.tsv", "tasks/pairs/*.tsv"):
        for path in DATA.glob(pattern):
            cells = path.read_text(encoding="utf-8").replace("\n", "\t").lower().split("\t")
            assert not found & set(cells), path


def test_a_list_of_words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\ufeffder 30\nund\t10\nzum Beispiel 5\nder  5 \n", encoding="utf-8")
    words, length, own = read_words(path)
    assert words == pytest.approx({"der": 700_000, "und": 200_000, "zum Beispiel": 100_000})
    assert (length, own) == (LENGTH, ())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"der 30\nund\n", "words.txt, line 2: must be a word, a space or tab, and how often it occurs"),
        (b"der 30\n\nund 1\n", "words.txt, line 2: must be"),
        (b"der 30\nund oft\n", "words.txt, line 2: must be"),
        (b"30\tder\n", "words.txt, line 1: must be"),
        (b"der 0\n", "words.txt, line 1: must be"),
        (b"der -1\n", "words.txt, line 1: must be"),
        (b"der nan\n", "words.txt, line 1: must be"),
        (b"der inf\n", "words.txt, line 1: must be"),
        (b"", "words.txt: holds no word"),
        (b"f\xfcr 3\n", "words.txt: cannot be read as a list of words in UTF-8"),
        (None, "words.txt: cannot be read as a list of words in UTF-8"),
    ],
)
def test_a_list_of_words_that_is_none(tmp_path, data, message):
    path = tmp_path / "words.txt"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(FastflowError) as refused:
        recognise_words(["der Hund"], str(path))
    assert str(refused.value).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_shares_of_every_kind_of_vocabulary(encoders, family):
    tokenizer, size, _ = open_one(encoders(family))
    shares = compute_shares(tokenizer, size, load_english())
    assert (shares.shape, shares.dtype) == ((size,), np.float64)
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1)  # the words are all of English but roundings


def test_a_common_word_has_its_own_share_and_one_of_another_language_hardly_any(packaged):
    tokenizer, size, ids = packaged
    (words, length, _), shares = load_english(), compute_shares(tokenizer, size, load_english())
    total = 1e6 / length / shares[ids["[CLS]"]]  # the tokens of a million words
    assert 1e6 * (1 + 2 / length) < total < 1.3e6  # one or more each, and two around a sentence
    written = ("house", "which", "because", ",", "the")  # the tokenizer makes one of their cases
    wanted = {word: sum(share for each, share in words.items() if each.lower() == word) for word in written}
    wanted |= {"[CLS]": 1e6 / length, "[SEP]": 1e6 / length}
    assert {word: shares[ids[word]] * total for word in wanted} == pytest.approx(wanted, rel=0.05)
    assert shares.argmax() == ids["the"]
    assert shares[ids["[PAD]"]] == shares[ids["[MASK]"]] == 0
    pieces = [piece for piece in ("которые", "の", "और", "ال", "된") if piece in ids]
    cyrillic = [piece for piece in ids if any("Ѐ" <= letter <= "ӿ" for letter in piece)]
    assert len(cyrillic) > 20
    assert shares[[ids[piece] for piece in (*pieces, *cyrillic)]].sum() < 3e-4 < 0.01 * shares[ids["the"]]


def test_a_byte_level_word_is_counted_as_it_stands_in_a_sentence(encoders):
    tokenizer, size, ids = open_one(encoders("roberta"))
    (words, length, _), shares = load_english(), compute_shares(tokenizer, size, load_english())
    starts = sum(share for word, share in words.items() if word.startswith("the"))
    assert ids["Ġthe"] != ids["the"]
    assert shares[ids["Ġthe"]] / shares[ids["<s>"]] == pytest.approx(starts / (1e6 / length), rel=1e-9)
    inside = sum(share * word.count("the", 1) for word, share in words.items())
    assert shares[ids["the"]] / shares[ids["<s>"]] == pytest.approx(inside / (1e6 / length), rel=1e-9)


def test_a_word_that_is_cut_counts_in_every_piece(tmp_path):
    tokenizer, size, ids = open_one(make_encoder(tmp_path / "e"))
    (words, length, _), shares = load_english(), compute_shares(tokenizer, size, load_english())
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
    words = load_english().shares
    made = [text.split() for text in draw_sentences(5000, load_english())]
    lengths = [len(text) for text in made]
    assert (min(lengths), max(lengths)) == (FEWEST_WORDS, MOST_WORDS)
    assert np.mean(lengths) == pytest.approx(MEAN_WORDS, rel=0.05)
    drawn = [word for text in made for word in text]
    assert set(drawn) <= set(words)
    for word in ("the", ",", "of", "man"):
        assert drawn.count(word) / len(drawn) == pytest.approx(words[word] / sum(words.values()), rel=0.1), word
    assert draw_sentences(3, load_english()) == draw_sentences(50, load_english())[:3], "the first are always the same"
    assert len(set(draw_sentences(50, load_english()))) == 50
    assert draw_sentences(0, load_english()) == []
    assert draw_sentences(1, Words({"der": 1.0}, LENGTH))[0].split() == ["der"] * len(made[0])


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
    for texts in ([text], ["", text]):
        found = recognise_words(texts)
        assert found == (load_english() if english else None)


def test_the_first_words_decide_what_is_english():
    ours, german = ["the dog runs with the man"] * 400, ["der Hund rennt mit dem Mann"] * 400
    assert recognise_words([*ours, *german])
    assert recognise_words([*german, *ours]) is None
    assert recognise_words([*ours[:200], *german[:134]])  # both within the words that are looked at


def test_a_list_of_words_is_of_the_language_whatever_the_texts_are(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("der 3\nHund 1\n", encoding="utf-8")
    for text in ("der Hund rennt", "the dog runs with the man"):
        assert recognise_words([text], str(path)).shares == {"der": 750_000, "Hund": 250_000}


GERMAN = ["Der Hund läuft über die Wiese, und das Kind sieht ihm dabei zu."] * 12
OF_GERMAN = "der 30000\ndie 30000\nund 26000\ndas 14000\nzu 10000\nüber 2400\nHund 200\nKind 190\nselten 99000\n"


@pytest.mark.slow
def test_a_list_of_another_language_shows_by_its_common_words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text(OF_GERMAN + "".join(f"rar{'x' * i} 80\n" for i in range(9000)), encoding="utf-8")
    german, ours = read_words(path), ["The dog runs with the man, and a child is in front of the house."] * 12
    assert warn_of_language(german, GERMAN) is None
    assert warn_of_language(load_english(), ours) is None
    assert warn_of_language(load_english(), GERMAN) == (
        "the common words of --background-words are 8% of the words of the corpus, where 65% is usual: the list is "
        "of another language, or too short; give one of the language of the corpus, or none"
    )
    assert "are 0% of the words" in warn_of_language(german, ours)
    lower = Words({word.lower(): share for word, share in german.shares.items()}, LENGTH)
    assert warn_of_language(lower, GERMAN) is None, "case does not count"


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["Der Hund läuft."],  # too few words
        ["犬が走っている、子供が見ている。"] * 200,  # a word is no run of letters there
        ["12 + 30 = 42"] * 200,
    ],
)
def test_texts_that_show_no_words_are_not_judged(texts):
    assert warn_of_language(load_english(), texts) is None


def test_a_list_in_lower_case_shows_with_an_encoder_that_has_capitals(encoders, packaged):
    lower, cased = Words({"der": 700.0, "hund": 300.0}, LENGTH), open_one(encoders("roberta"))[0]
    assert warn_of_case(lower, ["und ein Text:", "Der Hund läuft."], cased) == (
        "--background-words has no capitals, and the encoder distinguishes Der from der: common words that begin a "
        "sentence count as rare; give words counted in text as it is written"
    )
    assert warn_of_case(lower, GERMAN, packaged[0]) is None, "the encoder makes one of their cases"
    assert warn_of_case(lower, ["der hund läuft."], cased) is None
    assert warn_of_case(Words({"der": 700.0, "Hund": 300.0}, LENGTH), GERMAN, cased) is None
    assert warn_of_case(Words({"犬": 700.0}, LENGTH), ["犬が走っている"], cased) is None


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "own"),
    [("sts/STSb-test.tsv", True), ("tasks/classes/agnews-titles.tsv", True), ("tasks/retrieval/scifact", True),
     ("tasks/sts-multi/STSb-test-de.tsv", False), ("tasks/sts-multi/STSb-test-ru.tsv", False),
     ("tasks/classes/10kgnad-test-de.tsv", False)],
)  # fmt: skip
def test_english_words_are_doubted_on_other_languages_alone(file, own):
    assert (warn_of_language(load_english(), read_task(DATA / file).texts) is None) == own


def test_words_in_any_number_are_cut_a_window_at_a_time(packaged, monkeypatch):
    tokenizer, size, _ = packaged
    words, sizes = Words(dict(list(load_english().shares.items())[:100]), LENGTH), []

    def measure(texts):
        sizes.append(len(texts))
        return tokenizer(texts)

    whole = compute_shares(tokenizer, size, words)
    monkeypatch.setattr(module, "WINDOW", 7)
    assert np.allclose(compute_shares(measure, size, words), whole, rtol=1e-12)
    assert max(sizes) == 7
