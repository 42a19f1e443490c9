"""Encoders tuned for similarity are recognised by sentences of no common subject, and left as they are."""

import json
import warnings

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.stages.vectors import cosine
from fastflow.train.choice import tuned
from fastflow.train.choice.tuned import CONE, explain_tuning, find_tuning, measure_crowding, read_probe
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.train.fits.fitting import resolve_auto, suit_tuned
from fastflow.train.options import TUNED_SPECTRUM, Options

from support.builders import make_tuned
from support.commands import make_train
from support.sentence_dirs import NORMALIZE, make_directory, pooling
from support.tolerances import EMBEDDING

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
    assert measure_crowding(bert) == pytest.approx(np.mean(pairs), abs=1e-9)
    assert abs(measure_crowding(spread)) < CONE
    assert measure_crowding("default") > CONE + 0.1


def test_spread_out_is_near_no_cosine_at_all(monkeypatch):
    for found in (0.299, 0.1, 0.0, -0.299, CONE, CONE + 0.09, -CONE):  # a cone and its opposite are no tuning
        monkeypatch.setattr(tuned, "measure_crowding", lambda encoder, found=found: found)
        monkeypatch.setattr(tuned, "has_normalize", lambda encoder: False)
        said = explain_tuning("e")
        if abs(found) < CONE:
            assert said.startswith(f"{SAID}{found:.2f}, where an untuned one has 0.3 and more")
        else:
            assert said is None, found


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
    for directory, given, reference, expected in (
        (sentence_model, {}, False, "model"),
        (sentence_model, {"max_length": 9}, False, "last"),
        (sentence_model, {}, True, "last"),  # of the encoder on the Hub
        (sentence_model, {"pooling": "last"}, False, "last"),
        (cut, {}, False, "last"),
    ):
        assert resolve_auto(str(directory), Options(**given), reference)[0].pooling == expected, (given, reference)


def test_a_crowded_encoder_was_tuned_if_its_modules_have_normalize(bert, tmp_path):
    plain = make_directory(tmp_path / "plain", bert, [pooling("mean")])
    unit = make_directory(tmp_path / "unit", bert, [pooling("mean"), NORMALIZE])
    assert (find_tuning(plain), find_tuning(unit)) == (None, "its modules have Normalize")


def test_a_named_method_is_gentle_to_a_tuned_encoder_only(spread, monkeypatch):
    named = Options(method="flow", token_weights="none")
    options, doubt = suit_tuned(str(spread), named, named)
    shown = f"unrelated sentences have a mean cosine of {measure_crowding(spread):.2f}, where an untuned one has 0.3"
    assert doubt.startswith(f"{DOUBT} ({shown} and more): whiten,recolour and")
    assert options.colour == named.colour | {"spectrum": TUNED_SPECTRUM}
    assert (options.pooling, options.token_weights) == ("last", "none")
    own = Options(method="flow", spectrum=0.3, pooling="words", token_weights="sif")
    assert suit_tuned(str(spread), own, own)[0] == own
    monkeypatch.setattr(tuned, "measure_crowding", lambda encoder: CONE)
    monkeypatch.setattr(tuned, "has_normalize", lambda encoder: False)
    assert suit_tuned("e", named, named) == (named, None)
    monkeypatch.setattr(tuned, "measure_crowding", None)  # nobody asks if nothing is calibrated, or auto has asked
    for quiet in (Options(), Options(method="none")):
        assert suit_tuned("e", quiet, quiet) == (quiet, None)


def test_a_named_method_calibrates_the_pooling_that_the_encoder_was_tuned_with(sentence_model, sentences):
    with pytest.warns(UserWarning, match=DOUBT):
        fit = fastflow.fit(sentences, sentence_model, method="nullspace:1")
    assert [module.split(" ")[0] for module in fit.encoder.modules.names()] == ["Pooling", "Normalize"]
    assert fit.encoder.head is not None
    assert fit.encoder.max_length == 12
    for given, reference, expected in (
        ({"token_weights": "sif"}, False, ("flow", "last", "sif", 0.0)),
        ({"method": "whiten"}, True, ("whiten", "last", "none", 0.0)),
    ):
        asked = Options(**given)
        resolved, _ = resolve_auto(str(sentence_model), asked)
        found, _ = suit_tuned(str(sentence_model), asked, resolved, reference)
        assert (found.method, found.pooling, found.token_weights, found.spectrum) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kinds", "pooling", "spectrum"),
    [
        ("--method whiten", ["whiten"], ("mean", 3), []),
        ("--method whiten --token-weights sif --pooling words", ["whiten"], ("weighted-mean", -1), []),
        ("--method flow", ["flow", "recolour"], ("mean", 3), [0.0]),
        ("--method whiten,recolour --spectrum 0.4", ["whiten", "recolour"], ("mean", 3), [0.4]),
        ("--method none --token-weights sif", [], ("weighted-mean", -1), []),
    ],
)
def test_a_named_method_is_fitted_all_the_same_with_a_warning(fit_spread, options, kinds, pooling, spectrum):
    said, made = fit_spread(*options.split(), "--stop", "budget")
    assert SAID not in said
    assert said.count(f"WARNING: {DOUBT}") == bool(kinds)
    assert [stage["kind"] for stage in made["calibration"]] == kinds
    assert [stage["spectrum"] for stage in made["calibration"] if "spectrum" in stage] == spectrum
    assert made["pooling"] == {"mode": pooling[0], "layers": [pooling[1]]}
