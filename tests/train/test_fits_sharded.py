"""A fit to shards: the bytes of a streamed fit, the same for any workers, and a flow on a sample."""

import pytest

from fastflow.errors import FastflowError, UsageError
from fastflow.train.data.sharded import here
from fastflow.train.fits.fitting import calibrate
from fastflow.train.fits.sharded import FLOW_SAMPLE, calibrate_sharded, settled
from fastflow.train.options import Options
from fastflow.train.progress import SILENT
from fastflow.train.reading import Run

RUN = Run(SILENT)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for module in ("sharded.SHARD", "moments.BLOCK"):
        monkeypatch.setattr(f"fastflow.train.data.{module}", 60)


def fitted(texts, bert, workers=here, **options):
    return calibrate_sharded(lambda: texts, ["corpus"], str(bert), Options(**options), RUN, workers)


def calibration(fit, folder):
    fit.save(folder)
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["whiten:16", "nullspace:2,standardize", "whiten,recolour"])
def test_a_closed_form_has_the_bytes_of_a_streamed_fit(bert, sentences, tmp_path, method):
    given = {"method": method, "stop": "budget"}
    found = calibration(fitted(sentences, bert, **given), tmp_path / "sharded")
    streamed = calibrate(iter(sentences), ["corpus"], str(bert), Options(**given, stream=True), RUN)
    assert found == calibration(streamed, tmp_path / "streamed")
    assert found


@pytest.mark.slow
@pytest.mark.parametrize("counted", [40, 10_000])
def test_as_few_texts_count_of_a_small_vocabulary(bert, sentences, tmp_path, monkeypatch, counted):
    """Every reader looks at the same texts, in any order, so that the same number counts."""
    for module in ("reading", "fits.sharded"):
        monkeypatch.setattr(f"fastflow.train.{module}.COUNTED", counted)
    monkeypatch.setattr("fastflow.train.reading.VARIED", 90)
    given, texts = {"method": "whiten,recolour", "stop": "budget"}, sentences * 2
    sharded = fitted(texts, bert, **given)
    streamed = calibrate(iter(texts), ["corpus"], str(bert), Options(**given, stream=True), RUN)
    assert 2 < sharded.training["fitted"] == streamed.training["fitted"] < 256
    assert calibration(sharded, tmp_path / "sharded") == calibration(streamed, tmp_path / "streamed")
    turned = fitted(texts[::-1], bert, **given)
    assert turned.training["fitted"] == sharded.training["fitted"]


@pytest.mark.slow
def test_repeated_texts_count_again_in_statistics_and_once_in_the_sample(bert, sentences):
    fit = fitted(sentences * 2, bert, method="whiten:8", stop="budget")
    assert fit.training["texts"] == 512
    assert len(fit.pooled) == 256


@pytest.mark.slow
def test_a_flow_trains_on_a_sample_whatever_the_order(bert, sentences, tmp_path):
    given = {"method": "flow", "stop": "budget", "sample": 100, "batch_size": 32, "seed": 5}
    found = fitted(sentences, bert, **given)
    assert found.training["texts"] == 100
    turned = fitted(sentences[::-1], bert, **given)
    assert calibration(found, tmp_path / "a") == calibration(turned, tmp_path / "b")
    other = fitted(sentences, bert, **{**given, "seed": 6})
    assert calibration(other, tmp_path / "c") != calibration(found, tmp_path / "a2")


@pytest.mark.parametrize(
    ("given", "stream", "sample"),
    [
        ({"method": "whiten"}, True, None),
        ({"method": "flow"}, False, FLOW_SAMPLE),
        ({"method": "flow", "sample": 7}, False, 7),
        ({}, False, FLOW_SAMPLE),
        ({"stream": True}, True, None),
    ],
)
def test_what_is_read_whole_and_what_as_a_sample(given, stream, sample):
    found = settled(Options(**given))
    assert (found.stream, found.sample) == (stream, sample)


def test_what_cannot_be_fitted_is_named(bert, sentences):
    with pytest.raises(FastflowError, match="corpus: holds no text"):
        fitted([" "], bert, method="whiten")
    with pytest.raises(UsageError, match="--encoder-dropout runs the encoder at every step"):
        fitted(sentences, bert, method="flow", encoder_dropout=True)
