"""Encoders tuned for similarity are recognised by sentences of no common subject, and left as they are."""

import json
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file

import fastflow
from fastflow import Runtime
from fastflow.stages.vectors import cosine
from fastflow.train.choice import tuned
from fastflow.train.choice.tuned import CONE, explain_tuning, measure_crowding, read_probe
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.train.fits import fitting
from fastflow.train.fits.fitting import resolve_auto, suit_tuned
from fastflow.train.options import TUNED_SPECTRUM, Options

from support.builders import make_tuned
from support.commands import make_train
from support.sentence_dirs import NORMALIZE, make_directory, pooling
from support.tolerances import EMBEDDING

SAID = "this encoder was tuned for similarity: its embeddings of unrelated sentences have a mean cosine of "

DOUBT = "a calibration without labels was never found to help an encoder that was tuned for similarity, as this one was"


@pytest.fixture(scope="module")
def spread(tmp_path_factory, bert):
    """An encoder whose embeddings of the probe are spread out."""
    return make_tuned(tmp_path_factory.mktemp("tuned") / "encoder", bert)


def read_manifest(directory):
    return json.loads((directory / "fastflow.json").read_text())


def test_the_probe_is_sentences_of_no_common_word():
    sentences = read_probe()
    assert len(sentences) == len(set(sentences)) == 32
    assert all(sentence == sentence.strip() and sentence[-1] in ".?" for sentence in sentences)
    words = [{word for word in sentence.lower().strip(".?").split() if len(word) > 5} for sentence in sentences]
    common = set().union(*(a & b for i, a in enumerate(words) for b in words[:i]))
    assert common == {"before", "better"}  # which are no subject


def test_crowding_is_the_mean_cosine_of_two_different_sentences(bert):
    x = Embedder(open_encoder(str(bert), "last", None), "cpu")(read_probe()).astype(np.float64)
    pairs = [cosine(x[i : i + 1], x[j : j + 1])[0, 0] for i in range(len(x)) for j in range(i)]
    assert measure_crowding(bert) == pytest.approx(np.mean(pairs), abs=1e-9)


@pytest.mark.slow
def test_the_encoder_in_the_package_is_untuned():
    assert measure_crowding("default") > CONE + 0.1
    assert explain_tuning("default") is None


@pytest.mark.parametrize("found", [0.299, 0.1, 0.0, -0.299])
def test_spread_out_is_near_no_cosine_at_all(monkeypatch, found):
    monkeypatch.setattr(tuned, "measure_crowding", lambda encoder: found)
    assert explain_tuning("e").startswith(f"{SAID}{found:.2f}, where an untuned one has 0.3 and more")
    monkeypatch.setattr(tuned, "measure_crowding", lambda encoder: CONE + found**2)
    assert explain_tuning("e") is None
    monkeypatch.setattr(tuned, "measure_crowding", lambda encoder: -CONE)  # a cone and its opposite are no tuning
    assert explain_tuning("e") is None


@pytest.mark.slow
def test_such_an_encoder_is_kept_as_it_is(spread, corpus, tmp_path, sentences):
    assert abs(measure_crowding(spread)) < CONE
    train = make_train(spread, corpus, tmp_path)
    result = train("--method", "auto")
    assert result.exit_code == 0, result.stderr
    made = tmp_path / "m"
    assert SAID in result.stderr
    assert SAID in (made / "README.md").read_text()
    training = read_manifest(made)["training"]
    assert training["method"] == "auto"
    assert sum(reason.startswith(SAID) for reason in training["reasons"]) == len(training["reasons"]) == 1
    assert read_manifest(made)["pooling"] == {"mode": "mean", "layers": [3]}
    assert read_manifest(made)["calibration"] == []
    assert "token_weights" not in load_file(made / "calibration.safetensors")
    expected = Embedder(open_encoder(str(spread), "last", None), "cpu")(sentences)
    found = Runtime(made, backend="reference").encode(sentences)
    assert np.abs(found - expected).max() <= EMBEDDING * np.linalg.norm(expected, axis=1).max()


def test_of_sentence_transformers_it_keeps_every_module_and_the_limit(spread, tmp_path, sentences):
    directory = make_directory(tmp_path / "st", spread, [pooling("cls"), NORMALIZE], length=12)
    texts = [*sentences[:9], " ".join(sentences)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the pooled embeddings are spread out, and a text is cut
        fit = fastflow.fit(sentences, directory)
        fit.save(tmp_path / "made")
        with Runtime(tmp_path / "made", dtype="float32") as found, Runtime(directory, dtype="float32") as exact:
            assert np.array_equal(found.encode(texts), exact.encode(texts))
    assert [reason for reason in fit.report["reasons"] if reason.startswith(SAID)] == fit.report["reasons"]


@pytest.mark.parametrize(("given", "reference"), [({"max_length": 9}, False), ({}, True), ({"pooling": "last"}, False)])
def test_unless_a_limit_a_pooling_or_a_reference_to_the_hub_is_asked_for(spread, tmp_path, given, reference):
    directory = make_directory(tmp_path / "st", spread, [pooling("cls"), NORMALIZE], length=12)
    assert resolve_auto(str(directory), Options(**given), reference)[0].pooling == "last"
    assert resolve_auto(str(directory), Options())[0].pooling == "model"
    cut = make_directory(tmp_path / "cut", spread, [pooling("cls"), NORMALIZE], length=12, truncate_dim=8)
    assert resolve_auto(str(cut), Options())[0].pooling == "last"


def test_a_named_method_is_gentle_to_a_tuned_encoder_alone(spread, monkeypatch):
    named = Options(method="flow", token_weights="none")
    options, doubt = suit_tuned(str(spread), named, named)
    assert doubt.startswith(
        f"{DOUBT} (mean cosine of unrelated sentences {measure_crowding(spread):.2f}): whiten,recolour and"
    )
    assert options.colour == named.colour | {"spectrum": TUNED_SPECTRUM}
    assert (options.pooling, options.token_weights) == ("last", "none")
    own = Options(method="flow", spectrum=0.3, pooling="words", token_weights="sif")
    assert suit_tuned(str(spread), own, own)[0] == own
    monkeypatch.setattr(tuned, "measure_crowding", lambda encoder: CONE)
    assert suit_tuned("e", named, named) == (named, None)
    monkeypatch.setattr(tuned, "measure_crowding", None)  # nobody asks if nothing is calibrated, or auto has asked
    for quiet in (Options(), Options(method="none")):
        assert suit_tuned("e", quiet, quiet) == (quiet, None)


def test_a_named_method_calibrates_the_pooling_that_the_encoder_was_tuned_with(spread, tmp_path, sentences):
    directory = make_directory(tmp_path / "st", spread, [pooling("cls"), NORMALIZE], length=12)
    with pytest.warns(UserWarning, match=DOUBT):
        fit = fastflow.fit(sentences, directory, method="nullspace:1")
    assert [module.split(" ")[0] for module in fit.encoder.modules.names()] == ["Pooling", "Normalize"]
    assert fit.encoder.head is not None
    assert fit.encoder.max_length == 12
    weighted = Options(token_weights="sif")
    options, _ = suit_tuned(str(directory), weighted, resolve_auto(str(directory), weighted)[0])
    assert (options.method, options.pooling, options.token_weights, options.spectrum) == ("flow", "last", "sif", 0.0)
    left = Options(method="whiten")
    assert suit_tuned(str(directory), left, resolve_auto(str(directory), left)[0], reference=True)[0].pooling == "last"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kinds", "pooling", "spectrum"),
    [
        (("--method", "whiten"), ["whiten"], ("mean", 3), None),
        (
            ("--method", "whiten", "--token-weights", "sif", "--pooling", "words"),
            ["whiten"],
            ("weighted-mean", -1),
            None,
        ),
        (("--method", "flow"), ["flow", "recolour"], ("mean", 3), 0.0),
        (("--method", "whiten,recolour", "--spectrum", "0.4"), ["whiten", "recolour"], ("mean", 3), 0.4),
        (("--method", "none", "--token-weights", "sif"), [], ("weighted-mean", -1), None),
    ],
)
def test_what_is_named_is_done_all_the_same_gently_and_with_a_warning(
    spread, corpus, tmp_path, options, kinds, pooling, spectrum
):
    result = make_train(spread, corpus, tmp_path)(*options, "--stop", "budget")
    assert result.exit_code == 0, result.stderr
    assert SAID not in result.stderr
    assert result.stderr.count(f"WARNING: {DOUBT}") == bool(kinds)
    assert [s["spectrum"] for s in read_manifest(tmp_path / "m")["calibration"] if "spectrum" in s] == (
        [] if spectrum is None else [spectrum]
    )
    made = read_manifest(tmp_path / "m")
    assert [stage["kind"] for stage in made["calibration"]] == kinds
    assert made["pooling"] == {"mode": pooling[0], "layers": [pooling[1]]}


@pytest.mark.slow
def test_token_weights_that_are_named_calibrate_by_auto_all_the_same(spread, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "FEWEST", 256)
    result = make_train(spread, corpus, tmp_path)("--method", "auto", "--token-weights", "sif")
    assert result.exit_code == 0, result.stderr
    assert SAID not in result.stderr
    assert DOUBT in result.stderr
    made = read_manifest(tmp_path / "m")
    assert made["pooling"] == {"mode": "weighted-mean", "layers": [3]}
    assert list(made["training"]["choice"]["separability"]) == ["none", "flow"]


def test_a_background_is_beside_nothing(spread, corpus, tmp_path):
    result = make_train(spread, corpus, tmp_path)("--method", "auto", "--background", "50")
    assert result.exit_code == 0, result.stderr
    assert SAID in result.stderr
    assert read_manifest(tmp_path / "m")["training"]["background"] == 0
