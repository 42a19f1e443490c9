"""The field ``likelihood`` of a manifest: read, and never trusted."""

from __future__ import annotations

import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model, open_model

from support.builders import make_model
from support.spoil import change_manifest


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, "must hold log_prob and share, not None"),
        (7, "must hold log_prob and share, not 7"),
        ({}, r"must hold log_prob and share, not \{\}"),
        ({"log_prob": -3.0}, "must hold log_prob and share"),
        ({"log_prob": -3.0, "share": 0.01, "more": 1}, "must hold log_prob and share"),
        ({"log_prob": "low", "share": 0.01}, "log_prob: must be a finite number, not 'low'"),
        ({"log_prob": float("nan"), "share": 0.01}, "log_prob: must be a finite number, not nan"),
        ({"log_prob": float("-inf"), "share": 0.01}, "log_prob: must be a finite number, not -inf"),
        ({"log_prob": 10**400, "share": 0.01}, "log_prob: must be a finite number, not 1000"),
        ({"log_prob": True, "share": 0.01}, "log_prob: must be a finite number, not True"),
        ({"log_prob": -3.0, "share": 0}, "share: must be above 0 and below 1, not 0"),
        ({"log_prob": -3.0, "share": 1.0}, r"share: must be above 0 and below 1, not 1\.0"),
        ({"log_prob": -3.0, "share": [1]}, r"share: must be above 0 and below 1, not \[1\]"),
    ],
)
def test_a_field_that_cannot_be_is_one_sentence(model_copy, entry, message):
    change_manifest(model_copy, likelihood=entry)
    with pytest.raises(FastflowError, match=message) as raised:
        Runtime(model_copy)
    assert "fastflow.json, field likelihood" in str(raised.value)


def test_a_calibration_without_a_density_has_none(bert, sentences, tmp_path):
    model = make_model(tmp_path / "m", bert, sentences, "whiten")
    change_manifest(model, likelihood={"log_prob": -3.0, "share": 0.01})
    with pytest.raises(FastflowError, match=r"field likelihood: log_prob needs a flow, and the calibration of"):
        load_model(model)


def test_a_model_without_an_encoder_has_none(tmp_path, vector_model):
    assert Runtime(vector_model).likelihood is None
    assert "likelihood" not in open_model(vector_model).manifest


def test_a_sound_field_is_read(model_copy):
    assert Runtime(model_copy).likelihood is None
    change_manifest(model_copy, likelihood={"log_prob": -3, "share": 0.25})
    assert Runtime(model_copy).likelihood == (-3.0, 0.25)
