"""Hashes computed during other work, and checked when the model has been opened."""

from __future__ import annotations

import pytest

from fastflow.errors import FastflowError
from fastflow.model.artifact import Opening, load_model
from fastflow.model.hashing import Hashes, encoder_hash, file_hash


def test_a_plain_encoder_is_identified_when_the_opening_ends(bert):
    with Opening(bert) as opening:
        assert opening.model.fingerprint == ""
    assert opening.model.fingerprint == encoder_hash(bert) == load_model(bert).fingerprint


def test_a_damaged_file_is_reported_before_what_it_led_to(model_copy):
    weights = model_copy / "0_Transformer" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    message = r"model\.safetensors is damaged: its sha256 differs"
    with pytest.raises(FastflowError, match=message), Opening(model_copy):
        pass
    with pytest.raises(FastflowError, match=message), Opening(model_copy):
        raise FastflowError("something that the damage led to")
    with pytest.raises(KeyboardInterrupt), Opening(model_copy):
        raise KeyboardInterrupt


def test_a_file_that_cannot_be_read_is_named_where_its_hash_is_asked_for(tmp_path):
    hashes = Hashes()
    (tmp_path / "there").write_bytes(b"abc")
    hashes.start([tmp_path / "absent", tmp_path / "there"])
    assert hashes(tmp_path / "there") == file_hash(tmp_path / "there")
    with pytest.raises(FastflowError, match="absent cannot be read: No such file"):
        hashes(tmp_path / "absent")
