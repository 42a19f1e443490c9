"""A model without an encoder on disk: what its manifest says."""

from __future__ import annotations

import json

import pytest

from fastflow.errors import UsageError
from fastflow.model.artifact import Opening, load_model, open_model, verify
from fastflow.model.kinds import Model, VectorModel
from fastflow.model.manifest import FORMAT_VERSION


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
