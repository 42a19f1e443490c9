"""The model directory: what was saved loads, and whatever is wrong with it is named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model, verify
from fastflow.model.hashing import encoder_hash

from support.spoil import change_arrays, rehash

FILES = (
    "README.md", "calibration.safetensors", "int8.safetensors",
    "0_Transformer/config.json", "0_Transformer/model.safetensors",
    "0_Transformer/tokenizer.json", "0_Transformer/tokenizer_config.json",
)  # fmt: skip


LOADED = FILES[1:]  # the card is checked by verify alone: a reader may mend its text


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


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied", "absent", "a folder"])
def test_each_damaged_file_is_named(model_copy, name, damage):
    path = model_copy / name
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage in ("truncated", "emptied"):
        path.write_bytes(data[: len(data) - 1 if damage == "truncated" else 0])
    else:
        path.unlink()
        if damage == "a folder":
            path.mkdir()
    message = "is missing" if damage in ("absent", "a folder") else "is damaged: its sha256 differs"
    with pytest.raises(FastflowError, match=rf"{name} {message}"):
        verify(model_copy)
    if name in LOADED:
        with pytest.raises(FastflowError, match=rf"{name} {message}"):
            Runtime(model_copy)
    else:
        assert Runtime(model_copy).encode("the dog").shape == (32,)


def test_verify_refuses_unlisted_files(model_copy):
    (model_copy / "0_Transformer" / "modeling.py").write_text("raise SystemExit")
    assert load_model(model_copy).max_length == 64  # never read, never run
    with pytest.raises(FastflowError, match=r"does not list: 0_Transformer/modeling\.py"):
        verify(model_copy)


NAME = "0.levels.1.0.coupling.net.weight2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {k: v for k, v in a.items() if k != NAME}, r"missing or unknown: levels\.1\.0\.coupling.*weight2"),
        (lambda a: a | {"0.extra": a[NAME]}, "missing or unknown: extra"),
        (lambda a: a | {NAME: a[NAME][:-1].copy()}, r"weight2: shape \(7, 8\) does not fit \(8, 8\)"),
        (lambda a: a | {NAME: a[NAME].astype(np.int64)}, "weight2: unexpected dtype int64"),
        (lambda a: a | {NAME: np.where(np.eye(8) > 0, np.nan, a[NAME])}, "weight2: holds NaN or infinity"),
        (lambda a: a | {NAME: np.where(np.eye(8) > 0, np.inf, a[NAME])}, "weight2: holds NaN or infinity"),
    ],
)
def test_wrong_arrays_are_named(model_copy, change, message):
    change_arrays(model_copy, change)
    with pytest.raises(FastflowError, match=message):
        load_model(model_copy)


def test_calibration_that_is_not_safetensors_is_never_unpickled(model_copy):
    (model_copy / "calibration.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    with pytest.raises(FastflowError, match=r"calibration\.safetensors is damaged or not safetensors"):
        load_model(rehash(model_copy))


def test_a_model_of_links_loads(model, tmp_path):
    for path in model.rglob("*"):
        if path.is_file():
            link = tmp_path / "links" / path.relative_to(model)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    assert Runtime(tmp_path / "links").fingerprint == Runtime(model).fingerprint


def test_what_is_no_model(tmp_path):
    with pytest.raises(FastflowError, match="absent: no such model directory"):
        load_model(tmp_path / "absent")
    with pytest.raises(FastflowError, match=r"is not a model: it holds neither fastflow\.json nor config\.json"):
        load_model(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FastflowError, match="file is not a model"):
        load_model(tmp_path / "file")
