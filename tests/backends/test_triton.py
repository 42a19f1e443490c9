"""The triton backend's own part on a CPU: its paths, the modules it runs, and the vectors."""

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

import fastflow
from fastflow import Runtime
from fastflow.backends import choose as encoder
from fastflow.backends.gpu.graphs import Device
from fastflow.backends.torch import TorchBackend
from fastflow.errors import FastflowError, UnsupportedArchitecture, UsageError
from fastflow.files import Run, embed
from fastflow.model.encoder import CPU_ONLY
from fastflow.model.tokenizer import Tokenizer
from fastflow.transforms.vectors import compute_paired_cosine

from support.builders import FAMILIES, VOCABULARY, make_model, make_sentences
from support.gpu_standin import assert_same, captures, on_standin, unit
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling
from support.tolerances import COSINE, EMBEDDING
from support.triton_processes import NEEDS

pytestmark = NEEDS
BUCKETS = 1e-3  # relative, the same text in batches of different size


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in CPU_ONLY])
def test_every_family_equals_the_reference(standin, encoders, family, sentences):
    for texts in (sentences[:50], ["a dog <pad> sings"]):
        assert_same(on_standin(encoders(family)).encode(texts), Runtime(encoders(family)).encode(texts))


@pytest.mark.parametrize("family", CPU_ONLY)
def test_an_architecture_for_the_cpu_is_refused_and_auto_goes_on_without(standin, encoders, family, monkeypatch):
    class Here(TorchBackend):
        def __init__(self, model, dtype, device, threads):
            assert device == "cuda"
            super().__init__(model, dtype, "cpu", threads)

    with pytest.raises(UnsupportedArchitecture, match=f"'{family}' is not supported by the triton backend"):
        on_standin(encoders(family))
    monkeypatch.setattr(encoder, "_sees_gpu", lambda: True)
    monkeypatch.setattr("fastflow.backends.torch.TorchBackend", Here)
    for device, chosen in (("auto", "cpu"), ("cuda", "torch")):
        runtime = Runtime(encoders(family), device=device)
        assert runtime.backend == chosen
        assert any(note.startswith("stepped down from the triton backend: ") for note in runtime.info()["notes"])


POOLINGS = ["cls", "pooler", "first-last", "first-last-avg", "mean-of-layers:2", "avg-last-3", "words"]
WEIGHTED = [
    ("bert", "words"), ("bert", "words-first-last"), ("roberta", "words-first-last"),
    ("electra", "mean-of-layers:3*words,1,3"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "pooling", "method"),
    [pytest.param("bert", how, "standardize", marks=pytest.mark.slow) for how in POOLINGS]
    + [(family, how, None) for family, how in WEIGHTED],
)
def test_every_pooling_equals_the_reference(standin, encoders, sentences, tmp_path, family, pooling, method):
    options = {"pooling": pooling, "weighted": method is None}
    model = make_model(tmp_path, encoders(family), sentences[:64], method or "none", **options)
    ours, exact = on_standin(model), Runtime(model, backend="reference")
    for texts in (sentences[:3], sentences[:70]):
        assert_same(ours.encode(texts), exact.encode(texts))
        assert_same(ours.pool(texts), exact.pool(texts))


@pytest.mark.parametrize(("count", "made"), [(1, 2), (3, 2), (70, 0)])  # of these, three leave a bucket's text free
def test_tokens_count_by_the_weights_of_their_ids(standin, model, weighted_model, sentences, count, made):
    plain = Runtime(model, backend="reference")
    ours, exact = on_standin(weighted_model), Runtime(weighted_model, backend="reference")
    for words in (6, 2):  # what the longer texts left in a graph's buffers means nothing
        texts = [" ".join(text.split()[:words]) for text in sentences[:count]]
        assert np.abs(unit(exact.pool(texts)) - unit(plain.pool(texts))).max() > 0.01
        assert_same(ours.encode(texts), exact.encode(texts))
        assert_same(ours.pool(texts), exact.pool(texts))
    assert captures(standin) == made


@pytest.mark.parametrize("count", [1, 3, 70])
def test_lengths_and_cuts(standin, model, sentences, count):
    ours, exact, texts = on_standin(model), Runtime(model, backend="reference"), sentences[:count]
    one, other = {"normalize_embeddings": True}, {"truncate_dim": 5}
    for options in (one, other, one | other):
        found, wanted = ours.encode(texts, **options), exact.encode(texts, **options)
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 2 * EMBEDDING * np.abs(wanted).max()
    pooled = exact.pool(texts)
    assert_same(ours.transform(pooled), exact.transform(pooled))
    assert ours.encode([]).shape == (0, 32)


def test_the_same_text_in_batches_of_every_size(standin, model, sentences):
    runtime, text = on_standin(model), "the old bird sings near the quiet river"
    alone = runtime.encode(text)
    for company in (sentences[:1], sentences[:7], sentences[:31], sentences[:100]):
        together = runtime.encode([*company, text])[-1]
        assert np.linalg.norm(together - alone) <= BUCKETS * np.linalg.norm(alone)
    long = " ".join(["house"] * 60)
    assert np.linalg.norm(runtime.encode([text, long])[0] - alone) <= BUCKETS * np.linalg.norm(alone)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precisions_are_near_float32(standin, dtype, sentences):
    """Rounded if the kernels round, on the model in the package and its real weights; alone and in company."""
    exact, near = Runtime(backend="reference").encode(sentences[:60]), on_standin(None, dtype)
    assert near.info()["dtype"] == dtype
    together = near.encode(sentences[:60])
    assert compute_paired_cosine(together, exact).min() >= COSINE["bfloat16"]
    assert not np.array_equal(together, exact)
    alone = np.stack([near.encode(text) for text in sentences[:10]])
    assert compute_paired_cosine(alone, exact[:10]).min() >= COSINE["bfloat16"]


def test_several_threads_get_their_own_vectors(standin, model, sentences):
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    parts = [sentences[i : i + (60 if i % 2 else 7)] for i in range(8)]  # some by a graph, some by the pipeline
    with ThreadPoolExecutor(8) as pool:
        for texts, found in zip(parts, pool.map(runtime.encode, parts), strict=True):
            assert_same(found, exact.encode(texts))


def heard_by(names, monkeypatch):
    """From now on ``names`` takes the name of every thread that tokenises."""
    real = Tokenizer.__call__

    def tokenize(self, texts):
        names.add(threading.current_thread().name.partition("_")[0])
        return real(self, texts)

    monkeypatch.setattr(Tokenizer, "__call__", tokenize)


@pytest.mark.slow
def test_long_streams_are_tokenised_ahead(standin, model, sentences, monkeypatch):
    monkeypatch.setattr("fastflow.options.WINDOW", 50)
    runtime, names = on_standin(model), set()
    want = Runtime(model, backend="reference").encode(sentences[:170])
    heard_by(names, monkeypatch)
    assert_same(runtime.encode(sentences[:170]), want)
    assert names == {"fastflow-prefetch"}
    assert [start for start, _ in runtime.stream(iter(sentences[:170]))] == [0, 50, 100, 150]
    with pytest.raises(FastflowError, match="text 60 is int"):
        runtime.encode([*sentences[:60], 3, *sentences[:60]])
    names.clear()
    runtime.encode(sentences[:50])
    assert names == {threading.current_thread().name}, "one window needs no thread"


def test_a_forked_process_is_told_so(standin, model, monkeypatch):
    runtime = on_standin(model)
    runtime.encode("a dog")
    monkeypatch.setattr("fastflow.backends.triton.os.getpid", lambda: -1)  # what a child would see
    lock = runtime.session.backend._lock
    holder = threading.Thread(target=lock.acquire)  # ends with the lock held, as another thread may at a fork
    holder.start()
    holder.join()
    for call in (lambda: runtime.encode("a dog"), lambda: runtime.transform(np.ones((1, 32)))):
        with pytest.raises(FastflowError, match="cannot be used in a forked process; make a new one in each process"):
            call()


def test_a_gpu_is_chosen_by_its_number(standin, model, sentences, monkeypatch):
    with Runtime(model, "cuda:1", backend="triton") as runtime:
        assert (runtime.device, runtime.session.backend.on) == ("cuda:1", "cuda:1")
        assert_same(runtime.encode(sentences[:3]), Runtime(model, backend="reference").encode(sentences[:3]))
    with pytest.raises(FastflowError, match="device 'cuda:2': PyTorch finds cuda:0 to cuda:1 here; take one of them"):
        Runtime(model, "cuda:2")
    seen = []
    for name in ("get_device_name", "current_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: seen.append(str(device)) or MagicMock())
    Device("cuda:1").stream()
    assert seen == ["cuda:1"] * 3


def test_auto_takes_the_gpu_where_there_is_one_and_else_says_why_not(standin, model, monkeypatch):
    monkeypatch.setattr(encoder, "GPU_FILES", ("/dev/null",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (Runtime(model).backend, Runtime(model, dtype="float16").backend) == ("triton", "triton")
    assert Runtime(model, device="cpu").backend == "cpu"
    assert Runtime(model, dtype="int8").backend == "cpu"
    assert "threads: a GPU has its own" in Runtime(model, threads=2).info()["notes"]
    with pytest.raises(UsageError, match="usable are float32, bfloat16, float16"):
        Runtime(model, dtype="int8", backend="triton")
    monkeypatch.setattr(encoder, "_has_cuda", lambda: False)
    stepped = Runtime(model)
    assert stepped.backend == "cpu"
    assert "stepped down from the triton backend: triton: PyTorch finds no CUDA device" in stepped.info()["notes"][-1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert Runtime(model).info()["notes"] == stepped.info()["notes"][:-1], "a GPU that is hidden is not looked for"


@pytest.mark.parametrize("dedupe", [False, True])
def test_a_file_is_read_and_tokenised_ahead(standin, model, sentences, tmp_path, monkeypatch, dedupe):
    monkeypatch.setattr(embed, "WINDOW", 16)
    source, threads = tmp_path / "in.txt", set()
    source.write_text("\n".join([*sentences[:70], *sentences[:9]]), encoding="utf-8")
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    heard_by(threads, monkeypatch)
    embed.embed_file(runtime, str(source), tmp_path / "out.npy", embed.EmbedConfig(dedupe=dedupe), Run(quiet=True))
    assert_same(np.load(tmp_path / "out.npy"), exact.encode([*sentences[:70], *sentences[:9]]))
    assert ("fastflow-prefetch" in threads) is not dedupe


TEXTS = make_sentences(70)
WEIGHTS = {"vocab": VOCABULARY, "weights": {"the": 0.25}, "other": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules",
    [
        [pooling("mean")],
        [pooling("cls"), NORMALIZE],
        [("WordWeights", WEIGHTS), pooling("mean"), dense(9, "GELU"), NORMALIZE],
        [pooling("mean"), dense(40, "Identity")],
        [("WeightedLayerPooling", {"weights": [1.0, 2.0]}), pooling("mean")],
    ],
)
def test_modules_it_runs(standin, tmp_path, bert, modules):
    path = make_directory(tmp_path / "m", bert, modules, prompts={"query": "the old "})
    ours, exact = on_standin(path), fastflow.Runtime(path, backend="reference")
    for texts in (TEXTS[:1], TEXTS[:3], TEXTS):
        assert_same(ours.encode(texts), exact.encode(texts))
        assert_same(ours.encode_query(texts), exact.encode_query(texts))
        assert_same(ours.pool(texts), exact.pool(texts))
    one = {"truncate_dim": 5, "normalize_embeddings": True}
    assert_same(ours.encode(TEXTS, **one), exact.encode(TEXTS, **one))


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([pooling("max")], "the triton backend does not pool by the maximum of layer 3; use cpu or torch"),
        ([pooling("mean", "cls")], r"does not pool by the \[CLS\] state and masked mean of layer 3"),
        ([pooling("mean", include_prompt=False)], "masked mean of layer 3 without the tokens of a prompt"),
        (
            [("WeightedLayerPooling", {"weights": [1.0, 3.0]}), pooling("cls")],
            r"state of layers 2 \(0.25\) and 3 \(0.75\)",
        ),
        ([("WordWeights", WEIGHTS | {"other": 0}), pooling("mean")], "layer 3 with token weights of 0"),
    ],
)
def test_poolings_it_refuses(standin, tmp_path, bert, modules, message):
    path = make_directory(tmp_path / "m", bert, modules)
    with pytest.raises(UsageError, match=message):
        on_standin(path)
