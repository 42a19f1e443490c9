"""The frozen encoder's pass over a corpus: values, order, the cache and what can go wrong with it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tolerances import COMPANY, EMBEDDING

from fastflow import Runtime
from fastflow.artifact import fingerprint
from fastflow.backend_torch import TorchBackend, load_torch_encoder
from fastflow.errors import FastflowError, UsageError
from fastflow.tokens import Tokenizer
from fastflow.train import embeddings
from fastflow.train.embeddings import Embedder, cache_directory, cache_key, embed_corpus, open_encoder


def opened(directory, pooling="first-last", max_length=64):
    return open_encoder(str(directory), pooling, max_length)


@pytest.fixture
def passes(monkeypatch):
    """Counts the batches that the encoder is given."""
    seen = []
    run = TorchBackend.encoder
    monkeypatch.setattr(
        TorchBackend, "encoder", lambda self, tokens: (seen.append(len(tokens.offsets) - 1), run(self, tokens))[1]
    )
    return seen


def test_embeddings_are_the_runtimes_pooled_vectors(model, bert, sentences, tmp_path):
    found = embed_corpus(sentences, opened(bert), tmp_path)
    assert found.shape == (256, 32)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert found.std(axis=0).min() > 0.01
    for backend in ("torch", "reference"):
        pooled = Runtime(model, backend=backend).pool(sentences)
        scale = np.linalg.norm(pooled, axis=1, keepdims=True)
        assert np.abs((found - pooled) / scale).max() <= EMBEDDING


def test_first_last_is_the_mean_of_layers_one_and_last(bert, sentences):
    vector = Embedder(opened(bert), "cpu")(sentences[:1])[0]
    ids = Tokenizer(bert, 64)(sentences[:1]).ids
    with torch.no_grad():
        states = load_torch_encoder(bert)(
            torch.tensor(ids, dtype=torch.long)[None], output_hidden_states=True
        ).hidden_states
    expected = ((states[1] + states[-1]) / 2)[0].mean(dim=0).numpy()
    assert len(states) == 4
    assert np.abs(vector - expected).max() <= 1e-5


def test_order_is_kept_whatever_the_window(bert, sentences, tmp_path, monkeypatch):
    encoder = opened(bert)
    whole = embed_corpus(sentences, encoder, tmp_path / "a")
    monkeypatch.setattr(embeddings, "WINDOW", 37)
    monkeypatch.setattr(embeddings, "BATCH_TOKENS", 50)
    assert np.abs(embed_corpus(sentences, encoder, tmp_path / "b") - whole).max() <= COMPANY["float32"]
    alone = np.concatenate([Embedder(encoder, "cpu")([text]) for text in sentences[:20]])
    assert np.abs(alone - whole[:20]).max() <= COMPANY["float32"]
    backwards = embed_corpus(sentences[::-1], encoder, tmp_path / "c")
    assert np.abs(backwards[::-1] - whole).max() <= COMPANY["float32"]


def test_second_run_reads_the_cache(bert, sentences, tmp_path, passes):
    first = embed_corpus(sentences, opened(bert), tmp_path)
    (path,) = tmp_path.iterdir()
    made, calls = path.stat().st_mtime_ns, len(passes)
    assert calls > 0
    second = embed_corpus(sentences, opened(bert), tmp_path)
    assert (len(passes), path.stat().st_mtime_ns) == (calls, made)
    assert np.array_equal(first, second)
    for array in (first, second):
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable


def test_key_follows_everything_that_decides_the_vectors(bert, bert_copy, sentences):
    encoder = opened(bert)
    keys = [
        cache_key(encoder, sentences),
        cache_key(encoder, sentences[:-1]),
        cache_key(encoder, sentences[::-1]),
        cache_key(opened(bert, "last"), sentences),
        cache_key(opened(bert, "cls"), sentences),
        cache_key(opened(bert, max_length=63), sentences),
    ]
    assert cache_key(opened(bert_copy), sentences) == keys[0]  # where it lies does not matter
    tokenizer = json.loads((bert_copy / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (bert_copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    keys.append(cache_key(opened(bert_copy), sentences))
    tensors = load_file(bert_copy / "model.safetensors")
    tensors["encoder.layer.0.output.dense.bias"][0] += 1e-3
    save_file(tensors, bert_copy / "model.safetensors", {"format": "pt"})
    keys.append(cache_key(opened(bert_copy), sentences))
    assert len(set(keys)) == len(keys)


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    other = {"shape": np.zeros((3, 32), np.float32), "dtype": np.zeros((256, 32))}
    if how in other:
        np.save(path, other[how])
    else:
        path.write_bytes({"empty": b"", "truncated": content[:-400], "header": content[:40], "noise": b"x" * 999}[how])


@pytest.mark.parametrize("how", ["empty", "truncated", "header", "noise", "shape", "dtype"])
def test_damaged_cache_is_made_anew(bert, sentences, tmp_path, passes, how):
    first = np.array(embed_corpus(sentences, opened(bert), tmp_path))
    (path,) = tmp_path.iterdir()
    calls = len(passes)
    spoil(path, how)
    assert np.array_equal(embed_corpus(sentences, opened(bert), tmp_path), first)
    assert len(passes) == 2 * calls
    assert list(tmp_path.iterdir()) == [path]


def test_interruption_leaves_no_file(bert, sentences, tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "WINDOW", 100)
    calls = []

    def stop(self, tokens):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return run(self, tokens)

    run = TorchBackend.encoder
    monkeypatch.setattr(TorchBackend, "encoder", stop)
    with pytest.raises(KeyboardInterrupt):
        embed_corpus(sentences, opened(bert), tmp_path)
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_cache_that_cannot_be_written(bert, sentences, corpus, inside):
    with pytest.raises(FastflowError, match=r"the cache .* cannot be written: .*; choose another with --cache"):
        embed_corpus(sentences, opened(bert), corpus / inside)  # a file where a folder should be


def test_full_disk(bert, sentences, tmp_path, monkeypatch):
    def full(*unused):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(FastflowError, match="cannot be written: No space left on device"):
        embed_corpus(sentences, opened(bert), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_dropout_is_live_only_when_asked(bert, sentences):
    encoder, texts = opened(bert), sentences[:8]
    clean, live = Embedder(encoder, "cpu"), Embedder(encoder, "cpu", dropout=True)
    assert np.array_equal(clean(texts), clean(texts))
    first, second = live(texts), live(texts)
    assert np.abs(first - second).max() > 1e-2
    assert np.abs(first - clean(texts)).max() > 1e-2
    torch.manual_seed(3)
    again = live(texts)
    torch.manual_seed(3)
    assert np.array_equal(live(texts), again)


def test_encoder_that_overflows_is_an_error_naming_the_text(bert_copy, sentences, tmp_path, monkeypatch):
    pooling = embeddings.TorchBackend.pooling
    monkeypatch.setattr(embeddings.TorchBackend, "pooling", lambda *given: pooling(*given) * np.float32(np.inf))
    with pytest.raises(FastflowError, match=r"bert: the encoder gives NaN or infinity for the text '"):
        embed_corpus(sentences, opened(bert_copy), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_encoder_may_be_a_fastflow_model(model, model_copy, bert):
    assert opened(model).directory == model / "0_Transformer"
    manifest = json.loads((model_copy / "fastflow.json").read_text())
    shutil.rmtree(model_copy / "0_Transformer")  # as of a model whose encoder is referenced on the Hub
    manifest["files"] = {name: mark for name, mark in manifest["files"].items() if not name.startswith("0_")}
    manifest["encoder"] |= {"hub_id": "nobody/nothing", "revision": "0" * 40}
    manifest["fingerprint"] = fingerprint(manifest)
    (model_copy / "fastflow.json").write_text(json.dumps(manifest))
    with pytest.raises(FastflowError, match="holds no encoder, and nobody/nothing is not in the local Hub cache"):
        opened(model_copy)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "../no/where", "~/nothing"])
def test_a_path_never_touches_the_network(name, monkeypatch):
    monkeypatch.setattr(embeddings, "hub_snapshot", lambda name: pytest.fail("asked the Hub"))
    with pytest.raises(FastflowError, match="no such encoder directory"):
        opened(name)


@pytest.mark.parametrize(("length", "found"), [(None, 128), (3, 3), (128, 128)])
def test_max_length(bert, length, found):
    assert opened(bert, max_length=length).max_length == found


@pytest.mark.parametrize("length", [2, 0, -1, 129])
def test_max_length_out_of_range(bert, length):
    with pytest.raises(UsageError, match=f"--max-length must be 3 to 128 for this encoder, not {length}"):
        opened(bert, max_length=length)


def test_encoders_that_cannot_serve(encoders, bert_copy):
    with pytest.raises(UsageError, match="pooling 'pooler' needs a pooler, and this encoder has none"):
        opened(encoders("distilbert"), "pooler")
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        Embedder(opened(bert_copy), "tpu")
    config = json.loads((bert_copy / "config.json").read_text())
    (bert_copy / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))
    with pytest.raises(FastflowError, match=r"the tokenizer has \d+ entries, more than the 20"):
        opened(bert_copy)


def test_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory(None) == tmp_path / "fastflow"
    assert cache_directory("here") == Path("here")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory(None) == tmp_path / ".cache" / "fastflow"
