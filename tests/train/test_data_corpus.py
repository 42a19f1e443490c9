"""Texts of a corpus and words of its language: token weights, shares of tokens, statistics."""

import gzip
import json
import random
from collections import Counter
from importlib.resources import files

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.evaluation.evaluate import read_task
from fastflow.files.read import InputFormat
from fastflow.model.tokenizer import Tokenizer
from fastflow.train.data import background as module
from fastflow.train.data import token_weights as frequencies
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
from fastflow.train.data.corpus import (
    clean,
    corpus_hash,
    cut_sentences,
    draw,
    key_of,
    pick_by_hash,
    read_corpus,
    read_texts,
)
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.train.data.moments import BLOCK, Moments, measure_moments, read_through
from fastflow.train.data.token_weights import PRIOR, A, compute_sif, measure_perplexity, split_head, weigh

from support.builders import LAYERED, make_sentences
from support.places import DATA, ROOT
from support.rows import data
from support.tolerances import COMPANY, EMBEDDING

FILE = ROOT / "train" / "data" / "background.txt.gz"


def open_one(directory):
    """(tokenizer, size of the vocabulary, piece -> id)."""
    size = json.loads((directory / "config.json").read_text())["vocab_size"]
    tokenizer = Tokenizer(directory, 64)
    return tokenizer, size, tokenizer._tokenizer.get_vocab()


@pytest.fixture(scope="module")
def packaged():
    return open_one(ROOT / "fastflow" / "untuned" / "0_Transformer")


@pytest.fixture(scope="module")
def english():
    return load_english()


def test_the_words_and_sentences_of_the_files(english):
    words, length, found = english
    lines = gzip.decompress(FILE.read_bytes()).decode("utf-8").splitlines()
    assert length == float(lines[2]) == module.LENGTH
    assert (words["."], words["the"], words[","]) == (46300, 46300, 46300)
    assert 0.9e6 < sum(words.values()) < 1.05e6  # in halves of an octave
    assert 15_000 < len(words) == sum(line.count(" ") for line in lines[3:]), "a word stands there twice"
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
    for content, message in (
        (None, ": cannot be read as a list of words in UTF-8"),
        (b"der 30\nund\n", ", line 2: must be a word, a space or tab, and how often it occurs"),
        (b"der 30\n\nund 1\n", ", line 2: must be"),
        (b"der 30\nund oft\n", ", line 2: must be"),
        *((word, ", line 1: must be") for word in (b"30\tder\n", b"der 0\n", b"der -1\n", b"der nan\n", b"der inf\n")),
        (b"", ": holds no word"),
        (b"f\xfcr 3\n", ": cannot be read as a list of words in UTF-8"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(FastflowError) as refused:
            recognise_words(["der Hund"], str(path))
        assert str(refused.value).startswith(f"{path}{message}"), content


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
    assert warn_of_language(english, GERMAN) == (
        "the common words of --background-words are 8% of the words of the corpus, where 65% is usual: the list is "
        "of another language, or too short; give one of the language of the corpus, or none"
    )
    assert "are 0% of the words" in warn_of_language(german, ours)
    lower = Words({word.lower(): share for word, share in german.shares.items()}, module.LENGTH)
    few = [], ["Der Hund läuft."], ["犬が走っている、子供が見ている。"] * 200, ["12 + 30 = 42"] * 200  # of letters
    known = (german, GERMAN), (english, ours), (lower, GERMAN)  # case does not count
    for words, texts in (*known, *((english, each) for each in few)):
        assert warn_of_language(words, texts) is None


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


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_pairs_are_two_texts_a_row(tmp_path):
    rows = [("subset", "score", "sentence1", "sentence2"), ("a", "1.0", 'One "quote.', "Two.")]
    rows += [("a", "2.0", "Two.", "Three."), ("b", "3", "One.", "Four.")]
    path = write(tmp_path / "p.tsv", "".join("\t".join(row) + "\n" for row in rows))
    assert read_corpus([path]) == ['One "quote.', "Two.", "Three.", "One.", "Four."]
    assert draw(read_texts([path], InputFormat(field="sentence2")), path) == ["Two.", "Three.", "Four."]


def test_texts_are_distinct_across_files_in_order_of_appearance(tmp_path):
    first = write(tmp_path / "a.txt", "b\n\n  a \n   \nb\n")
    second = write(tmp_path / "b.jsonl", '"a"\n"c"\n"A"\n')
    assert read_corpus([first, second]) == ["b", "a", "c", "A"]
    assert read_corpus([second, first]) == ["a", "c", "A", "b"]


def test_a_sample_is_decided_by_its_seed_and_keeps_the_order(tmp_path):
    numbers = write(tmp_path / "n.txt", "".join(f"text {i % 1000}\n" for i in range(1500)))
    whole, sampled = read_corpus([numbers]), read_corpus([numbers], sample=100, seed=3)
    assert (len(whole), len(set(sampled))) == (1000, 100)
    assert sampled == [text for text in whole if text in set(sampled)]
    assert sampled == read_corpus([numbers], sample=100, seed=3)
    assert sampled not in (read_corpus([numbers], sample=100, seed=4), whole[:100])
    for size in (1000, 1001, 10**9):
        assert read_corpus([numbers], sample=size) == whole


def test_every_text_is_as_likely_to_be_sampled(tmp_path):
    path = write(tmp_path / "n.txt", "".join(f"{i}\n" for i in range(20)))
    drawn = Counter(text for seed in range(1500) for text in read_corpus([path], sample=4, seed=seed))
    assert len(drawn) == 20
    assert all(abs(count - 300) <= 5 * 15.5 for count in drawn.values())  # 1500 * 4 / 20 = 300, deviation 15.5
    texts = [f"text {i}" for i in range(400)]
    positions = [int(text.split()[1]) for seed in range(50) for text in pick_by_hash(texts, 40, seed)]
    assert abs(np.mean(positions) - 199.5) < 12  # over 50 seeds of 40 texts a deviation of 2.5


def test_a_sample_by_hash_is_of_distinct_texts_and_of_no_order():
    texts = make_sentences(150)
    want = pick_by_hash(texts, 20, 0)
    assert len(set(want)) == 20
    assert [key_of(text, 0) for text in want] == sorted(key_of(text, 0) for text in texts)[:20]
    assert pick_by_hash(random.Random(1).sample(texts * 3, 450), 20, 0) == want
    assert pick_by_hash(texts, 20, 1) != want
    assert sorted(pick_by_hash(texts, 1000, 0)) == sorted(texts)
    assert pick_by_hash(texts, 10, 0) == want[:10]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(), max_size=5), st.lists(st.text(), max_size=5))
def test_the_hash_is_of_the_texts_their_order_and_their_ends(a, b):
    assert (corpus_hash(a) == corpus_hash(b)) == (a == b)
    hashes = [corpus_hash(texts) for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["ab", "c", ""])]
    assert len(set(hashes)) == 5


def test_cutting_into_sentences(tmp_path):
    for text, parts in (
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("No end", ["No end"]),
        ("It cost 3.5 dollars, i.e. too much. Yes.", ["It cost 3.5 dollars, i.e. too much.", "Yes."]),
        ("犬が走る。猫が眠る。", ["犬が走る。", "猫が眠る。"]),
        ('He left. "Why?" \n 2 came…  Élan.', ["He left.", '"Why?" \n 2 came…', "Élan."]),
        ("...", ["..."]),
    ):
        assert cut_sentences(text) == parts
    path = write(tmp_path / "c.txt", "One. Two.\nTwo. Three.\n\n")
    assert draw(clean(read_texts([path]), cut=True), path) == ["One.", "Two.", "Three."]
    assert read_corpus([path]) == ["One. Two.", "Two. Three."]


@given(arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 10**9)).filter(np.any))
def test_the_perplexity_of_counts_is_that_of_scipy(counts):
    assert np.isclose(measure_perplexity(counts), np.exp(scipy.stats.entropy(counts)), rtol=1e-9)


AT_LARGE = np.array([0.5, 0.1, 0.0, 0.0])  # shares in the language


def test_a_weight_falls_with_the_share_of_the_corpus_and_of_the_language():
    counts = np.array([0, 1, 9, 990])
    weights = compute_sif(counts)
    assert weights.dtype == np.float32
    assert np.allclose(weights, A / (A + np.array([0, 0.001, 0.009, 0.99])), rtol=1e-6)
    assert np.array_equal(compute_sif(0 * counts), [1, 1, 1, 1])
    share = (counts / 1000 + PRIOR * AT_LARGE) / (1 + PRIOR)
    assert np.allclose(compute_sif(counts, AT_LARGE), A / (A + share), rtol=1e-6)
    assert compute_sif(np.array([0, 1, 0, 9]), AT_LARGE)[2] == 1  # of neither
    assert np.allclose(compute_sif(1000 * counts, AT_LARGE), compute_sif(counts, AT_LARGE), rtol=1e-6)
    assert (A, PRIOR) == (5e-4, 20)


def test_every_token_is_counted(encoder, bert, sentences, monkeypatch):
    tokenize, english = Tokenizer(bert, 64), load_english()
    cat = Words({"cat": 900_000.0, "dog": 100_000.0}, module.LENGTH)
    size = len(tokenize._tokenizer.get_vocab())
    for window in (frequencies.WINDOW, 37):
        monkeypatch.setattr(frequencies, "WINDOW", window)
        for words, texts in ((english, [*sentences, *english.sentences]), (cat, sentences), (None, sentences)):
            counts = np.bincount(tokenize(texts).ids, minlength=size)
            expected = compute_sif(counts, words and compute_shares(tokenize, size, words))
            assert np.array_equal(weigh(encoder, sentences, words).pooling.weights[:size], expected)
    assert encoder.pooling.weights is None
    monkeypatch.setattr(frequencies, "HEAD", 50)  # of a corpus that is read once
    head, texts = split_head(iter(sentences))
    assert (head, list(texts)) == (sentences[:50], list(sentences))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "torch", "cpu"])
def test_backends_agree_on_the_weighted_mean(weighted_model, bert, sentences, backend):
    plain = open_encoder(str(bert), LAYERED, 64)
    both = weigh(plain, sentences, load_english()), plain
    expected, unweighted = (Embedder(each, "cpu")(sentences) for each in both)
    runtime = Runtime(weighted_model, backend=backend, dtype="float32")
    pooled, scale = runtime.pool(sentences), np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs((pooled - expected) / scale).max() <= EMBEDDING
    assert np.abs((pooled - unweighted) / scale).max() > 1e-2
    vectors = runtime.encode(["", "a text", ""])  # of special tokens alone
    assert np.isfinite(vectors).all()
    assert np.abs(vectors[0] - vectors[2]).max() <= COMPANY["float32"] * np.abs(vectors).max()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 2, 300, BLOCK, BLOCK + 1])
def test_moments_are_those_of_numpy(rows, dtype):
    x = data(rows, 4, dtype=dtype)
    m, wide = measure_moments(x), x.astype(np.float64)
    assert m.count == rows
    assert np.abs(m.mean - wide.mean(axis=0)).max() <= 1e-12 * np.abs(wide).max()
    expected = np.cov(wide, rowvar=False, bias=True) if rows > 1 else np.zeros((4, 4))
    assert np.abs(m.covariance - expected).max() <= 1e-11 * max(1.0, np.abs(expected).max())


def assert_near(found, whole, x):
    assert found.count == whole.count == len(x)
    assert np.abs(found.mean - whole.mean).max() <= 1e-12 * max(1.0, np.abs(x).max(initial=0))
    assert np.abs(found.scatter - whole.scatter).max() <= 1e-12 * max(1.0, np.abs(whole.scatter).max())


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.booleans(), st.integers(0, 5))
def test_merging_any_split_gives_the_statistics_of_one_pass(sizes, backwards, seed):
    x = data(sum(sizes), 6, seed)
    parts = [Moments(6).update(block) for block in np.split(x, np.cumsum(sizes)[:-1])]
    merged = Moments(6)
    for part in reversed(parts) if backwards else parts:
        merged.merge(part)
    assert_near(merged, Moments(6).update(x), x)


@pytest.mark.parametrize("rows", [1, 7, 100, 333])
def test_reading_a_corpus_through_in_blocks_gives_the_statistics_of_the_whole(monkeypatch, rows):
    monkeypatch.setattr("fastflow.train.data.moments.BLOCK", 50)
    x = data(rows, 6, dtype=np.float32)
    asked = []

    def embed(texts):
        asked.append(len(texts))
        return x[[int(text) for text in texts]]

    streamed = read_through((str(i) for i in range(rows)), embed, 20, seed=3)
    assert asked == [min(50, rows - start) for start in range(0, rows, 50)]
    assert_near(streamed.moments, measure_moments(x), x)
    assert streamed.sha256 == corpus_hash([str(i) for i in range(rows)])
    assert len(streamed.texts) == len(set(streamed.texts)) == min(20, rows)
    assert np.array_equal(streamed.pooled, x[[int(text) for text in streamed.texts]])
    if rows > 100:  # drawn from them
        assert max(map(int, streamed.texts)) >= rows // 2
