"""Embeddings of a corpus and their cache; a token table as the encoder."""

import io
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastflow import Runtime
from fastflow.backends.choose import cannot_run
from fastflow.backends.cpu import CpuBackend
from fastflow.backends.torch import TorchBackend
from fastflow.errors import FastflowError, UsageError
from fastflow.files.write import partial
from fastflow.model.manifest import fingerprint
from fastflow.model.tokenizer import Tokenizer
from fastflow.model.verify import verify
from fastflow.train.data import embeddings
from fastflow.train.data.background import load_english
from fastflow.train.data.embeddings import Embedder, cache_directory, cache_key, embed_corpus, pick_backend
from fastflow.train.data.encoder import open_encoder
from fastflow.train.data.moments import read_through
from fastflow.train.data.token_weights import count_tokens, split_head, weigh

from support.builders import LAYERED, make_encoder, make_model, wordpiece
from support.static_dirs import model2vec_dir, static_embedding_dir
from support.tolerances import COMPANY, EMBEDDING


def open_one(directory, pooling="first-last", max_length=64):
    return open_encoder(str(directory), pooling, max_length)


RUNNERS = {"cpu": CpuBackend, "torch": TorchBackend}


@pytest.fixture(params=RUNNERS)
def runner(request, monkeypatch):
    if reason := cannot_run(request.param, "cpu"):
        pytest.skip(str(reason))
    monkeypatch.setattr(embeddings, "pick_backend", lambda directory, device: request.param)
    return request.param


@pytest.fixture
def passes(monkeypatch, runner):
    seen, run = [], RUNNERS[runner].pool

    def count(self, tokens):
        seen.append(len(tokens.offsets) - 1)
        return run(self, tokens)

    monkeypatch.setattr(RUNNERS[runner], "pool", count)
    return seen


def arrays(directory):
    return sorted(path.name for path in directory.iterdir() if path.suffix != ".json")


def test_embeddings_are_the_runtimes_pooled_vectors(model, bert, sentences, tmp_path, runner):
    found = embed_corpus(sentences, open_one(bert, LAYERED), tmp_path)
    assert found.shape == (256, 32)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert found.std(axis=0).min() > 0.01
    for backend in ("torch", "reference"):
        pooled = Runtime(model, backend=backend).pool(sentences)
        scale = np.linalg.norm(pooled, axis=1, keepdims=True)
        assert np.abs((found - pooled) / scale).max() <= EMBEDDING


@pytest.mark.slow
def test_order_is_kept_whatever_the_window(bert, sentences, tmp_path, monkeypatch, runner):
    encoder = open_one(bert)
    whole = embed_corpus(sentences, encoder, tmp_path / "a")
    monkeypatch.setattr(embeddings, "WINDOW", 37)
    monkeypatch.setattr(embeddings, "BATCH_TOKENS", 50)
    assert np.abs(embed_corpus(sentences, encoder, tmp_path / "b") - whole).max() <= COMPANY["float32"]
    alone = np.concatenate([Embedder(encoder, "cpu")([text]) for text in sentences[:20]])
    assert np.abs(alone - whole[:20]).max() <= COMPANY["float32"]
    backwards = embed_corpus(sentences[::-1], encoder, tmp_path / "c")
    assert np.abs(backwards[::-1] - whole).max() <= COMPANY["float32"]


def test_second_run_reads_the_cache(bert, sentences, tmp_path, passes):
    first = embed_corpus(sentences, open_one(bert), tmp_path)
    (path,) = tmp_path.glob("*.npy")
    made, calls = path.stat().st_mtime_ns, len(passes)
    assert calls > 0
    second = embed_corpus(sentences, open_one(bert), tmp_path)
    assert (len(passes), path.stat().st_mtime_ns) == (calls, made)
    assert np.array_equal(first, second)
    for array in (first, second):
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable


def test_key_follows_everything_that_decides_the_vectors(bert, bert_copy, sentences):
    encoder = open_one(bert)
    keys = [cache_key(encoder, texts) for texts in (sentences, sentences[:-1], sentences[::-1])]
    others = [open_one(bert, "last"), open_one(bert, "cls"), open_one(bert, max_length=63)]
    others += [weigh(encoder, sentences, load_english()), weigh(encoder, sentences[:9], None)]
    keys += [cache_key(other, sentences) for other in others]
    assert cache_key(open_one(bert_copy), sentences) == keys[0]  # its place does not matter
    tokenizer = json.loads((bert_copy / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (bert_copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    keys.append(cache_key(open_one(bert_copy), sentences))
    tensors = load_file(bert_copy / "model.safetensors")
    tensors["encoder.layer.0.output.dense.bias"][0] += 1e-3
    save_file(tensors, bert_copy / "model.safetensors", {"format": "pt"})
    keys.append(cache_key(open_one(bert_copy), sentences))
    assert len(set(keys)) == len(keys)


DAMAGES = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:-400],
    "header": lambda content: content[:40],
    "noise": lambda content: b"x" * 999,
    "shape": lambda content: saved(np.zeros((3, 32), np.float32)),
    "dtype": lambda content: saved(np.zeros((256, 32))),
    "unfinished": None,
}


def saved(array):
    np.save(out := io.BytesIO(), array)
    return out.getvalue()


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_cache_is_made_again(bert, sentences, tmp_path, passes, how, monkeypatch):
    monkeypatch.setattr(embeddings, "WINDOW", 40)
    first = np.array(embed_corpus(sentences, open_one(bert), tmp_path))
    (path,) = tmp_path.glob("*.npy")
    calls = len(passes)
    if how == "unfinished":
        path.replace(f"{path}.partial").write_bytes(b"x" * 99_999)
    else:
        path.write_bytes(DAMAGES[how](path.read_bytes()))
    assert np.array_equal(embed_corpus(sentences, open_one(bert), tmp_path), first)
    assert len(passes) == 2 * calls
    assert arrays(tmp_path) == [path.name]


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), OSError(28, "No space left on device")])
def test_an_interrupted_pass_continues_bit_for_bit(
    bert, sentences, tmp_path, monkeypatch, capsys, runner, passes, error
):
    monkeypatch.setattr(embeddings, "WINDOW", 40)
    monkeypatch.setattr(embeddings, "BATCH_TOKENS", 10_000)  # a batch a window
    whole = np.array(embed_corpus(sentences, open_one(bert), tmp_path / "whole"))

    def stop_run(batch):
        """Raise ``error`` at the encoder's ``batch``-th batch, from 1."""
        calls, run = iter(range(1, 100)), RUNNERS[runner].pool

        def stop(self, tokens):
            if next(calls) == batch:
                raise error
            return run(self, tokens)

        with monkeypatch.context() as patch:
            patch.setattr(RUNNERS[runner], "pool", stop)
            with pytest.raises((KeyboardInterrupt, MemoryError, FastflowError)):
                embed_corpus(sentences, open_one(bert), tmp_path / "c")

    stop_run(1)
    assert list((tmp_path / "c").iterdir()) == [], "nothing of the first window"
    stop_run(4)
    assert "120 texts are kept in the cache, and the same command continues" in capsys.readouterr().err
    (name,) = arrays(tmp_path / "c")
    assert name.endswith(".partial")
    with (tmp_path / "c" / name).open("ab") as handle:
        handle.write(b"torn" * 100)  # three rows and a bit, as a crash in the middle of a window leaves them
    passes.clear()
    found = embed_corpus(sentences, open_one(bert), tmp_path / "c")
    assert passes == [40, 40, 40, 16]
    assert "continues after 120 of 256 texts" in capsys.readouterr().err
    assert np.array_equal(found, whole)
    assert arrays(tmp_path / "c") == [name.removesuffix(".partial")]


@pytest.mark.slow
def test_a_second_run_waits_for_the_first(bert, sentences, tmp_path, monkeypatch, capsys, passes):
    """Two threads are as two processes: a lock is of the open file."""
    at_work, go_on, run = threading.Event(), threading.Event(), Embedder.__call__

    def hold(self, texts, advance=lambda n: None):
        at_work.set()
        assert go_on.wait(60)
        return run(self, texts, advance)

    monkeypatch.setattr(Embedder, "__call__", hold)
    monkeypatch.setattr(partial.time, "sleep", lambda seconds: (go_on.set(), first.join(60)))
    made = []
    first = threading.Thread(target=lambda: made.append(embed_corpus(sentences, open_one(bert), tmp_path)))
    first.start()
    assert at_work.wait(60)
    second = embed_corpus(sentences, open_one(bert), tmp_path)
    assert np.array_equal(made[0], second)
    assert sum(passes) == 256  # computed once
    assert capsys.readouterr().err.count("another process computes these embeddings in") == 1
    (name,) = arrays(tmp_path)
    assert name.endswith(".npy")


@pytest.mark.slow
def test_no_more_than_a_window_of_texts_is_tokenized_at_once(bert, monkeypatch):
    sizes, call = [], Tokenizer.__call__

    def measure(self, texts):
        sizes.append(len(texts))
        return call(self, texts)

    monkeypatch.setattr(Tokenizer, "__call__", measure)
    head, texts = split_head(f"a dog {i}" for i in range(9000))
    encoder = weigh(open_one(bert), head, load_english())
    assert sum(sizes) == 9000 + 5000 + 1 + 2 * len(load_english().shares)  # and the sentences and words of English
    streamed = read_through(texts, Embedder(encoder, "cpu"), 10)
    assert streamed.moments.count == 9000
    assert max(sizes) <= 4096


def test_who_makes_the_pass(bert, encoders, monkeypatch):
    if reason := cannot_run("cpu", "cpu"):
        pytest.skip(str(reason))
    assert pick_backend(bert, "cpu") == "cpu"
    assert pick_backend(bert, "cuda") == "torch"
    other = make_encoder(bert.parent / "albert", "albert")
    assert pick_backend(other, "cpu") == "torch"
    encoder = open_one(bert)
    assert isinstance(Embedder(encoder, "cpu").backend, CpuBackend)
    assert isinstance(Embedder(encoder, "cpu", dropout=True).backend, TorchBackend)
    assert isinstance(Embedder(open_one(other), "cpu").backend, TorchBackend)
    keys = {cache_key(encoder, ["a"]), cache_key(encoder, ["a"], "cuda")}
    monkeypatch.setattr(embeddings, "cannot_run", lambda name, device: FastflowError("no extension"))
    assert pick_backend(bert, "cpu") == "torch"
    assert len(keys | {cache_key(encoder, ["a"])}) == 3


def test_the_cache_lies_in_the_usual_place_and_its_size_is_reported(bert, sentences, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory(None) == tmp_path / "fastflow"
    assert cache_directory("here") == Path("here")
    embed_corpus(sentences, open_one(bert), tmp_path / "fastflow")
    assert capsys.readouterr().err == f"cached 33 kB in {tmp_path / 'fastflow'}; `fastflow cache --clear` removes it\n"
    embed_corpus(sentences, open_one(bert), tmp_path / "fastflow")
    assert capsys.readouterr().err == ""
    embed_corpus(sentences, open_one(bert), tmp_path / "other")
    assert f"`fastflow cache --clear {tmp_path / 'other'}` removes it" in capsys.readouterr().err
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory(None) == tmp_path / ".cache" / "fastflow"


def test_cache_that_cannot_be_written(bert, sentences, corpus, tmp_path, monkeypatch):
    for place in (corpus, corpus / "deeper"):  # a file where a folder should be
        with pytest.raises(FastflowError, match=r"cache .* cannot be written: .*; choose another with --cache-folder"):
            embed_corpus(sentences, open_one(bert), place)

    def full(*unused):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embeddings.NpyFile, "append", full)
    with pytest.raises(FastflowError, match="cannot be written: No space left on device"):
        embed_corpus(sentences, open_one(bert), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_encoder_that_overflows_is_an_error_naming_the_text(bert_copy, sentences, tmp_path, monkeypatch, runner):
    monkeypatch.setattr(embeddings, "WINDOW", 40)
    pooling = RUNNERS[runner].pool
    monkeypatch.setattr(RUNNERS[runner], "pool", lambda *given: pooling(*given) * np.float32(np.inf))
    with pytest.raises(FastflowError, match=r"bert: the encoder gives NaN or infinity for the text '"):
        embed_corpus(sentences, open_one(bert_copy), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_encoder_may_be_a_fastflow_model(model, model_copy, bert):
    assert open_one(model).directory == model / "0_Transformer"
    manifest = json.loads((model_copy / "fastflow.json").read_text())
    shutil.rmtree(model_copy / "0_Transformer")  # as of a model whose encoder is referenced on the Hub
    manifest["files"] = {name: mark for name, mark in manifest["files"].items() if not name.startswith("0_")}
    manifest["encoder"] |= {"hub_id": "nobody/nothing", "revision": "0" * 40}
    manifest["fingerprint"] = fingerprint(manifest)
    (model_copy / "fastflow.json").write_text(json.dumps(manifest))
    with pytest.raises(FastflowError, match="holds no encoder, and nobody/nothing is not in the local Hub cache"):
        open_one(model_copy)


def test_a_path_never_touches_the_network(bert_copy, monkeypatch):
    monkeypatch.setattr("fastflow.train.data.encoder.hub_snapshot", lambda name: pytest.fail("asked the Hub"))
    monkeypatch.chdir(bert_copy.parent.parent)
    folder = bert_copy.parent.name
    assert open_one(f"{folder}/bert").hub_id is None
    for name in ("./nowhere", "/nowhere/at/all", "../no/where", "~/nothing"):
        with pytest.raises(FastflowError, match="no such encoder directory"):
            open_one(name)
    with pytest.raises(FastflowError, match=r"bertt: no such encoder directory, though .* is one"):
        open_one(f"{folder}/bertt")


def test_encoders_that_cannot_serve(encoders, bert, bert_copy):
    for length, found in ((None, 128), (3, 3), (128, 128)):
        assert open_one(bert, max_length=length).max_length == found
    for length in (2, 0, -1, 129):
        with pytest.raises(UsageError, match=f"--max-length must be 3 to 128 for this encoder, not {length}"):
            open_one(bert, max_length=length)
    with pytest.raises(UsageError, match="pooling 'pooler' needs a pooler, and this encoder has none"):
        open_one(encoders("distilbert"), "pooler")
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        Embedder(open_one(bert_copy), "tpu")
    config = json.loads((bert_copy / "config.json").read_text())
    (bert_copy / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))
    with pytest.raises(FastflowError, match=r"the tokenizer has \d+ entries, more than the 20"):
        open_one(bert_copy)
    packaged = open_encoder("static", "words", None)
    assert (packaged.directory.name, packaged.directory.parent.name) == ("0_Transformer", "static")
    assert not packaged.packaged  # its fit has no rival in the package


@pytest.fixture(params=["model2vec", "StaticEmbedding"])
def table(request, tmp_path):
    """A directory of each library, 32 wide."""
    if request.param == "model2vec":
        return model2vec_dir(tmp_path / "table", width=32, weights=np.float32, normalize=True)
    return static_embedding_dir(tmp_path / "table", [("Normalize", {})], width=32)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flow", "whiten,recolour", "none"])
def test_a_table_is_calibrated_and_saved(table, tmp_path, sentences, method):
    path = make_model(
        tmp_path / "model", table, sentences, method, pooling="words", max_length=None, weighted=True, ordered=True
    )
    assert any("shapes, dtypes and values are sound" in line for line in verify(path))
    runtime = Runtime(path)
    assert runtime.info()["pooling"] == "weighted masked mean of word embeddings without positions"
    assert runtime.info()["max_length"] == (512 if (table / "config.json").exists() else None)
    found = runtime.encode([*sentences[:20], ""])
    want = Runtime(path, backend="reference", dtype="float64").encode([*sentences[:20], ""])
    np.testing.assert_allclose(found, want, atol=2e-5)
    if method == "flow":
        assert np.isfinite(runtime.log_prob(sentences[:5])).all()
        assert runtime.encode(sentences[:3], truncate_dim=8).shape == (3, 8)
        assert runtime.encode(sentences[:3], precision="int8").dtype == np.int8


def test_the_table_alone_is_pooled(table, sentences):
    frozen = open_one(table, "words", None)
    pooled = Embedder(frozen, "cpu")(sentences[:8])
    assert np.ptp(np.linalg.norm(pooled, axis=1)) > 0.1
    own = Runtime(table).encode(sentences[:8])
    np.testing.assert_allclose(pooled / np.linalg.norm(pooled, axis=1, keepdims=True), own, atol=1e-6)
    assert open_one(table, "last", None).pooling == frozen.pooling
    for pooling in ("first-last", "cls", "pooler", "words-first-last", "mean-of-layers:0,1"):
        with pytest.raises((UsageError, FastflowError), match=r"has no layers|outside 0 to 0|this encoder has none"):
            open_one(table, pooling, None)
    counts, tokenizer = count_tokens(frozen, sentences), wordpiece()
    assert len(counts) == tokenizer.get_vocab_size()
    assert counts[[tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")]].sum() == 0
    assert counts.sum() == sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in sentences)


def test_all_modules_with_pooling_model(tmp_path, sentences):
    layer = ("Dense", {"out_features": 16, "activation_function": "torch.nn.modules.activation.Tanh"})
    bag = static_embedding_dir(tmp_path / "bag", [layer, ("Normalize", {})], width=32)
    frozen = open_encoder(str(bag), "model", None)
    np.testing.assert_allclose(Embedder(frozen, "cpu")(sentences[:8]), Runtime(bag).encode(sentences[:8]), atol=1e-6)


def test_dropout_makes_views(table, sentences):
    torch.manual_seed(0)
    embedder = Embedder(open_encoder(str(table), "words", None), "cpu", dropout=True, rate=0.1)
    one, other = (embedder(sentences[:8]) for _ in range(2))
    assert np.abs(one - other).max() > 0.01
    cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    assert cosine.min() > 0.8
