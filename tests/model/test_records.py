"""What a model records of its making: the trial of int8, and how likely its texts are."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.model.artifact import load_model, open_model
from fastflow.model.int8 import FIELD

from support.builders import make_model
from support.spoil import change_manifest


@pytest.fixture(scope="module")
def recorded(bert, sentences, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("recorded") / "model", bert, sentences)


def test_what_is_written_is_what_is_read(recorded):
    found, entry = load_model(recorded).int8, json.loads((recorded / "fastflow.json").read_text())[FIELD]
    assert found.entry() == entry
    for arrays, products in ((found.largest, ("qkv", "up")), (found.terms, ("qkv", "up", "down"))):
        assert {name.split(".")[-1] for name in arrays} == set(products)
        assert all(array.dtype == np.float32 and array.ndim == 1 and (array >= 0).all() for array in arrays.values())


def test_a_model_saved_without_has_none(model_copy):
    change_manifest(model_copy, int8=...)
    assert load_model(model_copy).int8 is None


def test_a_likelihood_is_read_if_there_is_one(model_copy, vector_model):
    assert Runtime(model_copy).likelihood is None
    change_manifest(model_copy, likelihood={"log_prob": -3, "share": 0.25})
    assert Runtime(model_copy).likelihood == (-3.0, 0.25)
    assert Runtime(vector_model).likelihood is None
    assert "likelihood" not in open_model(vector_model).manifest


@pytest.mark.parametrize("found", [float("nan"), 7.5, float("inf")])
def test_a_least_cosine_that_is_none_allows_no_bfloat16(model_copy, found):
    change_manifest(model_copy, least_cosine={"bfloat16": found})
    assert Runtime(model_copy, backend="cpu").info()["dtype"] == "float32"
