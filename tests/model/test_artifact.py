"""The model directory: what was saved loads, and what it records. What is wrong with one: test_refusals_model.py."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.late import Loading, start_thread
from fastflow.model import Model, Prompts, VectorModel
from fastflow.model.artifact import Opening, load_model, open_model
from fastflow.model.encoder.int8 import FIELD
from fastflow.model.encoder.weights import encoder_hash
from fastflow.model.hashing import Hashes, file_hash
from fastflow.model.manifest import FORMAT_VERSION
from fastflow.model.verify import verify

from support.spoil import change_manifest


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


# ---- without an encoder


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


# ---- records


def test_what_is_written_is_what_is_read(model):
    found, entry = load_model(model).int8, json.loads((model / "fastflow.json").read_text())[FIELD]
    assert found.entry() == entry
    for arrays, products in ((found.largest, ("qkv", "up")), (found.terms, ("qkv", "up", "down"))):
        assert {name.split(".")[-1] for name in arrays} == set(products)
        assert all(array.dtype == np.float32 and array.ndim == 1 and (array >= 0).all() for array in arrays.values())


@pytest.mark.parametrize("found", [float("nan"), 7.5, float("inf")])
def test_a_least_cosine_that_is_none_allows_no_bfloat16(model_copy, found):
    change_manifest(model_copy, least_cosine={"bfloat16": found})
    assert Runtime(model_copy, backend="cpu").info()["dtype"] == "float32"


# ---- hashes, computed during other work and checked when the model has been opened


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


def test_without_a_thread_the_work_is_done_at_once(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    done = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    wait = start_thread(lambda: done.append(1), "x")
    assert done == [1]
    wait()
    assert done == [1]


def test_a_tokenizer_that_is_loading_is_made_once_in_another_thread():
    made = []
    loading = Loading(lambda: made.append(threading.current_thread()) or "tokenizer", "t")
    assert loading() == loading() == "tokenizer"
    assert len(made) == 1
    assert made[0] is not threading.current_thread()


# ---- prompts

STORED = Prompts({"query": "q: ", "document": "", "title": "t: "}, "title")


def test_the_prompt_itself_then_the_name_then_the_default():
    assert STORED.resolve("x ", None) == "x "
    assert STORED.resolve("", None) == ""
    assert STORED.resolve(None, "query") == "q: "
    assert STORED.resolve() == "t: "
    assert Prompts(STORED.texts).resolve() == Prompts().resolve() == ""


def test_a_task_never_takes_the_default():
    assert (STORED.of_task("query"), STORED.of_task("document"), Prompts().of_task("query")) == ("q: ", "", "")
