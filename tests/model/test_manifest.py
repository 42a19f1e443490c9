"""The manifest of a model: what it must say, and that whatever is wrong with it is named."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.numpy import load_file

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model

from support.builders import make_encoder
from support.spoil import change_manifest


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is not JSON"), ("{", "is not JSON"), ("[]", "does not hold a JSON object"), ("\xff", "is not JSON")],
)
def test_a_manifest_that_is_no_manifest(model_copy, text, message):
    (model_copy / "fastflow.json").write_bytes(text.encode("latin1"))
    with pytest.raises(FastflowError, match=rf"fastflow\.json.*{message}"):
        load_model(model_copy)


@pytest.mark.parametrize("field", [{"dim": 16}, {"max_length": 32}, {"pooling": {"mode": "mean", "layers": [3]}}])
def test_an_edited_manifest_is_noticed(model_copy, field):
    change_manifest(model_copy, forge=False, **field)
    with pytest.raises(FastflowError, match=r"fastflow\.json was changed after it was saved"):
        load_model(model_copy)


@pytest.mark.parametrize("version", [0, 4, "1", None, ...])
def test_another_version_is_refused_before_anything_else(model_copy, version):
    change_manifest(model_copy, forge=False, format_version=version)
    with pytest.raises(FastflowError, match="field format_version: this fastflow reads versions 1 to 3"):
        load_model(model_copy)


@pytest.mark.parametrize("field", ["pooling", "max_length", "calibration", "dim", "encoder", "files", "fingerprint"])
@pytest.mark.parametrize("value", [..., None, 1.5])
def test_a_missing_or_mistyped_field_is_named(model_copy, field, value):
    change_manifest(model_copy, forge=field != "fingerprint", **{field: value})
    with pytest.raises(FastflowError, match=rf"fastflow\.json, field {field}: missing or not"):
        load_model(model_copy)


FLOW = {"kind": "flow", "dim": 32, "levels": 2, "depth": 2, "width": 8} | {
    "coupling": "additive", "permutation": "reversal",
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_length", 129), ("max_length", 1), ("max_length", True), ("dim", 31), ("pooling", {}),
        ("pooling", {"mode": "mean"}), ("pooling", {"mode": "mean", "layers": []}),
        ("pooling", {"mode": "mean", "layers": [4]}), ("pooling", {"mode": "mean", "layers": [-1]}),
        ("pooling", {"mode": "mean", "layers": 3}), ("pooling", {"mode": "mean", "layers": ["1"]}),
        ("pooling", {"mode": "max", "layers": [3]}), ("pooling", {"mode": "cls", "layers": [1, 3]}),
        ("pooling", {"mode": "pooler", "layers": [1]}), ("calibration", [3]), ("calibration", [{}]),
        ("calibration", [{"kind": "flow"}]), ("calibration", [{"kind": "magic"}]),
        ("calibration", [FLOW | {"levels": "2"}]), ("calibration", [FLOW | {"levels": 0}]),
        ("calibration", [FLOW | {"depth": 3}]), ("calibration", [FLOW | {"width": 7}]),
        ("calibration", [FLOW | {"coupling": "affine"}]), ("calibration", [FLOW | {"coupling": "other"}]),
        ("calibration", [FLOW | {"permutation": "lu"}]), ("calibration", [FLOW | {"permutation": "other"}]),
        ("calibration", [FLOW, FLOW]), ("files", {"calibration.safetensors": 3}),
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_fit_is_refused_by_field(model_copy, field, value):
    change_manifest(model_copy, **{field: value})
    message = f"field {field}|calibration stage|calibration flow|unknown calibration|is damaged: its sha256"
    with pytest.raises(FastflowError, match=message):
        load_model(model_copy)


@pytest.mark.parametrize("name", ["../bert/config.json", "/etc/hostname", "0_Transformer/../../x", "", "."])
def test_file_names_stay_inside_the_model(model_copy, name):
    files = json.loads((model_copy / "fastflow.json").read_text())["files"]
    change_manifest(model_copy, files={name: "0" * 64, **files})
    with pytest.raises(FastflowError, match=r"field files: .* lies outside the model"):
        load_model(model_copy)


def test_a_file_that_would_change_the_model_must_be_listed(model_copy):
    other = make_encoder(model_copy.parent / "other", seed=9)
    shutil.copy(other / "model.safetensors", model_copy / "0_Transformer" / "other.safetensors")
    index = model_copy / "0_Transformer" / "model.safetensors.index.json"
    names = load_file(other / "model.safetensors")
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "other.safetensors")}))
    with pytest.raises(FastflowError, match=r"0_Transformer/model\.safetensors\.index\.json is not listed"):
        Runtime(model_copy)
