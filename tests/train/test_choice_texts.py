"""A pooling is chosen by neighbouring sentences, and short posts keep the plain mean of the encoder."""

import random
import shutil
from dataclasses import replace

import numpy as np
import pytest

import fastflow
from fastflow.errors import UsageError
from fastflow.model.locate import DEFAULT
from fastflow.stages.pooling import parse_pooling
from fastflow.train.choice import neighbours
from fastflow.train.choice.neighbours import Ranking, compare, find_pairs, load_english_pairs, name_candidates, rank
from fastflow.train.choice.posts import recognise_posts
from fastflow.train.data.background import draw_sentences, load_english
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.train.data.token_weights import weigh

from support.builders import make_tuned
from support.tolerances import EMBEDDING

LISTED = (
    "the game was so good and i want to see it again with you",
    "who is going to the show this week",
    "he has it all",
)
SLANG = ["omg", "lol", "rn", "tbh", "smh", "ngl"]


def make_posts(count=300):
    rng = random.Random(0)
    return [
        f"{rng.choice(SLANG)} {' '.join(rng.choice(LISTED).split()[:6])} {rng.choice(SLANG)} {i}" for i in range(count)
    ]


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
    assert len(pairs) == neighbours.PAIRS
    sentences = [part for text in texts for part in (text[: text.index(".") + 1], text[text.index(".") + 2 :])]
    places = [sentences.index(first) for first, _ in pairs]
    assert [sentences[i + 1] for i in places] == [second for _, second in pairs]
    assert places[0] == 0
    assert places[-1] > 3900
    assert find_pairs(sorted(f"{i:04d} has some words" for i in range(2000))) == []
    assert find_pairs(["Too short. Also this."] * 9) == [] == find_pairs([])


def test_the_package_has_pairs_of_sentences():
    pairs = load_english_pairs()
    assert len(pairs) == neighbours.PAIRS
    assert all(len(side) >= 40 and not side.startswith("#") for pair in pairs for side in pair)


def test_three_passes_give_every_candidate(bert):
    pairs = load_english_pairs()[: neighbours.FEWEST]
    encoder = weigh(open_encoder(str(bert), "words", None), [text for pair in pairs for text in pair], load_english())
    found = compare(encoder, [(text, text) for text, _ in pairs], "cpu")  # a text finds itself
    assert found is not None
    assert list(found.ranks) == name_candidates(3)
    assert all(value == 1 for value in found.means.values())
    for name in name_candidates(3):
        pooling = replace(parse_pooling(name, 3), weights=encoder.pooling.weights)
        direct = Embedder(replace(encoder, pooling=pooling), "cpu")([first for first, _ in pairs])
        parts = [neighbours._embed(encoder, (layer,), [first for first, _ in pairs], "cpu") for layer in pooling.layers]
        assert np.abs(np.mean(parts, axis=0) - direct).max() < EMBEDDING
    assert compare(encoder, random_pairs(pairs), "cpu") is None
    assert compare(encoder, [(text, text) for text, _ in pairs[:-1]], "cpu") is None  # too few


def random_pairs(pairs):
    texts = draw_sentences(2 * len(pairs), load_english())
    return list(zip(texts[::2], texts[1::2], strict=True))


@pytest.mark.parametrize("stream", [False, True])
def test_a_fit_averages_the_layers_that_neighbours_choose_and_says_so(bert, corpus, monkeypatch, stream):
    texts = corpus.read_text().splitlines()
    usual = fastflow.fit(texts, encoder=str(bert), stream=stream, method="none")
    assert usual.report["reasons"][-1] == neighbours.UNORDERED  # neither ordered nor English
    ranks = {name: np.full(300, 0.3 if name == "last" else 0.2) for name in name_candidates(3)}
    monkeypatch.setattr(neighbours, "compare", lambda *given: Ranking(ranks))
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
    with pytest.raises(UsageError, match="order_from compares poolings for pooling auto: leave one of them out"):
        fastflow.fit(texts, encoder=str(bert), method="none", order_from=str(order), pooling="last")


@pytest.mark.slow
def test_a_list_of_words_is_not_taken_for_english_and_the_package_keeps_words(tmp_path):
    texts, copy = draw_sentences(300, load_english()), tmp_path / "encoder"
    shutil.copytree(DEFAULT / "0_Transformer", copy)
    (tmp_path / "words.txt").write_text("\n".join(f"{word} 5" for word in load_english().shares))
    (tmp_path / "order.txt").write_text("\n".join(side for pair in load_english_pairs() for side in pair))

    def explain(encoder, **options):
        return fastflow.fit(texts, encoder=encoder, method="none", **options).report["reasons"]

    assert explain(copy)[-1].startswith("pooling words: how well a sentence of the English novels in the package")
    assert explain(copy, background_words=str(tmp_path / "words.txt")) == [neighbours.UNORDERED]
    assert explain("default") == []
    ordered = explain("default", order_from=str(tmp_path / "order.txt"))
    assert ordered[-1].startswith(f"pooling words: how well a sentence of --order-from {tmp_path}")


def test_a_tuned_encoder_is_left_as_it_is_whatever_the_texts(bert, tmp_path):
    tuned = str(make_tuned(tmp_path / "tuned", bert))
    fit = fastflow.fit(make_posts(), encoder=tuned)
    assert [reason[:15] for reason in fit.report["reasons"]] == ["this encoder wa"]
    assert fit.encoder.pooling.layers == (3,)


def test_posts_are_recognised_and_other_short_texts_are_not():
    english = load_english()
    posts = make_posts()
    assert recognise_posts(posts, english).startswith("these texts look like short posts: 9 words in the median")
    assert recognise_posts(posts, None) is None
    assert recognise_posts(posts[:20], english) is None  # too few words to tell
    captions = [" ".join(text.split()[:9]) for text in english.sentences]
    assert recognise_posts(captions, english) is None
    titles = [f"{slang} {text.split()[0]} {slang}" for slang in SLANG for text in english.sentences[:75]]
    assert recognise_posts(titles, english) is None  # few common words
    assert recognise_posts([f"{a} {b}" for a, b in zip(posts, captions, strict=False)], english) is None  # long


@pytest.mark.parametrize("stream", [False, True])
def test_posts_keep_the_plain_mean_and_a_named_method_is_warned_of(bert, stream, recwarn):
    posts = make_posts()
    fit = fastflow.fit(posts, encoder=str(bert), stream=stream)
    assert fit.report["method"] == "none"
    assert "short posts" in fit.report["reasons"][-1]
    assert fit.encoder.pooling.weights is None
    assert fit.encoder.pooling.layers == (1, 3)
    with pytest.warns(
        fastflow.FastflowWarning, match="look like short posts.*compare with a fit of method none, token_weights none"
    ):
        named = fastflow.fit(posts, encoder=str(bert), stream=stream, method="none", token_weights="sif")
    assert named.encoder.pooling.weights is not None
