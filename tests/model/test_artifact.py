"""The model directory: what was saved loads. What is wrong with one: test_refusals_model.py."""

from __future__ import annotations

import json

import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model, verify
from fastflow.model.hashing import encoder_hash

FILES = (
    "README.md", "calibration.safetensors", "int8.safetensors",
    "0_Transformer/config.json", "0_Transformer/model.safetensors",
    "0_Transformer/tokenizer.json", "0_Transformer/tokenizer_config.json",
)  # fmt: skip


def test_a_saved_model_is_what_the_contract_says(model):
    manifest = json.loads((model / "fastflow.json").read_text())
    assert sorted(manifest["files"]) == sorted(FILES)
    held = {str(p.relative_to(model)) for p in model.rglob("*") if p.is_file()}
    assert held == {*FILES, "fastflow.json"}
    assert manifest["format_version"] == 1
    assert manifest["pooling"] == {"mode": "mean", "layers": [0, 1, 3]}
    assert (manifest["dim"], manifest["max_length"]) == (32, 64)
    assert [entry["kind"] for entry in manifest["calibration"]] == ["flow"]
    assert manifest["encoder"] == {"sha256": encoder_hash(model / "0_Transformer")}
    assert [word for line in verify(model) for word in line.split()][:2] == ["7", "files"]


def test_verify_refuses_unlisted_files(model_copy):
    (model_copy / "0_Transformer" / "modeling.py").write_text("raise SystemExit")
    assert load_model(model_copy).max_length == 64  # never read, never run
    with pytest.raises(FastflowError, match=r"does not list: 0_Transformer/modeling\.py"):
        verify(model_copy)


def test_a_model_of_links_loads(model, tmp_path):
    for path in model.rglob("*"):
        if path.is_file():
            link = tmp_path / "links" / path.relative_to(model)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    assert Runtime(tmp_path / "links").fingerprint == Runtime(model).fingerprint
