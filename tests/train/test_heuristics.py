"""Poolings are chosen by neighbouring sentences, and encoders that were tuned for similarity are recognised."""

import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.errors import UsageError
from fastflow.model.locate import PACKAGED
from fastflow.train.data.background import draw_sentences, load_english
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.train.data.token_weights import weigh
from fastflow.train.pipeline.diagnosis import diagnose_encoder
from fastflow.train.selection import heuristics
from fastflow.train.selection.heuristics import (
    CONE,
    Ranking,
    compare,
    find_pairs,
    find_tuning,
    load_english_pairs,
    measure_crowding,
    name_candidates,
    rank,
    read_probe,
)
from fastflow.transforms.pooling import parse_pooling
from fastflow.transforms.vectors import cosine

from support.builders import make_tuned
from support.commands import make_train
from support.sentence_dirs import NORMALIZE, make_directory, pooling
from support.tolerances import EMBEDDING


def test_a_sentence_ranks_the_next_one_by_cosine_about_the_mean():
    x = np.random.default_rng(0).normal(size=(50, 8))
    assert (rank(x, 3 * x) == 1).all()
    shifted = rank(x + 100, 3 * x + 100)  # a mean that all share says nothing
    assert (shifted == 1).all()
    assert rank(x, np.roll(x, 1, axis=0)).mean() < 0.5
    assert (rank(np.ones((4, 2)), np.ones((4, 2))) == 0.25).all()  # equal cosines rank last


def test_a_pooling_is_chosen_only_if_it_is_ahead_by_more_than_noise():
    rng = np.random.default_rng(1)
    usual = rng.uniform(size=600)
    noise = rng.normal(scale=0.3, size=600)
    noise -= noise.mean()
    error = noise.std() / np.sqrt(600)
    assert Ranking({"words": usual, "last": usual + noise + 1.9 * error}).best == "words"
    assert Ranking({"words": usual, "last": usual + noise + 2.1 * error}).best == "last"
    assert Ranking({"words": usual, "last": usual + 0.1, "first-last": usual + 0.2}).best == "first-last"
    assert Ranking({"words": usual}).best == "words"


def test_pairs_are_neighbours_spread_over_texts_and_sorted_lines_have_none():
    texts = [f"Sentence number {i} is here. {'Zebras' if i % 2 else 'Apes'} follow sentence {i}." for i in range(2000)]
    pairs = find_pairs(texts)
    assert len(pairs) == heuristics.PAIRS
    sentences = [part for text in texts for part in (text[: text.index(".") + 1], text[text.index(".") + 2 :])]
    places = [sentences.index(first) for first, _ in pairs]
    assert [sentences[i + 1] for i in places] == [second for _, second in pairs]
    assert (places[0], places[-1] > 3900) == (0, True)
    words = [word for word in load_english().shares if word.isalpha()]
    lines = [f"{'“' * (i % 3)}{(word, word.title())[i % 2]} has some words" for i, word in enumerate(words)]
    letters = sorted(lines, key=lambda line: line.lower().strip("“"))
    for texts in (sorted(f"{i:04d} has some words" for i in range(2000)), sorted(lines), letters, letters[::-1]):
        assert find_pairs(texts) == []
    assert find_pairs(["Too short. Also this."] * 9) == [] == find_pairs([])


def test_the_package_has_pairs_of_sentences():
    pairs = load_english_pairs()
    assert len(pairs) == heuristics.PAIRS
    assert all(len(side) >= 40 and not side.startswith("#") for pair in pairs for side in pair)


def test_three_passes_give_every_candidate(bert):
    pairs = load_english_pairs()[: heuristics.FEWEST]
    encoder = weigh(open_encoder(str(bert), "words", None), [text for pair in pairs for text in pair], load_english())
    found = compare(encoder, [(text, text) for text, _ in pairs], "cpu")  # a text finds itself
    assert found is not None
    assert list(found.ranks) == name_candidates(3)
    assert all(value == 1 for value in found.means.values())
    for name in name_candidates(3):
        pooling = replace(parse_pooling(name, 3), weights=encoder.pooling.weights)
        direct = Embedder(replace(encoder, pooling=pooling), "cpu")([first for first, _ in pairs])
        parts = [heuristics._embed(encoder, (layer,), [first for first, _ in pairs], "cpu") for layer in pooling.layers]
        assert np.abs(np.mean(parts, axis=0) - direct).max() < EMBEDDING
    texts = draw_sentences(2 * len(pairs), load_english())
    assert compare(encoder, list(zip(texts[::2], texts[1::2], strict=True)), "cpu") is None
    assert compare(encoder, [(text, text) for text, _ in pairs[:-1]], "cpu") is None  # too few


@pytest.mark.parametrize("stream", [False, True])
def test_a_fit_averages_the_layers_that_neighbours_choose_and_says_so(bert, corpus, monkeypatch, stream):
    texts = corpus.read_text().splitlines()
    usual = fastflow.fit(texts, encoder=str(bert), stream=stream, method="none")
    assert usual.report["reasons"][-1] == heuristics.UNORDERED  # neither ordered nor English
    ranks = {name: np.full(300, 0.3 if name == "last" else 0.2) for name in name_candidates(3)}
    monkeypatch.setattr(heuristics, "compare", lambda *given: Ranking(ranks))
    fit = fastflow.fit(texts, encoder=str(bert), stream=stream, method="none")
    assert fit.encoder.pooling.layers == (3,)
    assert fit.encoder.pooling.weights is not None
    assert fit.report["reasons"][-1].startswith("pooling last: how well a sentence of the corpus finds the next one")
    assert "words 0.200, words-first-last 0.200, first-last 0.200, last 0.300" in fit.report["reasons"][-1]
    named = fastflow.fit(texts, encoder=str(bert), stream=stream, method="none", pooling="words")
    assert named.encoder.pooling.layers == usual.encoder.pooling.layers


def test_the_order_may_come_from_a_file(bert, corpus, tmp_path):
    texts, order = corpus.read_text().splitlines(), tmp_path / "order.txt"
    order.write_text("\n".join(f"Once {word} went out to the {word} of {word}. It was {word} and {word}." for word in
                               dict.fromkeys(" ".join(draw_sentences(60, load_english())).split())))  # fmt: skip
    fit = fastflow.fit(texts, encoder=str(bert), method="none", order_from=str(order))
    assert f"a sentence of --order-from {order} finds the next one" in fit.report["reasons"][-1]
    order.write_text("\n".join(draw_sentences(900, load_english())))
    with pytest.raises(UsageError, match="its neighbouring sentences are no more alike than others"):
        fastflow.fit(texts, encoder=str(bert), method="none", order_from=str(order))
    with pytest.raises(UsageError, match="order_from= compares poolings for pooling=auto: leave one of them out"):
        fastflow.fit(texts, encoder=str(bert), method="none", order_from=str(order), pooling="last")


@pytest.mark.slow
def test_a_list_of_words_is_not_taken_for_english_and_the_package_keeps_words(tmp_path):
    texts, copy = draw_sentences(300, load_english()), tmp_path / "encoder"
    shutil.copytree(PACKAGED["small"] / "0_SentenceTransformer" / "0_Transformer", copy)
    (tmp_path / "words.txt").write_text("\n".join(f"{word} 5" for word in load_english().shares))
    (tmp_path / "order.txt").write_text("\n".join(side for pair in load_english_pairs() for side in pair))

    def explain(encoder, **options):
        return fastflow.fit(texts, encoder=encoder, method="none", **options).report["reasons"]

    assert explain(copy)[-1].startswith("pooling last: how well a sentence of the English novels in the package")
    assert explain(copy, background_words=str(tmp_path / "words.txt")) == [heuristics.UNORDERED]
    assert explain("untuned") == []
    ordered = explain(copy, order_from=str(tmp_path / "order.txt"))
    assert ordered[-1].startswith(f"pooling last: how well a sentence of --order-from {tmp_path}")


def test_short_posts_are_fitted_as_other_texts_are(bert):
    fit = fastflow.fit([f"omg he has it all and i see it again tbh {i}" for i in range(90)], encoder=str(bert))
    assert fit.encoder.pooling.weights is not None


def open_last(encoder):
    return open_encoder(str(encoder), "last", None)


SAID = "this encoder was tuned for similarity: unrelated sentences have a mean cosine of "
DOUBT = "a calibration without labels was never found to help an encoder that was tuned for similarity, as this one was"


@pytest.fixture(scope="module")
def spread(tmp_path_factory, bert):
    """An encoder whose embeddings of the probe are spread out."""
    return make_tuned(tmp_path_factory.mktemp("tuned") / "encoder", bert)


@pytest.fixture(scope="module")
def sentence_model(spread, tmp_path_factory):
    """The same as Sentence Transformers saves it: CLS, normalised, at most 12 tokens."""
    return make_directory(tmp_path_factory.mktemp("st") / "m", spread, [pooling("cls"), NORMALIZE], length=12)


@pytest.fixture
def fit_spread(spread, corpus, tmp_path):
    """``fit_spread(*options)`` -> (standard error, manifest) of fastflow-train on the tuned encoder."""

    def fit(*options):
        result = make_train(spread, corpus, tmp_path)(*options)
        assert result.exit_code == 0, result.stderr
        return result.stderr, json.loads((tmp_path / "m" / "fastflow.json").read_text())

    return fit


def test_the_probe_is_sentences_of_no_common_word():
    sentences = read_probe()
    assert len(sentences) == len(set(sentences)) == 32
    assert all(sentence == sentence.strip() and sentence[-1] in ".?" for sentence in sentences)
    words = [{word for word in sentence.lower().strip(".?").split() if len(word) > 5} for sentence in sentences]
    common = set().union(*(a & b for i, a in enumerate(words) for b in words[:i]))
    assert common == {"before", "better"}  # which are no subject


@pytest.mark.slow
def test_crowding_is_the_mean_cosine_of_two_different_sentences(bert, spread):
    x = Embedder(open_encoder(str(bert), "last", None), "cpu")(read_probe()).astype(np.float64)
    pairs = [cosine(x[i : i + 1], x[j : j + 1])[0, 0] for i in range(len(x)) for j in range(i)]
    assert measure_crowding(open_last(bert)) == pytest.approx(np.mean(pairs), abs=1e-9)
    assert abs(measure_crowding(open_last(spread))) < CONE
    assert measure_crowding(open_last("untuned")) > CONE + 0.1


def test_spread_out_is_near_no_cosine_at_all(bert, monkeypatch):
    for found in (0.299, 0.1, 0.0, -0.299, CONE, CONE + 0.09, -CONE):  # a cone and its opposite are no tuning
        monkeypatch.setattr(heuristics, "measure_crowding", lambda encoder, found=found: found)
        said = f"unrelated sentences have a mean cosine of {found:.2f}, where an untuned one has 0.3 and more"
        assert find_tuning(open_last(bert)) == (said if abs(found) < CONE else None), found


@pytest.mark.slow
def test_such_an_encoder_is_kept_as_it_is(spread, fit_spread, tmp_path, sentences):
    said, made = fit_spread("--method", "auto", "--background", "50")
    assert SAID in said
    assert SAID in (tmp_path / "m" / "README.md").read_text()
    (reason,) = made["training"]["reasons"]
    assert reason.startswith(SAID)
    assert (made["training"]["method"], made["training"]["background"]) == ("auto", 0)
    assert (made["pooling"], made["calibration"]) == ({"mode": "mean", "layers": [3]}, [])
    expected = Embedder(open_encoder(str(spread), "last", None), "cpu")(sentences)
    found = Runtime(tmp_path / "m", backend="reference").encode(sentences)
    assert np.abs(found - expected).max() <= EMBEDDING * np.linalg.norm(expected, axis=1).max()


def test_of_sentence_transformers_it_keeps_every_module_and_the_limit(spread, sentence_model, tmp_path, sentences):
    texts = [*sentences[:9], " ".join(sentences)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the pooled embeddings are spread out, and a text is cut
        fit = fastflow.fit(sentences, sentence_model)
        fit.save(tmp_path / "made")
        with Runtime(tmp_path / "made", dtype="float32") as found, Runtime(sentence_model, dtype="float32") as exact:
            assert np.array_equal(found.encode(texts), exact.encode(texts))
        part = fastflow.fit(sentences, sentence_model, pooling="last", method="standardize")
    assert [reason for reason in fit.report["reasons"] if reason.startswith(SAID)] == fit.report["reasons"]
    left = "uses its encoder alone, without Pooling (cls), Normalize"
    assert [left in " ".join(each.report["warnings"]) for each in (fit, part)] == [False, True]
    cut = make_directory(tmp_path / "cut", spread, [pooling("cls"), NORMALIZE], length=12, truncate_dim=8)
    looks = ((sentence_model, False), (sentence_model, True), (cut, False))  # True: of the encoder on the Hub
    assert [diagnose_encoder(str(given), reference).whole for given, reference in looks] == [True, False, False]


def test_a_crowded_encoder_was_tuned_if_its_modules_have_normalize(bert, tmp_path):
    plain = make_directory(tmp_path / "plain", bert, [pooling("mean")])
    unit = make_directory(tmp_path / "unit", bert, [pooling("mean"), NORMALIZE])
    assert (find_tuning(open_last(plain)), find_tuning(open_last(unit))) == (None, "its modules have Normalize")


def test_a_named_method_calibrates_the_pooling_that_the_encoder_was_tuned_with(sentence_model, sentences):
    with pytest.warns(UserWarning, match=DOUBT):
        fit = fastflow.fit(sentences, sentence_model, method="nullspace:1")
    assert [module.split(" ")[0] for module in fit.encoder.modules.names()] == ["Pooling", "Normalize"]
    assert fit.encoder.head is not None
    assert fit.encoder.max_length == 12
