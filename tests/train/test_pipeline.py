"""The options of a fit to texts, and its interruption."""

import inspect
import re

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.commands.train import train as main
from fastflow.errors import UsageError
from fastflow.model.artifact import load_model
from fastflow.train.data.encoder import open_encoder
from fastflow.train.data.token_weights import count_tokens, measure_perplexity
from fastflow.train.methods.flow import FlowConfig
from fastflow.train.methods.loop import Schedule
from fastflow.train.options import DEFAULTS, TrainOptions
from fastflow.train.pipeline import diagnosis, fit
from fastflow.train.reporter import flag

from support.commands import interrupted


def test_command_fit_flow_and_schedule_have_the_same_defaults():
    command = {option.name: option for option in main.params}
    for name, value in vars(DEFAULTS).items():
        assert command[name].help, name
        if value not in (None, False):  # else it is what the command takes without the option
            assert command[name].default == value, name
    assert list(command["stop"].type.choices) == ["rule", "budget"]
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
        ("stop", "rule or budget", ["never"]),
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
                TrainOptions(**{name: value})
    assert repr(TrainOptions(epochs=2).epochs) == "2.0"


def test_the_options_and_the_name_of_fit_load_no_array_library(run_python):
    program = "import sys, fastflow.commands.train; fastflow.fit; print({'torch', 'numpy'} & set(sys.modules))"
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", "--method whiten:16,flow --stop budget --encoder-dropout"])
def test_resume_after_an_interruption(train, tmp_path, monkeypatch, extra):
    method = [] if "--method" in extra else ["--method", "flow"]
    out, options = tmp_path / "m.v2", ["--save-steps", "3", "--batch-size", "32", *method]
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


def test_the_tokens_of_a_corpus_are_counted_in_texts_from_all_of_it(bert, monkeypatch):
    monkeypatch.setattr(diagnosis, "COUNTED", 3)
    frozen, texts = open_encoder(str(bert), "words", None), ["a b", "the dog runs", "c", "the man", "a child sees it"]

    def find(texts):
        return diagnosis.measure_corpus_perplexity(frozen, texts)

    assert find(texts) == find([texts[0], texts[2], texts[4]]) == measure_perplexity(count_tokens(frozen, texts[::2]))
    assert find(texts[:2]) == measure_perplexity(count_tokens(frozen, texts[:2])) != find(texts[:1])


def test_a_refusal_costs_no_reading(bert, monkeypatch):
    monkeypatch.setattr(fit, "read", None)
    for given, message in (
        ({"method": "whiten:40"}, "whiten:40 is out of range"),
        ({"language": "zh"}, "^language=zh: wordfreq cuts its texts by a tokenizer of its own"),
        ({"language": "xx"}, "^language= must be one of ar, bg, .*; for others give background_words="),
        ({"method": "flow", "stream": True}, "^stream= is for closed forms, .*; a flow needs sample=N instead"),
        ({"max_length": 2}, "^max_length= must be 3 to 128 for this encoder, not 2"),
    ):
        with pytest.raises(UsageError, match=message):
            fastflow.fit(["one", "two"], bert, **given)
