"""The steps of a fit: settled options, refusals, the same model from the same run, and from one resumed."""

import json
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

from fastflow import Runtime
from fastflow.commands.train import train as main
from fastflow.errors import UsageError
from fastflow.model.artifact import load_model
from fastflow.train.choice.selection import AUTO, AUTO_STREAMED
from fastflow.train.fits import fitting
from fastflow.train.fits.fitting import check_encoder, resolve_auto
from fastflow.train.options import COLOURS, POOLING, Options

from support.commands import interrupted
from support.matrices import make_vectors


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
    """Of texts, with the encoder at every step, and of vectors."""
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
    """``tuned``: whether the encoder is; None if what is named answers the question, so that nobody asks it."""

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
