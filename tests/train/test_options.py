"""The options of a fit: one place for their defaults, and what no fit can have is refused."""

import inspect
import re

import pytest

import fastflow
from fastflow.commands.train import train as main
from fastflow.errors import UsageError
from fastflow.train.data.background import LENGTH, Words, draw_sentences, load_english
from fastflow.train.data.embeddings import open_encoder
from fastflow.train.data.token_weights import count_tokens, measure_perplexity
from fastflow.train.fits.corpus import Corpus, _find_words, _make_usual_background, count_fitted
from fastflow.train.methods.flow import FlowConfig
from fastflow.train.methods.loop import Schedule
from fastflow.train.options import COLOURS, DEFAULTS, LARGE, LARGE_CORPUS, SMALL, Options


def test_the_command_takes_every_option_with_its_default_and_its_choices():
    command = {option.name: option for option in main.params}
    for name, value in vars(DEFAULTS).items():
        if value not in (None, False):  # else it is what the command takes without the option
            assert command[name].default == value, name
    assert list(command["stop"].type.choices) == ["rule", "budget", "likelihood"]
    assert (command["levels"].type.min, command["levels"].type.max) == (1, 4)
    assert (command["mean_share"].type.max, command["lr"].type.min_open) == (0.99, True)
    assert command["latent"].is_flag
    assert all(command[name].help for name in vars(DEFAULTS))


def test_fit_the_flow_and_the_schedule_have_the_same_defaults():
    named = inspect.signature(fastflow.fit).parameters
    for name in ("method", "pooling", "token_weights", "seed"):
        assert named[name].default == getattr(DEFAULTS, name)
    config, schedule = FlowConfig(dim=256), Schedule()
    assert {name: getattr(config, name) for name in DEFAULTS.shape()} == DEFAULTS.shape()
    assert vars(schedule) == {name: getattr(DEFAULTS, name) for name in vars(schedule)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": "never"}, "--stop must be rule or budget or likelihood, not 'never'"),
        ({"token_weights": "tfidf"}, "--token-weights must be auto or sif or none, not 'tfidf'"),
        ({"device": "tpu"}, "--device must be cpu or cuda, not 'tpu'"),
        ({"levels": 5}, "--levels must be 1 to 4, not 5"),
        ({"batch_size": 1}, "--batch-size must be a whole number of at least 2, not 1"),
        ({"batch_size": 2.5}, "--batch-size must be a whole number of at least 2, not 2.5"),
        ({"depth": True}, "--depth must be a whole number of at least 1, not True"),
        ({"seed": None}, "--seed must be a whole number of at least 0, not None"),
        ({"sample": 0}, "--sample must be a whole number of at least 1, not 0"),
        ({"max_length": 12.0}, "--max-length must be a whole number, not 12.0"),
        ({"lr": float("nan")}, "--lr must be a number above 0, not nan"),
        ({"lr": "1e-3"}, "--lr must be a number above 0, not '1e-3'"),
        ({"epochs": 0}, "--epochs must be a number above 0, not 0"),
        ({"method": None}, "--method must be a name, not None"),
        ({"stream": "yes"}, "--stream must be True or False, not 'yes'"),
        ({"method": "auto", "stop": "budget"}, "--method auto chooses by the rule"),
        ({"spectrum": 1.01}, "--spectrum must be a number from 0 to 1, not 1.01"),
        ({"spectrum": True}, "--spectrum must be a number from 0 to 1, not True"),
        ({"mean_share": 1}, "--mean-share must be a number from 0 to 0.99, not 1"),
        ({"mean_share": float("nan")}, "--mean-share must be a number from 0 to 0.99, not nan"),
        ({"demoted": -1}, "--demoted must be a whole number of at least 0, not -1"),
        ({"latent": None}, "--latent must be True or False, not None"),
    ],
)
def test_values_that_no_fit_can_have(options, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        Options(**options)


@pytest.mark.parametrize(
    ("texts", "size"), [(0, SMALL), (LARGE_CORPUS - 1, SMALL), (LARGE_CORPUS, LARGE), (10**6, LARGE)]
)
def test_a_flow_is_larger_on_a_large_corpus_unless_its_size_is_named(texts, size):
    assert LARGE["depth"] > SMALL["depth"]
    assert LARGE["width"] > SMALL["width"]
    usual = {"levels": 2, "coupling": "additive", "permutation": "reversal"}
    assert Options().shape(texts) == usual | size
    assert Options(depth=4).shape(texts) == usual | size | {"depth": 4}
    assert Options(depth=1, width=9, levels=3).shape(texts) == usual | {"depth": 1, "width": 9, "levels": 3}


def test_a_flow_is_large_beside_the_background():
    assert Options().shape(100, 1000) == Options().shape(LARGE_CORPUS) != Options().shape(100, 0)
    assert Options(width=9).shape(100, 1000)["width"] == 9


LIST = Words({"der": 1e6}, LENGTH)


@pytest.mark.parametrize(
    ("texts", "sentences", "fitted"),
    [(2, 3000, 2), (750, 3000, 750), (751, 3004, 751), (2500, 10_000, 2500), (2501, 10_000, 2500),
     (10**9, 10_000, 2500)],
)  # fmt: skip
def test_random_words_alone_outweigh_the_corpus_fourfold(texts, sentences, fitted):
    assert _make_usual_background(LIST, texts) == draw_sentences(sentences, LIST)
    assert count_fitted(corpus_of(texts, LIST), DEFAULTS, sentences) == fitted


@pytest.mark.parametrize("texts", [2, 1250, 1251, 10**9])
def test_english_sentences_and_as_many_of_random_words_outweigh_it_eightfold(texts):
    words = load_english()
    assert _make_usual_background(words, texts) == [*words.sentences, *draw_sentences(5000, words)]
    assert count_fitted(corpus_of(texts, words, 270), DEFAULTS, 10_000) == min(texts, 1250)


@pytest.mark.parametrize(
    ("texts", "perplexity", "fitted"),
    [(10**9, 540, 1250), (1250, 270, 1250), (1250, 269.9, 1248), (1248, 269.9, 1248), (10**9, 135, 156),
     (10**9, 65.4, 17), (16, 65.4, 16), (10**9, 1, 2), (2, 1, 2)],
)  # fmt: skip
def test_the_smaller_the_vocabulary_of_an_english_corpus_the_fewer_of_its_texts_count(texts, perplexity, fitted):
    assert count_fitted(corpus_of(texts, load_english(), perplexity), DEFAULTS, 10_000) == fitted
    assert count_fitted(corpus_of(texts, LIST, perplexity), DEFAULTS, 10_000) == min(texts, 2500)  # words alone
    assert count_fitted(corpus_of(texts, load_english(), perplexity), Options(background=7), 7) == texts


def test_the_tokens_of_a_corpus_are_counted_in_texts_from_all_of_it(bert, monkeypatch):
    monkeypatch.setattr("fastflow.train.fits.corpus.COUNTED", 3)
    frozen, texts = open_encoder(str(bert), "words", None), ["a b", "the dog runs", "c", "the man", "a child sees it"]

    def found(texts):
        return Corpus("texts", texts, len(texts), "", frozen).perplexity

    assert found(texts) == found([texts[0], texts[2], texts[4]]) == measure_perplexity(count_tokens(frozen, texts[::2]))
    assert found(texts[:2]) == measure_perplexity(count_tokens(frozen, texts[:2])) != found(texts[:1])


def test_a_background_that_is_named_is_of_random_words_beside_all_texts():
    words = _find_words(["the dog runs with the man"], Options(background=7))
    assert (words.sentences, words.shares) == ((), load_english().shares)
    assert _find_words(["the dog runs with the man"], Options()).sentences
    assert count_fitted(corpus_of(10**9, words), Options(background=7), 7) == 10**9


def test_nothing_outweighs_a_corpus_of_an_unknown_language():
    assert _make_usual_background(None, 300) == []
    assert count_fitted(corpus_of(10**9, None), DEFAULTS, 0) == 10**9


def corpus_of(count, words, perplexity=1e9):
    corpus = Corpus("texts", [], count, "", None, words)
    vars(corpus)["perplexity"] = perplexity  # as if its texts had been counted
    return corpus


def test_what_follows_a_flow_goes_by_the_token_weights_unless_it_is_named():
    assert COLOURS["sif"] != COLOURS["none"]
    assert Options(token_weights="sif").colour == Options().colour == COLOURS["sif"]
    assert Options(token_weights="none").colour == COLOURS["none"]
    assert Options(spectrum=0, demoted=0).colour == COLOURS["sif"] | {"spectrum": 0.0, "demoted": 0}
    assert Options(token_weights="none", mean_share=0.2).colour == COLOURS["none"] | {"mean_share": 0.2}


def test_a_whole_number_of_epochs_is_recorded_like_any_other():
    assert repr(Options(epochs=2).epochs) == "2.0"


def test_the_options_and_the_name_of_fit_load_no_array_library(run_python):
    program = "import sys, fastflow.commands.train; fastflow.fit; print({'torch', 'numpy'} & set(sys.modules))"
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
