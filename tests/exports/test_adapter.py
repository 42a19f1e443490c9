"""Adapters: a model without the weights of its encoder, whole again once these are put there."""

import shutil

import numpy as np
import pytest

from fastflow import FastflowError, Runtime, UsageError
from fastflow.exports.export import export
from fastflow.model.artifact import DEFAULT, verify
from fastflow.model.hashing import file_hash

from support.builders import make_model
from support.exports import TEXTS
from support.sentence_dirs import NORMALIZE, make_directory, pooling

WEIGHTS = "model.safetensors"
pytestmark = pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into")


def test_it_asks_for_the_weights_and_is_the_model_with_them(tmp_path, model, bert):
    made = export(model, "adapter", tmp_path / "adapter")
    place = tmp_path / "adapter" / "0_Transformer" / WEIGHTS
    assert not place.exists()
    assert made.size < sum(path.stat().st_size for path in model.rglob("*") if path.is_file()) / 2
    for opening in (Runtime, verify):
        with pytest.raises(FastflowError, match="or, if it is an adapter, put the encoder's file of sha256") as raised:
            opening(tmp_path / "adapter")
        assert file_hash(bert / WEIGHTS) in str(raised.value)
    place.symlink_to(bert / WEIGHTS)
    assert "files match their sha256" in verify(tmp_path / "adapter")[0]
    whole, again = Runtime(model), Runtime(tmp_path / "adapter")
    assert again.fingerprint == whole.fingerprint == made.fingerprint
    assert np.array_equal(again.encode(TEXTS), whole.encode(TEXTS))


def test_weights_of_another_encoder_are_refused(tmp_path, model, encoders):
    export(model, "adapter", tmp_path / "adapter")
    shutil.copy(encoders("minilm") / WEIGHTS, tmp_path / "adapter" / "0_Transformer" / WEIGHTS)
    with pytest.raises(FastflowError, match="is damaged: its sha256 differs"):
        Runtime(tmp_path / "adapter")


def test_the_modules_of_sentence_transformers_stay(tmp_path, bert, sentences):
    source = make_directory(tmp_path / "st", bert, [pooling("mean"), NORMALIZE])
    model = make_model(tmp_path / "model", source, sentences, pooling="model", max_length=None)
    export(model, "adapter", tmp_path / "adapter")
    kept = {path.relative_to(tmp_path / "adapter") for path in (tmp_path / "adapter").rglob("*")}
    there = {path.relative_to(model) for path in model.rglob("*")}
    assert [path.name for path in there - kept] == [WEIGHTS]


def test_refusals(tmp_path, bert):
    for arguments, words in [
        ((bert, "adapter", tmp_path / "out"), "has no calibration of its own"),
        ((DEFAULT, "adapter", tmp_path / "out", 8), "an adapter is the model itself"),
    ]:
        with pytest.raises(UsageError, match=words):
            export(*arguments)
    assert not (tmp_path / "out").exists()
