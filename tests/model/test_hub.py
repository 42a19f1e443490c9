"""Models that refer to the Hub: its cache, and the network only if a caller allows it."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.encoder.weights import encoder_hash
from fastflow.model.locate import find_model, hub_snapshot
from fastflow.model.verify import verify

from support.builders import hub_cache, make_model


@pytest.fixture
def hub(tmp_path, monkeypatch, bert):
    """A hub cache that holds ``bert`` as someone/tiny at one revision; nothing else can be reached."""
    return hub_cache(tmp_path / "hub", bert, monkeypatch)


@pytest.fixture
def downloads(hub, bert, monkeypatch):
    """What snapshot_download is asked for, as (id, whether of the cache alone); a download brings the weights."""
    asked = []

    def download(hub_id, local_files_only=False, **options):
        asked.append((hub_id, local_files_only))
        if hub_id != "someone/tiny" and local_files_only:
            raise FileNotFoundError(hub_id)
        if not local_files_only:
            shutil.copy(bert / "model.safetensors", hub)
        return str(hub)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return asked


def test_a_local_model_never_touches_the_network(hub, bert, sentences, tmp_path, monkeypatch):
    made, asked = make_model(tmp_path / "made", Path("someone/tiny"), sentences), []
    download = huggingface_hub.snapshot_download

    def watched(hub_id, local_files_only=False, **options):
        asked.append(local_files_only)
        return download(hub_id, local_files_only=True, **options)

    monkeypatch.setattr("huggingface_hub.snapshot_download", watched)
    assert load_model(made).encoder == hub
    assert Runtime(made).encode(["a"]).shape == (1, 32)
    (hub / "tokenizer_config.json").write_text("{}")
    for opens in (Runtime, verify):
        with pytest.raises(
            FastflowError, match=r"someone/tiny at .* differs from the encoder this model was trained w"
        ):
            opens(made)
    shutil.rmtree(hub)
    command = f"hf download someone/tiny --revision {hub.name}"
    message = rf"made holds no encoder, and someone/tiny is not in the local Hub cache: fetch it with '{command}', or"
    for opens in (Runtime, load_model, verify):
        with pytest.raises(FastflowError, match=message):
            opens(made)
    assert set(asked) == {True}
    asked.clear()
    for opens in (Runtime, load_model):
        with pytest.raises(FastflowError, match="neither a local directory nor to be had from the Hub"):
            opens(made, allow_download=True)
    assert asked == [True, False, True, False]


def test_a_runtime_remembers_that_it_may_download(hub, bert, sentences, tmp_path, downloads):
    made = make_model(tmp_path / "made", Path("someone/tiny"), sentences)
    (hub / "model.safetensors").unlink()  # the cache holds a tokenizer alone
    with pytest.raises(FastflowError, match="is not in the local Hub cache"):
        Runtime(made)
    runtime = Runtime(made, allow_download=True)
    (hub / "model.safetensors").unlink()
    assert np.array_equal(pickle.loads(pickle.dumps(runtime)).encode(sentences[:3]), runtime.encode(sentences[:3]))


def test_a_cache_that_holds_only_a_tokenizer_does_not_pass_for_the_encoder(hub, bert, downloads):
    (hub / "model.safetensors").unlink()
    assert encoder_hash(hub_snapshot("someone/tiny")) == encoder_hash(bert)
    assert downloads == [("someone/tiny", True), ("someone/tiny", False)]
    assert hub_snapshot("someone/tiny") == hub  # and now nothing is fetched
    assert downloads[2:] == [("someone/tiny", True)]


def test_a_hub_id_opens_as_its_directory_does(hub, bert, sentences, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_name = Runtime("someone/tiny")
    assert by_name.fingerprint == Runtime(bert).fingerprint
    assert np.array_equal(by_name.encode(sentences[:5]), Runtime(bert).encode(sentences[:5]))
    assert pickle.loads(pickle.dumps(by_name)).fingerprint == by_name.fingerprint
    (tmp_path / "someone").mkdir()
    shutil.copytree(bert, tmp_path / "someone" / "tiny")
    assert load_model("someone/tiny").encoder == Path("someone/tiny")  # a directory of that name comes first


def test_a_hub_id_is_fetched_only_where_that_is_allowed(hub, downloads, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # no ../b stands beside it
    message = r"^someone/other: no such model directory, .*fastflow pull someone/other -o DIR, and give DIR; in"
    for opens in (load_model, find_model):
        with pytest.raises(FastflowError, match=message):
            opens("someone/other")
    assert load_model("someone/other", allow_download=True).encoder == hub
    assert downloads == [("someone/other", cached) for cached in (True, True, True, False)]
    for name in ("a/b/c", "../b", "/a/b", "a", "a/b c"):
        with pytest.raises(FastflowError, match="no such model directory"):
            load_model(name, allow_download=True)
    for name in ("./no/model", "../no/model"):
        with pytest.raises(FastflowError, match=r"no/model: no such model directory; make one with fastflow-train"):
            Runtime(name)
    assert len(downloads) == 4
