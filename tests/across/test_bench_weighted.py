"""Benchmarks of a model whose mean weighs its tokens: everybody weighs them, and who does not is found out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import make_model

from fastflow import Runtime
from fastflow.bench.measure.compare import Candidate, least_cosine
from fastflow.bench.measure.row import Results
from fastflow.bench.measure.timing import Effort, cpu_watch
from fastflow.bench.peers import encoder as peers_encoder
from fastflow.bench.peers import gpu as peers_gpu
from fastflow.bench.peers.encoder import PEERS, open_peers
from fastflow.bench.peers.gpu import Gpu
from fastflow.bench.peers.pooled import Pooled, reference
from fastflow.bench.peers.pytorch import settings
from fastflow.bench.suites import encoder, end_to_end, startup, texts
from fastflow.bench.suites.workbench import Workbench
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.tokens import Tokenizer

ONCE = Effort(budget_s=0, min_runs=1, max_runs=1, sample_s=0, pause_s=0)


@pytest.fixture(scope="module", params=["first-last", "last"])
def subject(request, tmp_path_factory, bert, sentences):
    """A weighted model, raw, that pools the first layer and the last, or the last alone."""
    folder = tmp_path_factory.mktemp("weighted")
    made = make_model(folder / "m", bert, sentences, "none", pooling=request.param, weighted=True)
    return Workbench(folder, str(made)).named()


@pytest.fixture
def ragged(subject):
    """ids and mask (3, 17) of texts of 17, 9 and 1 tokens."""
    ids = np.random.default_rng(0).integers(5, len(subject.weights), (3, 17))
    mask = (np.arange(17) < np.array([[17], [9], [1]])).astype(np.int64)
    return ids * mask, mask


@pytest.fixture(autouse=True)
def as_in_a_run():
    """One thread and no gradients."""
    with settings(1):
        yield


def plain(subject):
    """A candidate that forgets the weights."""
    run = reference(subject, subject.layers)
    return Candidate("plain", "float32", "torch", lambda ids, mask: lambda: run(ids, mask))


def test_the_reference_weighs_as_the_model_does(subject, sentences):
    assert np.array_equal(subject.weights, load_model(subject.model).pooling.weights)
    assert len({subject, subject}) == 1
    tokenize = Tokenizer(subject.encoder, subject.max_length)
    found = texts.padded(reference(subject), tokenize)(sentences[:40])
    want = Runtime(subject.model, backend="reference").pool(sentences[:40])
    assert least_cosine("fastflow", "float32", found, want) >= 1 - 1e-6
    assert np.abs(found - want).max() <= 1e-5


def test_named_layers_are_averaged_plainly(subject, sentences, bert):
    """As Sentence Transformers does with the plain encoder directory."""
    tokenize = Tokenizer(subject.encoder, subject.max_length)
    found = texts.padded(reference(subject, (subject.depth,)), tokenize)(sentences[:40])
    assert np.abs(found - Runtime(bert, backend="reference").pool(sentences[:40])).max() <= 1e-5
    assert Pooled(subject, torch.float32, layers=(subject.depth,)).token_weights is None


def test_peers_agree_and_who_forgets_the_weights_is_refused(subject):
    skipped: list = []
    wanted = [("torch-eager", dtype) for dtype in PEERS["torch-eager"][1]]
    engines = [*open_peers(subject, wanted, 1, skipped), plain(subject)]
    ids = np.random.default_rng(1).integers(5, len(subject.weights), (2, 9))
    how = {"limits": lambda *_: (1.0, 1.0), "skipped": skipped, "effort": ONCE}
    rows = encoder.measure_shape(subject, engines, ids, reference(subject), 1, **how)
    assert [(row.name, row.dtype) for row in rows] == wanted
    assert [entry["name"] for entry in skipped] == ["plain float32"]
    assert "plain float32 differs from PyTorch in float32: cosine 0.99" in skipped[0]["reason"]


def test_the_gpus_peers_weigh_too(subject, monkeypatch):
    monkeypatch.setattr(peers_gpu, "LOWER", ("bfloat16",))
    gpu, skipped = Gpu("cpu", cpu_watch, 32, lambda function, x: lambda: function(x)), []
    ids = np.random.default_rng(2).integers(5, len(subject.weights), (2, 9))
    exact = reference(subject)(ids, np.ones_like(ids))
    for engine in peers_gpu.open_peers(subject, ["torch-eager", "torch-graph"], gpu, True, skipped):
        z = engine.prepare(ids, np.ones_like(ids))()
        assert least_cosine(engine.name, engine.dtype, z, exact) <= 1 + 1e-6
        assert engine.dtype not in ("float32", "tf32") or np.abs(z - exact).max() <= 1e-5
    assert skipped == []


def test_texts_end_to_end(subject, sentences, monkeypatch):
    runtime = Runtime(subject.model, backend="reference")
    ours = texts.of_texts("fastflow", "float32", "reference", runtime.encode, runtime.pool)
    liar = plain(subject)
    monkeypatch.setattr(end_to_end, "_ours", lambda *_: [ours])
    monkeypatch.setattr(end_to_end, "open_peers", lambda *args: [*open_peers(*args), liar])
    results = Results()
    end_to_end.run_subject(subject, sentences[:20], "texts", ["torch-eager"], 1, lambda message: None, results)
    rows = {(row["name"], row["dtype"]): row["max_abs_err"] for row in results.rows}
    assert set(rows) == {("fastflow", "float32"), ("torch-eager", "float32"), ("torch-eager", "bfloat16")}
    assert max(off for (_, dtype), off in rows.items() if dtype == "float32") <= 1e-5
    assert [entry["name"] for entry in results.skipped] == ["plain float32"]


@pytest.mark.parametrize("family", ["onnxruntime", "openvino", "ctranslate2"])
def test_installed_peers_weigh_too(subject, ragged, family):
    for module in (*PEERS[family][0], *peers_encoder.MODULES.get((family, "int8"), ())):
        pytest.importorskip(module, reason="this peer is not installed", exc_type=ImportError)
    skipped: list = []
    engines = list(open_peers(subject, [(family, dtype) for dtype in PEERS[family][1]], 1, skipped))
    reasons = [entry["reason"] for entry in skipped if "bfloat16" not in entry["name"]]
    assert len(reasons) == (2 if family == "ctranslate2" and len(subject.layers) > 1 else 0)
    assert all("it gives the last layer only" in reason for reason in reasons)
    exact, forgetful = reference(subject)(*ragged), plain(subject).prepare(*ragged)()
    for engine in engines:
        z = engine.prepare(*ragged)()
        assert least_cosine(engine.name, engine.dtype, z, exact) <= 1 + 1e-6
        assert np.linalg.norm(z - exact) < 0.7 * np.linalg.norm(z - forgetful)


def test_onnxruntimes_process_starts_with_the_weights(subject):
    for module in PEERS["onnxruntime"][0]:
        pytest.importorskip(module, reason="this peer is not installed", exc_type=ImportError)
    import onnx

    from fastflow.bench.peers.onnx import TABLE, quantised

    table = [tensor for tensor in onnx.load(str(quantised(subject))).graph.initializer if tensor.name == TABLE]
    assert np.array_equal(onnx.numpy_helper.to_array(table[0])[:, 0], subject.weights)
    tokenize, skipped = Tokenizer(subject.encoder, subject.max_length), []
    exact, forgetful = (texts.padded(reference(subject, k), tokenize)([startup.TEXT]) for k in (None, subject.layers))
    jobs = startup.jobs_of(subject, ["onnxruntime"], 1, skipped)
    for dtype in ("float32", "int8"):
        startup.start("onnxruntime", dtype, jobs["onnxruntime", dtype], exact)
    with pytest.raises(FastflowError, match="onnxruntime float32 differs from PyTorch"):
        startup.start("onnxruntime", "float32", jobs["onnxruntime", "float32"], forgetful)
    assert skipped == []
