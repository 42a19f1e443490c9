"""The warning of texts that do not suit the vocabulary: other languages, and never the encoder's own."""

from __future__ import annotations

import gzip
import warnings

import pytest

from fastflow import FastflowWarning, Runtime
from fastflow.model.encoder import read_config
from fastflow.model.locate import DEFAULT
from fastflow.model.tokenizer import Tokenizer
from fastflow.model.tokenizer.fragmentation import LOOKED_AT, Seen, warn_of_unsuited

from support.builders import make_sentences

GERMAN = [
    "Der Zug nach München fährt heute leider erst um halb neun vom Gleis sieben ab.",
    "Die Bundesregierung hat am Dienstag eine Erhöhung der Umsatzsteuer beschlossen.",
    "Zwei Hunde laufen über ein verschneites Feld.",
]
FRENCH = [
    "Le train pour Paris part à huit heures et demie du quai numéro sept.",
    "J'ai oublié mon mot de passe, comment puis-je le réinitialiser ?",
    "Deux chiens courent à travers un champ enneigé.",
]
RUSSIAN = ["Поезд в Москву отправляется в половине девятого от седьмой платформы.", "Я забыл свой пароль."]
CHINESE = ["开往北京的火车八点半发车，两只狗在雪地里奔跑。"] * 30


@pytest.fixture(scope="module")
def english() -> Tokenizer:
    encoder = DEFAULT / "0_Transformer"
    assert read_config(encoder)["vocab_size"] == 30522
    return Tokenizer(encoder, 128)


MANY, UNKNOWN = "pieces on average, where up to 1.55 is usual", "of the word pieces are unknown to the encoder"


@pytest.mark.parametrize(
    ("texts", "said"), [*((texts, MANY) for texts in (GERMAN, FRENCH, RUSSIAN)), (CHINESE, UNKNOWN)]
)
def test_other_languages_fall_into_many_or_unknown_pieces(english, texts, said):
    assert said in warn_of_unsuited(english, texts)


@pytest.mark.parametrize(
    "texts",
    [
        [], ["Hydroxychloroquine"], make_sentences(200),
        ["2026-11-21 21:34:26,123 ERROR 10.0.0.12:5432 attempt 3/5"] * 100,
        ["The chef seasons the soup with thyme. Was it 12.5 % or 13 %?"] * 10,
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
        with pytest.warns(FastflowWarning, match="words fall into"):
            use(runtime, GERMAN)
        (note,) = runtime.info()["notes"]
    assert note.startswith("texts embedded so far: words fall into ")
    assert note.endswith("use an encoder that was made for this language and field")


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
    said, texts = r"pieces on average.*\(the model in the package is English only\)", GERMAN
    with pytest.warns(FastflowWarning, match=said) as found:
        list(map(runtime.encode, [texts, texts]))
    assert len(found) == 1
