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
from fastflow.train.option_fields import flag
from fastflow.train.options import COLOURS, DEFAULTS, LARGE, LARGE_CORPUS, POOLING, SMALL, Options

from support.commands import interrupted
from support.matrices import make_vectors


def test_command_fit_flow_and_schedule_have_the_same_defaults():
    command = {option.name: option for option in main.params}
    for name, value in vars(DEFAULTS).items():
        assert command[name].help, name
        if value not in (None, False):  # else it is what the command takes without the option
            assert command[name].default == value, name
    assert list(command["stop"].type.choices) == ["rule", "budget", "likelihood"]
    assert (command["levels"].type.min, command["levels"].type.max) == (1, 4)
    assert (command["mean_share"].type.max, command["lr"].type.min_open) == (0.99, True)
    assert command["latent"].is_flag
    named = inspect.signature(fastflow.fit).parameters
    for name in ("method", "pooling", "token_weights", "seed"):
        assert named[name].default == getattr(DEFAULTS, name)
    config, schedule = FlowConfig(dim=256), Schedule()
    assert {name: getattr(config, name) for name in DEFAULTS.shape()} == DEFAULTS.shape()
    assert vars(schedule) == {name: getattr(DEFAULTS, name) for name in vars(schedule)}


def test_values_that_no_fit_can_have():
    for name, must, values in (
        ("method", "a name", [None]),
        ("stop", "rule or budget or likelihood", ["never"]),
        ("token_weights", "auto or sif or none", ["tfidf"]),
        ("device", "cpu or cuda", ["tpu"]),
        ("coupling", "additive or affine", ["spline"]),
        ("permutation", "reversal or random or lu", ["shuffle"]),
        ("levels", "1 to 4", [5, 0]),
        ("batch_size", "a whole number of at least 2", [1, 2.5]),
        ("depth", "a whole number of at least 1", [True, 0]),
        ("sample", "a whole number of at least 1", [0]),
        ("seed", "a whole number of at least 0", [None]),
        ("demoted", "a whole number of at least 0", [-1]),
        ("max_length", "a whole number", [12.0]),
        ("lr", "a number above 0", [float("nan"), "1e-3"]),
        ("epochs", "a number above 0", [0]),
        ("spectrum", "a number from 0 to 1", [1.01, True]),
        ("mean_share", "a number from 0 to 0.99", [1, float("nan")]),
        ("stream", "True or False", ["yes"]),
        ("latent", "True or False", [None]),
    ):
        for value in values:
            with pytest.raises(UsageError, match=f"^{flag(name)} must be {must}, not {re.escape(repr(value))}$"):
                Options(**{name: value})
    with pytest.raises(UsageError, match="--method auto chooses by the rule"):
        Options(method="auto", stop="budget")
    assert repr(Options(epochs=2).epochs) == "2.0"


def test_a_flow_is_larger_on_a_large_corpus_or_with_a_background_unless_its_size_is_named():
    assert LARGE["depth"] > SMALL["depth"]
    assert LARGE["width"] > SMALL["width"]
    usual = {"levels": 2, "coupling": "additive", "permutation": "reversal"}
    for given, size in (
        ((0,), SMALL), ((LARGE_CORPUS - 1,), SMALL), ((LARGE_CORPUS,), LARGE), ((10**6,), LARGE), ((100, 0), SMALL),
        ((100, 1000), LARGE),
    ):  # fmt: skip
        assert Options().shape(*given) == usual | size, given
        assert Options(depth=4).shape(*given) == usual | size | {"depth": 4}, given
        assert Options(depth=1, width=9, levels=3).shape(*given) == usual | {"depth": 1, "width": 9, "levels": 3}


LIST = Words({"der": 1e6}, LENGTH)


def count_texts(count, words, perplexity=1e9, options=DEFAULTS, sentences=10_000):
    corpus = Corpus("texts", [], count, "", None, words)
    vars(corpus)["perplexity"] = perplexity  # as if its texts had been counted
    return count_fitted(corpus, options, sentences)


@pytest.mark.slow
def test_random_words_outweigh_the_corpus_fourfold_and_english_sentences_with_as_many_eightfold():
    words = load_english()
    for texts, sentences in ((2, 3000), (750, 3000), (751, 3004), (2500, 10_000), (2501, 10_000), (10**9, 10_000)):
        assert _make_usual_background(LIST, texts) == draw_sentences(sentences, LIST), texts
        assert count_texts(texts, LIST, sentences=sentences) == min(texts, 2500)
        assert _make_usual_background(words, texts) == [*words.sentences, *draw_sentences(5000, words)]
        assert count_texts(texts, words, 270) == min(texts, 1250)
    assert _make_usual_background(None, 300) == []
    assert count_texts(10**9, None, sentences=0) == 10**9


def test_the_smaller_the_vocabulary_of_an_english_corpus_the_fewer_of_its_texts_count():
    words, named = load_english(), Options(background=7)
    for texts, perplexity, fitted in (
        (10**9, 540, 1250), (1250, 270, 1250), (1250, 269.9, 1248), (1248, 269.9, 1248), (10**9, 135, 156),
        (10**9, 65.4, 17), (16, 65.4, 16), (10**9, 1, 2), (2, 1, 2),
    ):  # fmt: skip
        assert count_texts(texts, words, perplexity) == fitted, (texts, perplexity)
        assert count_texts(texts, LIST, perplexity) == min(texts, 2500), "words only"
        assert count_texts(texts, words, perplexity, named, 7) == texts
    found = _find_words(["the dog runs with the man"], named)
    assert (found.sentences, found.shares) == ((), words.shares)
    assert _find_words(["the dog runs with the man"], Options()).sentences


def test_the_tokens_of_a_corpus_are_counted_in_texts_from_all_of_it(bert, monkeypatch):
    monkeypatch.setattr("fastflow.train.fits.corpus.COUNTED", 3)
    frozen, texts = open_encoder(str(bert), "words", None), ["a b", "the dog runs", "c", "the man", "a child sees it"]

    def find(texts):
        return Corpus("texts", texts, len(texts), "", frozen).perplexity

    assert find(texts) == find([texts[0], texts[2], texts[4]]) == measure_perplexity(count_tokens(frozen, texts[::2]))
    assert find(texts[:2]) == measure_perplexity(count_tokens(frozen, texts[:2])) != find(texts[:1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "mode", "colour"),
    [
        ("", "weighted-mean", COLOURS["sif"]),
        ("--token-weights none", "mean", COLOURS["none"]),
        ("--pooling cls", "cls", COLOURS["none"]),  # token weights are of a mean
        ("--pooling cls --demoted 1", "cls", COLOURS["none"] | {"demoted": 1}),
        ("--spectrum 0.3 --mean-share 0.2", "weighted-mean", COLOURS["sif"] | {"spectrum": 0.3, "mean_share": 0.2}),
        ("--token-weights none --spectrum 0 --demoted 0", "mean", {"spectrum": 0, "mean_share": 0, "demoted": 0}),
    ],
)
def test_recolour_goes_by_the_weights_that_a_model_has(train, tmp_path, options, mode, colour):
    result = train("--method", "flow", "--stop", "budget", *options.split())
    assert result.exit_code == 0, result.stderr
    made = load_model(tmp_path / "m")
    assert (made.manifest["pooling"]["mode"], made.calibration[-1].settings) == (mode, colour)
    assert COLOURS["sif"] != COLOURS["none"]


def test_the_options_and_the_name_of_fit_load_no_array_library(run_python):
    program = "import sys, fastflow.commands.train; fastflow.fit; print({'torch', 'numpy'} & set(sys.modules))"
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", "--method whiten:16,flow --stop budget --encoder-dropout", "vectors"])
def test_resume_after_an_interruption(train, tmp_path, monkeypatch, extra):
    method = [] if "--method" in extra else ["--method", "flow"]
    out, options = tmp_path / "m.v2", ["--save-steps", "3", "--batch-size", "32", *method]
    if extra == "vectors":
        np.save(tmp_path / "v.npy", make_vectors())
        train, options = partial(of_vectors, tmp_path / "v.npy"), [*options, "--epochs", "2"]
    else:
        options += ["--spectrum", "0.5", "--demoted", "0", *extra.split()]
    assert train(*options, out=tmp_path / "whole").exit_code == 0
    stopped = interrupted(train, monkeypatch, 5, *options, out=out)
    *_, fault, hint = stopped.stderr.splitlines()
    assert fault == "fastflow: interrupted"
    folder = tmp_path / "m.v2.training"  # after the whole name of the model
    assert f"checkpoints of the flow are in {folder}; the same command with --resume continues" in hint
    assert (folder / f"stage-{int('--method' in extra)}.safetensors").is_file()
    assert not out.exists()
    refused = train(*options, "--resume", "--lr", "5e-4", out=out)
    assert (refused.exit_code, "another corpus, encoder or settings" in refused.stderr) == (2, True)
    assert train(*options, "--resume", out=out).exit_code == 0
    assert Runtime(out).fingerprint == Runtime(tmp_path / "whole").fingerprint
    assert not folder.exists()
    if "--encoder-dropout" in extra:
        assert train(*options[:-1], out=tmp_path / "without").exit_code == 0
        live, plain = (load_model(tmp_path / name).calibration[1].params for name in ("whole", "without"))
        assert any(not np.array_equal(live[name], plain[name]) for name in live)


def of_vectors(source, *options, out):
    return CliRunner().invoke(main, [str(word) for word in (source, "-o", out, *options)])


@pytest.mark.parametrize(
    ("given", "tuned", "expected"),
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
    ],
)
def test_nothing_is_left_to_auto(monkeypatch, given, tuned, expected):

    def explain(encoder):
        assert tuned is not None, "asked"
        return "it was tuned" if tuned else None

    monkeypatch.setattr(fitting, "explain_tuning", explain)
    monkeypatch.setattr(fitting, "has_modules", lambda encoder: False)
    options, reason = resolve_auto("encoder", Options(**given))
    assert (options.method, options.token_weights, options.pooling) == expected
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
        (
            {"method": "whiten", "token_weights": "none", "language": "de"},
            "--language serves token weights and recolour",
        ),
        ({"language": "zh"}, "--language zh: wordfreq cuts its texts by a tokenizer of its own"),
        ({"language": "xx"}, "--language must be one of ar, bg, .*; for others give --background-words"),
        ({"language": "de", "background_words": "w.txt"}, "both give the words of the language: leave one out"),
        ({"background": 9, "background_sentences": "s.txt"}, "--background N draws random words only"),
    ],
)
def test_what_is_refused_before_the_corpus_is_read(bert, given, message):
    with pytest.raises(UsageError, match=message):
        check_encoder(str(bert), resolve_auto(str(bert), Options(**given))[0], False)


@pytest.mark.slow
@pytest.mark.parametrize(("fewest", "batch", "least"), [(70, 64, 70), (20, 64, 64), (100, 32, 100)])
@pytest.mark.parametrize("enough", [False, True])
def test_auto_fits_a_flow_to_enough_texts_and_to_a_batch_at_least(
    train, tmp_path, sentences, monkeypatch, fewest, batch, least, enough
):
    assert fitting.FEWEST == 100
    monkeypatch.setattr(fitting, "FEWEST", fewest)
    path, count = tmp_path / "few.txt", least if enough else least - 1
    path.write_text("\n".join(sentences[:count]) + "\n")
    result = train("--method", "auto", "--batch-size", batch, source=path)
    assert result.exit_code == 0, result.stderr
    said = f"auto keeps the pooling as it is: a flow takes {least} texts or more, and these are {count}"
    assert (said in result.stderr) != enough
    assert (f"flow: {count // batch} steps of {batch} texts" in result.stderr) == enough
    made = json.loads((tmp_path / "m" / "fastflow.json").read_text())
    assert made["training"]["method"] == "auto"
    assert (said in made["training"]["reasons"]) != enough
    assert (said in (tmp_path / "m" / "README.md").read_text()) != enough
    if not enough:
        assert made["calibration"] == []
        assert made["pooling"]["mode"] == "weighted-mean"  # which needs no more texts


@pytest.mark.slow
def test_a_flow_of_a_large_corpus_is_larger(train, tmp_path, monkeypatch):
    monkeypatch.setattr("fastflow.train.options.LARGE_CORPUS", 256)
    options = ("--latent", "--stop", "budget")
    assert "flow(2x6, width 64, additive, reversal), fingerprint" in train(*options).stderr
