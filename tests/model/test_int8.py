"""The recorded trial of int8: a field of the manifest and arrays, read and never trusted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.int8 import FIELD, FILE, LARGEST, TERMS

from support.builders import make_model
from support.spoil import change_manifest, spoil_arrays

SOUND = {"version": 1, "least_cosine": 0.995, "text": "a dog"}


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


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, "must hold version, least_cosine, text, not None"),
        ({}, r"must hold version, least_cosine, text, not \{\}"),
        (SOUND | {"more": 1}, "must hold version, least_cosine, text, not"),
        (SOUND | {"version": 0}, "version: must be a whole number of at least 1, not 0"),
        (SOUND | {"version": True}, "version: must be a whole number of at least 1, not True"),
        (SOUND | {"least_cosine": "high"}, "least_cosine: must be a number from -1 to 1, not 'high'"),
        (SOUND | {"least_cosine": float("nan")}, "least_cosine: must be a number from -1 to 1, not nan"),
        (SOUND | {"least_cosine": 1.5}, r"least_cosine: must be a number from -1 to 1, not 1\.5"),
        (SOUND | {"least_cosine": True}, "least_cosine: must be a number from -1 to 1, not True"),
        (SOUND | {"text": 7}, "text: must be a text, not 7"),
    ],
)
def test_a_field_that_cannot_be_is_one_sentence(model_copy, entry, message):
    change_manifest(model_copy, int8=entry)
    with pytest.raises(FastflowError, match=rf"fastflow\.json, field int8[:,] {message}"):
        load_model(model_copy)


@pytest.mark.parametrize("prefix", [LARGEST, TERMS])
@pytest.mark.parametrize(
    "array",
    [
        np.float32([1, np.nan]),
        np.float32([1, np.inf]),
        np.float32([1, -1]),
        np.ones(2),
        np.ones((2, 2), np.float32),
    ],
)
def test_an_array_that_cannot_be_is_one_sentence(model_copy, array, prefix):
    spoil_arrays(model_copy, lambda arrays: arrays.update({f"{prefix}layer.0.up": array}), FILE)
    with pytest.raises(
        FastflowError, match=r"int8\.safetensors, array \w+\.layer\.0\.up: must be one row of finite float32 from 0 up"
    ):
        load_model(change_manifest(model_copy, int8=SOUND))


def test_a_file_that_is_not_listed_is_an_error(model_copy):
    files = json.loads((model_copy / "fastflow.json").read_text())["files"]
    change_manifest(model_copy, files={name: value for name, value in files.items() if name != FILE})
    with pytest.raises(FastflowError, match=r"field int8: int8\.safetensors is not listed"):
        load_model(model_copy)
