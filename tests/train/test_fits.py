"""The options and the steps of a fit to texts."""

import inspect
import json
import re
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

import fastflow
from fastflow import Runtime
from fastflow.commands.train import train as main
from fastflow.errors import UsageError
from fastflow.model.artifact import load_model
from fastflow.train.choice.selection import AUTO, AUTO_STREAMED
from fastflow.train.data.background import LENGTH, Words, draw_sentences, load_english
from fastflow.train.data.encoder import open_encoder
from fastflow.train.data.token_weights import count_tokens, measure_perplexity
from fastflow.train.fits import fitting
from fastflow.train.fits.corpus import Corpus, _find_words, _make_usual_background, count_fitted
from fastflow.train.fits.fitting import check_encoder, resolve_auto
from fastflow.train.methods.flow import FlowConfig
from fastflow.train.methods.loop import Schedule
from fastflow.train.options import COLOURS, DEFAULTS, LARGE, LARGE_CORPUS, POOLING, SMALL, Options

from support.commands import interrupted
from support.matrices import make_vectors


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

    def find(texts):
        return Corpus("texts", texts, len(texts), "", frozen).perplexity

    assert find(texts) == find([texts[0], texts[2], texts[4]]) == measure_perplexity(count_tokens(frozen, texts[::2]))
    assert find(texts[:2]) == measure_perplexity(count_tokens(frozen, texts[:2])) != find(texts[:1])


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


@pytest.mark.slow
def test_identical_runs_give_identical_models(train, tmp_path):
    given = {"source": "-", "stdin": "\n".join(f"a dog {i}" for i in range(70))}
    for name, options in (("m", ()), ("again", ()), ("other", ("--seed", "1"))):
        assert train(*options, out=tmp_path / name, **given).exit_code == 0
    one, again = (
        {p.relative_to(d): p.read_bytes() for p in d.rglob("*") if p.is_file()}
        for d in (tmp_path / "m", tmp_path / "again")
    )
    assert one == again
    assert Runtime(tmp_path / "other").fingerprint != Runtime(tmp_path / "m").fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], ["--encoder-dropout"], "vectors"])
def test_resume_after_an_interruption(train, tmp_path, monkeypatch, extra):
    options = ["--save-steps", "3", "--batch-size", "32", "--method", "flow"]
    if extra == "vectors":
        np.save(tmp_path / "v.npy", make_vectors())
        train, options = partial(of_vectors, tmp_path / "v.npy"), [*options, "--epochs", "2"]
    else:
        options += ["--spectrum", "0.5", "--demoted", "0", *extra]
    assert train(*options, out=tmp_path / "whole").exit_code == 0
    stopped = interrupted(train, monkeypatch, 5, *options, out=tmp_path / "m")
    assert "checkpoints of the flow are in" in stopped.stderr
    assert (tmp_path / "m.training" / "stage-0.safetensors").is_file()
    assert not (tmp_path / "m").exists()
    refused = train(*options, "--resume", "--lr", "5e-4", out=tmp_path / "m")
    assert (refused.exit_code, "another corpus, encoder or settings" in refused.stderr) == (2, True)
    assert train(*options, "--resume", out=tmp_path / "m").exit_code == 0
    assert Runtime(tmp_path / "m").fingerprint == Runtime(tmp_path / "whole").fingerprint
    assert not (tmp_path / "m.training").exists()


def of_vectors(source, *options, out):
    return CliRunner().invoke(main, [str(word) for word in (source, "-o", out, *options)])


@pytest.mark.parametrize(
    ("given", "tuned", "settled"),
    [
        ({}, False, (AUTO, "sif", POOLING)),
        ({"stream": True}, False, (AUTO_STREAMED, "sif", POOLING)),
        ({"token_weights": "none"}, False, (AUTO, "none", POOLING)),
        ({"token_weights": "none"}, True, ("none", "none", "last")),
        ({"token_weights": "sif"}, None, (AUTO, "sif", POOLING)),
        ({"pooling": "cls"}, False, (AUTO, "sif", "cls")),
        ({"method": "whiten"}, None, ("whiten", "sif", POOLING)),
        ({"method": "none", "stop": "budget"}, None, ("none", "sif", POOLING)),
        ({}, True, ("none", "none", "last")),
        ({"stream": True}, True, ("none", "none", "last")),
        ({"pooling": "cls"}, True, ("none", "none", "cls")),
        ({"pooling": "first-last"}, True, ("none", "none", "first-last")),
    ],
)
def test_nothing_is_left_to_auto(monkeypatch, given, tuned, settled):

    def explain(encoder):
        assert tuned is not None, "asked"
        return "it was tuned" if tuned else None

    monkeypatch.setattr(fitting, "explain_tuning", explain)
    monkeypatch.setattr(fitting, "has_modules", lambda encoder: False)
    options, reason = resolve_auto("encoder", Options(**given))
    assert (options.method, options.token_weights, options.pooling) == settled
    assert reason == ("it was tuned" if tuned else None)
    assert options.stream == Options(**given).stream


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stop": "likelihood"}, "--stop likelihood is for vectors without an encoder"),
        ({"method": "flow", "stream": True}, "--stream is for closed forms, such as whiten,recolour; a flow needs"),
        ({"method": "none", "stream": True, "sample": 9}, "--stream is for closed forms"),
        ({"method": "whiten:40"}, "whiten:40 is out of range"),
        (
            {"method": "whiten", "token_weights": "none", "background_words": "w.txt"},
            "--background-words serves token weights and recolour, and this fit has neither: leave it out",
        ),
    ],
)
def test_what_is_refused_before_the_corpus_is_read(bert, given, message):
    with pytest.raises(UsageError, match=message):
        check_encoder(str(bert), resolve_auto(str(bert), Options(**given))[0], False)


@pytest.mark.slow
@pytest.mark.parametrize(("fewest", "least"), [(70, 70), (20, 64)])
@pytest.mark.parametrize("enough", [False, True])
def test_auto_fits_a_flow_to_enough_texts_and_to_a_batch_at_least(
    train, tmp_path, sentences, monkeypatch, fewest, least, enough
):
    monkeypatch.setattr(fitting, "FEWEST", fewest)
    path, count = tmp_path / "few.txt", least if enough else least - 1
    path.write_text("\n".join(sentences[:count]) + "\n")
    result = train("--method", "auto", source=path)
    assert result.exit_code == 0, result.stderr
    said = f"auto keeps the pooling as it is: a flow takes {least} texts or more, and these are {count}"
    assert (said in result.stderr) != enough
    assert ("flow: 1 steps of 64 texts" in result.stderr) == enough
    made = json.loads((tmp_path / "m" / "fastflow.json").read_text())
    assert made["training"]["method"] == "auto"
    assert (made["training"]["reasons"] == [said]) != enough
    assert (said in (tmp_path / "m" / "README.md").read_text()) != enough
    if not enough:
        assert made["calibration"] == []
        assert made["pooling"]["mode"] == "weighted-mean"  # which needs no more texts


@pytest.mark.slow
def test_a_flow_asked_for_by_name_needs_a_batch_alone(train, tmp_path, sentences):
    path = tmp_path / "few.txt"
    path.write_text("\n".join(sentences[:63]) + "\n")
    named = train("--method", "flow", source=path)
    assert (named.exit_code, "fewer than one batch of 64" in named.stderr) == (2, True)
    smaller = train("--method", "flow", "--batch-size", 32, source=path)
    assert "flow: 1 steps of 32 texts" in smaller.stderr
    auto = train("--method", "auto", "--batch-size", 32, source=path, out=tmp_path / "auto")
    assert "auto keeps the pooling as it is: a flow takes 100 texts or more, and these are 63" in auto.stderr


@pytest.mark.slow
def test_a_flow_of_a_large_corpus_is_larger(train, tmp_path, monkeypatch):
    monkeypatch.setattr("fastflow.train.options.LARGE_CORPUS", 256)
    options = ("--latent", "--stop", "budget")
    assert "flow(2x6, width 64, additive, reversal), fingerprint" in train(*options).stderr
    monkeypatch.setattr("fastflow.train.options.LARGE_CORPUS", 257)
    assert "flow(2x3, width 32, additive, reversal), fingerprint" in train(*options, out=tmp_path / "n").stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "colour"),
    [
        ((), COLOURS["sif"]),
        (("--token-weights", "none"), COLOURS["none"]),
        (("--pooling", "cls"), COLOURS["none"]),  # token weights are of a mean
        (("--pooling", "cls", "--token-weights", "sif", "--demoted", 1), COLOURS["none"] | {"demoted": 1}),
        (("--spectrum", 0.3, "--mean-share", 0.2), COLOURS["sif"] | {"spectrum": 0.3, "mean_share": 0.2}),
    ],
)
def test_recolour_goes_by_the_weights_that_a_model_has(train, tmp_path, options, colour):
    result = train("--method", "flow", "--stop", "budget", *options)
    assert result.exit_code == 0, result.stderr
    assert load_model(tmp_path / "m").calibration[-1].settings == colour
