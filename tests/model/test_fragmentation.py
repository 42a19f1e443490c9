"""The warning of texts that do not suit the vocabulary: other languages, and never the encoder's own."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from string import ascii_letters

import pytest

from fastflow import FastflowWarning, Runtime
from fastflow.files.read.texts import read_records
from fastflow.model.artifact import load_model
from fastflow.model.encoder import read_config
from fastflow.model.locate import UNTUNED
from fastflow.model.tokenizer import Tokenizer
from fastflow.model.tokenizer.fragmentation import LOOKED_AT, UNLISTED, Seen, take_words, warn_of_unsuited
from fastflow.model.tokenizer.languages import is_multilingual, load_languages, serves
from fastflow.session import MODEL

from support.builders import make_sentences, read_languages

LANGUAGES = read_languages()
ENGLISH = (
    "The train to London leaves at half past eight from platform seven. I forgot my password, and how can I change it? "
    "Two dogs are running over a field in which there is still some snow."
)
WORDS = load_languages()
LETTERS = "".join({*"".join(LANGUAGES.values()), *"".join(map("".join, WORDS.values()))} - set(" "))
FINNISH = "Epäjärjestelmällisyydestään huolimatta rautatieasemarakennushankkeen suunnitteluvaihe päättyi keskiviikkona."
SWAHILI = (
    "Mji wa Nairobi una watu wengi sana, na magari ni mengi barabarani kila siku asubuhi. Wakulima wanasema kuwa mazao "
    "yao yaliharibiwa na mafuriko, kwa hiyo wanahitaji msaada wa haraka. Mwalimu alisema kwamba wanafunzi wasome. "
)
CITIES = (
    "Los Angeles, San Diego, El Paso, Las Vegas, La Mesa, Los Altos, Des Moines, De Soto, El Monte, Las Cruces, Del Mar"
)
CHINESE = ["Where is my parcel? I ordered it last week.", LANGUAGES["Chinese"][:20]]
GERMAN, FRENCH = [LANGUAGES["German"]], [LANGUAGES["French"]]


@pytest.fixture(scope="module")
def english() -> Tokenizer:
    encoder = UNTUNED / "0_Transformer"
    assert read_config(encoder)["vocab_size"] == 30522
    return Tokenizer(encoder, 128)


def write_vocabulary(directory: Path, words: Iterable[str], letters: str = LETTERS) -> Tokenizer:
    """A cased WordPiece vocabulary of these words and letters."""
    pieces = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *letters, *(f"##{each}" for each in letters)])
    (directory / "config.json").write_text(json.dumps({"vocab_size": len(pieces)}))
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    cased = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "strip_accents": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(cased))
    return Tokenizer(directory, 128)


@pytest.mark.parametrize("name", LANGUAGES)
def test_each_language_is_named_to_an_english_vocabulary(english, name):
    said = warn_of_unsuited(english, [LANGUAGES[name]] * 4)  # a Thai sentence is one unknown word
    assert said.startswith(f"the texts look like {name}, and ")
    assert said.endswith(f"their vectors are poor; use an encoder that was made for {name}")
    remedy = warn_of_unsuited(english, [LANGUAGES[name]] * 4, MODEL)
    assert ("-m multilingual" in remedy) == (name != "Thai")  # the model in the package has seen no Thai


@pytest.mark.parametrize(
    ("name", "fault"), [("Russian", "words fall into 3.9 pieces"), ("Chinese", "of the word pieces are unkn")]
)
def test_many_and_unknown_pieces_are_in_the_same_sentence(english, name, fault):
    assert fault in warn_of_unsuited(english, [LANGUAGES[name]])


def test_words_of_the_field_are_named_without_a_language(english):
    said = warn_of_unsuited(
        english, ["Pseudohypoparathyroidism of the hydroxymethylglutaryl dehydrogenase in the rat."] * 9
    )
    assert said.startswith("words fall into ")
    assert said.endswith("use an encoder that was made for this language and field")


def test_a_part_in_another_language_is_noticed(english):
    assert warn_of_unsuited(english, CHINESE * 9).startswith("some of the texts look like Chinese, and ")
    assert warn_of_unsuited(english, [ENGLISH, *FRENCH]).startswith("some of the texts look like French, and ")
    assert warn_of_unsuited(english, [ENGLISH] * 9 + FRENCH) is None  # a tenth


def test_a_vocabulary_is_judged_by_the_words_that_it_has_whole(tmp_path, english):
    assert [name for name in WORDS if serves(english, name)] == ["English"]
    german = write_vocabulary(tmp_path, WORDS["German"], ascii_letters + "äöüß")
    assert [name for name in WORDS if serves(german, name)] == ["German"]  # Greek words are one unknown piece each
    assert "look like German" not in (warn_of_unsuited(german, GERMAN) or "")
    said = warn_of_unsuited(german, [ENGLISH], MODEL)
    assert said.startswith("the texts look like English, and words fall into ")
    assert said.endswith("a model that was made for English, such as -m static")


def test_no_language_of_a_multilingual_vocabulary_is_foreign(tmp_path):
    every = write_vocabulary(tmp_path, [word for words in WORDS.values() for word in words])
    assert is_multilingual(every)
    assert {name: warn_of_unsuited(every, [LANGUAGES.get(name, ENGLISH)]) for name in WORDS} == dict.fromkeys(WORDS)


def test_a_vocabulary_of_no_known_language_is_only_judged_by_its_pieces(tmp_path):
    letters = write_vocabulary(tmp_path, [])
    assert not any(serves(letters, name) for name in WORDS)
    assert warn_of_unsuited(letters, [ENGLISH]).startswith("words fall into ")
    assert warn_of_unsuited(write_vocabulary(tmp_path, take_words(FRENCH)), FRENCH) is None


def test_letters_without_spaces_are_judged_by_their_pieces(encoders):
    assert " pieces on average" in warn_of_unsuited(Tokenizer(encoders("roberta"), 128), [LANGUAGES["Chinese"]] * 4)


def test_vowel_signs_belong_to_their_word():
    assert take_words(["नहीं है, Ko\u0308ln, ที่ไหน"]) == ["नहीं", "है", "Ko\u0308ln", "ที่ไหน"]


def test_a_language_that_a_model_was_fitted_to_is_its_own(english):
    said = warn_of_unsuited(english, FRENCH, fitted=["French"])
    assert said is None or said.startswith("words fall into ")


@pytest.mark.parametrize(
    "texts",
    [
        [], ["Hydroxychloroquine"], make_sentences(200),
        ["2026-11-21 21:34:26,123 ERROR 10.0.0.12:5432 attempt 3/5"] * 100,
        ["The chef seasons the soup with thyme. Was it 12.5 % or 13 %?"] * 10,
        [CITIES] * 9, ["The decay of \u03b1 and \u03b2 at \u03c0/2 was seen."] * 9,
        [ENGLISH], ["de la cruz, van der berg, la paz, el de la"] * 9,
        ["def load(self, path: str) -> int: return self.size if path is None else len(path)"] * 9,
    ],
)  # fmt: skip
def test_own_language_numbers_and_too_few_words_are_nothing_to_speak_of(english, texts):
    assert warn_of_unsuited(english, texts) is None


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_every_kind_of_vocabulary_counts_its_pieces(encoders, family):
    vocabulary = Tokenizer(encoders(family), 128)
    words = ["the", "dog", "house"]
    total, unknown = vocabulary.pieces(words)
    assert (total >= 3, unknown) == (True, 0)
    assert vocabulary.pieces(words * 10) == (total * 10, 0)
    assert vocabulary.pieces([]) == (0, 0)
    if family != "roberta":  # bytes know everything
        assert vocabulary.pieces(["\u4e2d"])[1] >= 1


@pytest.mark.data
@pytest.mark.parametrize("name", ["leipzig-eng-news-2016-10k.txt", "openstax-ccby.txt.gz", "wikipedia-core.txt.gz"])
def test_english_corpora_are_not_warned_of(english, shared_data, name):
    path = shared_data / "corpora" / name
    with gzip.open(path, "rt") if name.endswith(".gz") else path.open() as lines:
        texts = [line for _, line in zip(range(500), lines, strict=False)]
    assert warn_of_unsuited(english, texts) is None


@pytest.mark.parametrize(
    ("text", "characters", "said"),
    [
        (FINNISH, 100, None), (CITIES, 1000, None), (SWAHILI, 500, None),
        (SWAHILI, 1000, "none of the model's languages is recognised in the texts, and words fall into 2."),
        (LANGUAGES["Thai"], 100, "the texts look like Thai, and "),
    ],
)  # fmt: skip
def test_the_multilingual_model_knows_its_languages(text, characters, said):
    with Runtime("multilingual") as runtime:
        found = runtime.session.warn_of([text] * -(-characters // len(text)))
    assert (found or "").startswith(said or "\0") or found is said is None


@pytest.mark.data
@pytest.mark.whole
def test_of_first_texts_in_its_languages_a_hundredth_is_foreign_to_the_multilingual_model(shared_data):
    with Runtime("multilingual") as runtime:
        for path in sorted((shared_data / "langs").rglob("*.txt*")):
            texts, name = [record.texts[0] for record in read_records(str(path))], path.name.partition(".")[0]
            starts = range(0, len(texts) - 100, len(texts) // 200)
            for characters in (100, 1000):
                noticed = 0
                for end in starts:
                    first: list[str] = []
                    while sum(map(len, first)) < characters:
                        first.append(texts[end + len(first)])
                    noticed += runtime.session.warn_of(first) is not None
                if name not in ("is", "th"):
                    assert noticed <= 0.01 * len(starts), (path, characters)
                elif characters == 1000:
                    assert noticed >= 0.85 * len(starts), path


# ---- the note of ``Runtime.info()``


@pytest.mark.parametrize(
    "use",
    [
        lambda runtime, texts: runtime.encode(texts),
        lambda runtime, texts: [runtime.encode(text) for text in texts],
        lambda runtime, texts: list(runtime.stream(iter(texts))),
        lambda runtime, texts: runtime.pool(texts),
        lambda runtime, texts: runtime.similarity(texts[:1], texts),
    ],
    ids=["encode", "one", "stream", "pool", "similarity"],
)
def test_foreign_texts_are_noted(use):
    with Runtime() as runtime:
        assert runtime.info()["notes"] == []
        with pytest.warns(FastflowWarning, match="look like German"):
            use(runtime, GERMAN)
        (note,) = runtime.info()["notes"]
    assert note.startswith("texts embedded so far: the texts look like German, and words fall into ")
    assert note.endswith(
        "use a model that was made for German, such as -m multilingual (the model default is English only)"
    )


def test_own_texts_and_vectors_are_not():
    with Runtime() as runtime:
        runtime.encode(["Two dogs run across a field.", "The tax was raised on Tuesday by the government."])
        runtime.transform(runtime.pool(["A man plays a guitar."]))
        assert runtime.info()["notes"] == []


def test_no_more_text_is_kept_than_is_looked_at():
    seen = Seen()
    for _ in range(10):
        seen.add(["x" * (2 * LOOKED_AT), "y"])
    assert sum(map(len, seen.texts)) <= LOOKED_AT


def test_python_warns_once_and_says_that_the_packaged_model_is_english():
    runtime = Runtime()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.encode("Straßenbahnhaltestelle")  # a name alone shows nothing
    with pytest.warns(FastflowWarning, match=r"look like German.*\(the model default is English only\)") as found:
        list(map(runtime.encode, [GERMAN, GERMAN, FRENCH * 9]))
    assert len(found) == 1


@pytest.mark.parametrize("name", ["default", "static"])
def test_a_language_that_comes_later_is_noticed(name):
    with Runtime(name) as runtime:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runtime.encode([ENGLISH])
        with pytest.warns(FastflowWarning, match="look like French, and .* such as -m multilingual"):
            runtime.encode(FRENCH * 6)


def test_only_a_language_that_it_has_not_seen_is_foreign_to_the_multilingual_model():
    assert {*load_languages(), *UNLISTED} == set(load_model("multilingual").manifest["training"]["languages"])
    for name, text in LANGUAGES.items():
        with Runtime("multilingual") as runtime:
            with warnings.catch_warnings(record=True):
                runtime.encode([text] * 5)
            assert bool(runtime.info()["notes"]) == (name == "Thai"), name
