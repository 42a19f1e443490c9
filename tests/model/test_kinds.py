"""A model without an encoder on disk: what its manifest says, and every way in which it can lie."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import Opening, load_model, open_model, verify
from fastflow.model.kinds import Model, VectorModel
from fastflow.model.manifest import FORMAT_VERSION

from support.spoil import change_arrays, change_manifest, spoil_arrays


@pytest.fixture
def copy(vector_model, tmp_path):
    return shutil.copytree(vector_model, tmp_path / "model")


def test_the_manifest_declares_that_there_is_no_encoder(vector_model):
    manifest = json.loads((vector_model / "fastflow.json").read_text())
    assert (manifest["encoder"], manifest["input_dim"], manifest["dim"]) == (None, 32, 32)
    assert not {"pooling", "max_length", "least_cosine"} & set(manifest)
    assert sorted(manifest["files"]) == ["README.md", "calibration.safetensors"]
    assert manifest["format_version"] != FORMAT_VERSION == 1  # a reader of that version alone refuses the number
    assert verify(vector_model)[0] == "2 files match their sha256"


def test_it_opens_as_what_it_is(vector_model, model):
    opened = open_model(vector_model)
    assert isinstance(opened, VectorModel)
    assert (opened.input_dim, opened.path) == (32, vector_model)
    assert opened.truncation is not None
    assert isinstance(open_model(model), Model)
    with Opening(opened) as opening:
        assert opening.model is opened
    with pytest.raises(UsageError, match=f"^{vector_model} calibrates vectors and has no encoder: give vectors to"):
        load_model(vector_model)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder": ...}, "field encoder: must be null in format version 2"),
        ({"encoder": {}}, "field encoder: must be null in format version 2"),
        ({"encoder": {"hub_id": "a/b", "revision": "c"}}, "field encoder: must be null"),
        ({"encoder": False}, "field encoder: must be null"),
        ({"input_dim": ...}, "field input_dim: missing or not a int"),
        ({"input_dim": "32"}, "field input_dim: missing or not a int"),
        ({"input_dim": 32.0}, "field input_dim: missing or not a int"),
        ({"input_dim": None}, "field input_dim: missing or not a int"),
        ({"input_dim": True}, "field input_dim: must be a whole number of at least 1, not True"),
        ({"input_dim": 0}, "field input_dim: must be a whole number of at least 1, not 0"),
        ({"input_dim": -32}, "field input_dim: must be a whole number of at least 1"),
        ({"input_dim": 10**30}, "field input_dim: must be a whole number of at least 1"),
        ({"input_dim": 31}, "levels cannot run on 31 dimensions"),
        ({"input_dim": 64}, r"calibration stage 0 \(flow\), array .*: shape .* does not fit"),
        ({"input_dim": 2**30}, r"calibration stage 0 \(flow\), array .*: shape .* does not fit"),
        ({"dim": 16}, "field dim: says 16, the calibration gives 32"),
        ({"pooling": {"mode": "mean", "layers": [1]}}, "field pooling: a model without an encoder has none"),
        ({"pooling": None}, "field pooling: a model without an encoder has none"),
        ({"max_length": 64}, "field max_length: a model without an encoder has none"),
        ({"least_cosine": {}}, "field least_cosine: a model without an encoder has none"),
        ({"calibration": []}, "field calibration: a model without an encoder needs a stage, and there is none"),
        ({"calibration": ...}, "field calibration: missing or not a list"),
        ({"format_version": 1}, "field pooling: missing or not a dict"),
        ({"format_version": True}, "field format_version: this fastflow reads versions 1 to 3, not True"),
        ({"format_version": 4}, "field format_version: this fastflow reads versions 1 to 3, not 4"),
        (
            {"format_version": 1, "pooling": {"mode": "mean", "layers": [1]}, "max_length": 64},
            "field encoder: missing or not a dict",
        ),
        (
            {"format_version": 1, "pooling": {"mode": "mean", "layers": [1]}, "max_length": 64, "encoder": {}},
            "0_Transformer is missing: the model is incomplete",
        ),
    ],
)
def test_a_manifest_that_lies_about_the_encoder_or_the_width(copy, fields, message):
    change_manifest(copy, **fields)
    for opened in (Runtime, verify):
        with pytest.raises(FastflowError, match=message):
            opened(copy)


def test_an_edited_manifest_is_noticed(copy):
    change_manifest(copy, forge=False, dim=16)
    with pytest.raises(FastflowError, match=r"fastflow\.json was changed after it was saved"):
        Runtime(copy)


def test_files_of_an_encoder_do_not_belong_to_it(copy, bert):
    shutil.copytree(bert, copy / "0_Transformer")
    with pytest.raises(
        FastflowError, match=r"field encoder: says there is none, and .*0_Transformer is there; remove it"
    ):
        Runtime(copy)
    shutil.rmtree(copy / "0_Transformer")
    files = json.loads((copy / "fastflow.json").read_text())["files"]
    change_manifest(copy, files=files | {"0_Transformer/config.json": "0"})
    with pytest.raises(
        FastflowError, match=r"field files: '0_Transformer/config.json' does not belong to a model without"
    ):
        Runtime(copy)


def test_a_model_of_texts_cannot_pass_for_one_of_vectors(model_copy):
    change_manifest(
        model_copy,
        format_version=2,
        encoder=None,
        input_dim=32,
        pooling=...,
        max_length=...,
        least_cosine=...,
        int8=...,
    )
    with pytest.raises(FastflowError, match=r"field files: '0_Transformer/.*' does not belong to a model without"):
        Runtime(model_copy)


@pytest.mark.parametrize("damage", ["flipped", "absent"])
def test_a_damaged_calibration_is_named(copy, damage):
    path = copy / "calibration.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    if damage == "absent":
        path.unlink()
    else:
        path.write_bytes(data)
    with pytest.raises(FastflowError, match=r"calibration\.safetensors is (damaged|missing)"):
        Runtime(copy)


def test_arrays_that_cannot_be_right(copy):
    spoil_arrays(copy, lambda arrays: arrays["truncation.deviation"].fill(np.nan))
    with pytest.raises(FastflowError, match=r"array truncation\.deviation: must be finite"):
        Runtime(copy)
    change_arrays(copy, lambda arrays: {n: a for n, a in arrays.items() if "truncation" not in n})
    assert Runtime(copy).info()["truncation"] == "first dimensions, in no order"
    change_arrays(copy, lambda arrays: {n: a for n, a in arrays.items() if "shift1" not in n})
    assert load_file(copy / "calibration.safetensors")
    with pytest.raises(FastflowError, match="arrays missing or unknown"):
        Runtime(copy)
