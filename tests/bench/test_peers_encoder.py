"""The other engines of an encoder: which are chosen, which are missing, and that they agree with PyTorch."""

import json
import logging

import numpy as np
import pytest
import torch

from fastflow import Runtime
from fastflow.bench.measure.compare import check_cosine
from fastflow.bench.measure.row import Results
from fastflow.bench.peers import encoder as peers_encoder
from fastflow.bench.peers import engines as peers_engines
from fastflow.bench.peers import gpu as peers_gpu
from fastflow.bench.peers.encoder import PEERS, Pooled, choose, missing, open_peers, open_reference, plain_layers
from fastflow.bench.peers.gpu import Gpu, compiling, settings
from fastflow.bench.suites import cold_start, texts
from fastflow.bench.suites.texts import PooledCheck, make_tokenizer
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model

from support.benches import ENGINES, absent, needs, plain, subject_of
from support.builders import make_model
from support.sentence_dirs import NORMALIZE, PROMPTED, dense, make_directory, pooling

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")
pytestmark = pytest.mark.usefixtures("as_in_a_run")


def refuse(*args):
    raise ValueError("not this model\nand more")


def test_who_is_missing_or_fails_is_named(tmp_path, bert, monkeypatch):
    subject, results = subject_of(tmp_path, bert), Results()
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: None if name == "fastembed" else object())
    monkeypatch.setattr(peers_encoder, "open_torch_eager", refuse)
    monkeypatch.setattr(peers_engines, "open_sentence_transformers", refuse)
    wanted = [("torch-eager", "float32"), ("sentence-transformers", "bfloat16"), ("fastembed", "int8")]
    assert list(open_peers(subject, wanted, 1, results)) == []
    reasons = [*["it cannot be opened: ValueError: not this model"] * 2, absent("fastembed")]
    names = ["torch-eager float32", "sentence-transformers bfloat16", "fastembed int8"]
    rows = zip(names, reasons, strict=True)
    assert results.skipped == [{"subject": subject.label, "name": name, "reason": reason} for name, reason in rows]


def test_unknown_peers_and_missing_modules(monkeypatch):
    with pytest.raises(UsageError, match=r"unknown peer 'keras'.*openvino"):
        choose(["keras"])
    assert choose(None) == list(PEERS)
    assert choose(["openvino", "torch-eager"]) == ["torch-eager", "openvino"]
    assert missing("torch-eager", "float32") is None
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: None if name == "nncf" else object())
    assert missing("openvino", "float32") is None
    assert missing("openvino", "int8") == absent("nncf")


@pytest.mark.slow
@pytest.mark.parametrize("family", ENGINES)
def test_installed_peers_weigh_too(weighted_subject, ragged, family):
    needs(*PEERS[family].modules, *peers_encoder.MODULES.get((family, "int8"), ()))
    results = Results()
    engines = list(open_peers(weighted_subject, [(family, dtype) for dtype in PEERS[family].dtypes], 1, results))
    assert [entry for entry in results.skipped if "bfloat16" not in entry["name"]] == []
    exact, forgetful = open_reference(weighted_subject)(*ragged), plain(weighted_subject).prepare(*ragged)()
    for engine in engines:
        z = engine.prepare(*ragged)()
        assert check_cosine(engine.name, engine.dtype, z, exact) <= 1 + 1e-6
        assert np.linalg.norm(z - exact) < 0.7 * np.linalg.norm(z - forgetful)


@pytest.mark.slow
def test_the_gpus_peers_weigh_too(weighted_subject, monkeypatch):
    monkeypatch.setattr(peers_gpu, "LOWER", ("bfloat16",))
    gpu, results = Gpu("cpu", capture=lambda function, x: lambda: function(x)), Results()
    ids = np.random.default_rng(2).integers(5, len(weighted_subject.weights), (2, 9))
    exact = open_reference(weighted_subject)(ids, np.ones_like(ids))
    for engine in peers_gpu.open_peers(weighted_subject, ["torch-eager", "torch-graph"], gpu, True, results):
        z = engine.prepare(ids, np.ones_like(ids))()
        assert check_cosine(engine.name, engine.dtype, z, exact) <= 1 + 1e-6
        assert engine.dtype not in ("float32", "tf32") or np.abs(z - exact).max() <= 1e-5
    assert results.skipped == []


@pytest.mark.slow
def test_onnxruntimes_process_starts_with_the_weights(weighted_subject):
    needs(*PEERS["onnxruntime"].modules)
    import onnx

    from fastflow.bench.peers.engines import TABLE, quantise

    (table,) = (one for one in onnx.load(str(quantise(weighted_subject))).graph.initializer if one.name == TABLE)
    assert np.array_equal(onnx.numpy_helper.to_array(table)[:, 0], weighted_subject.weights)
    results = Results()
    forgetful = pooled(weighted_subject, [cold_start.TEXT], weighted_subject.layers)
    jobs = [*cold_start.list_jobs(weighted_subject, ["onnxruntime"], 1, results)][-2:]
    for job in jobs:
        cold_start.start_once(job)
    with pytest.raises(FastflowError, match="onnxruntime float32 differs from PyTorch"):
        cold_start.start_once(jobs[0]._replace(exact=forgetful))
    assert results.skipped == []


def pooled(subject, sentences, layers=None):
    return texts.embed_padded(open_reference(subject, layers), make_tokenizer(subject))(sentences)


def test_the_reference_weighs_as_the_model_does_and_named_layers_plainly(weighted_subject, sentences, bert):
    assert np.array_equal(weighted_subject.weights, load_model(weighted_subject.model).pooling.weights)
    assert len({weighted_subject, weighted_subject}) == 1
    last = (weighted_subject.depth,)
    for model, layers in ((weighted_subject.model, None), (bert, last)):
        want = Runtime(model, backend="reference").pool(sentences[:40])
        assert np.abs(pooled(weighted_subject, sentences[:40], layers) - want).max() <= 1e-5
    assert Pooled(weighted_subject, torch.float32, layers=last).token_weights is None


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cls", "pooler", "words", "words-first-last", "mean-of-layers:3*words,1,3"])
def test_the_reference_pools_as_the_model_does(tmp_path, bert, sentences, mode):
    made = make_model(tmp_path / "m", bert, sentences[:64], "none", pooling=mode, weighted="words" in mode)
    subject = subject_of(tmp_path, made)
    for model, layers in ((made, None), (bert, (3,))):
        want = Runtime(model, backend="reference").pool(sentences[:9])
        with torch.inference_mode(False):
            assert np.abs(pooled(subject, sentences[:9], layers) - want).max() <= 1e-5


def test_a_saved_directory_needs_the_library_that_saved_it(tmp_path, bert, monkeypatch):
    made = make_directory(tmp_path / "st", bert, [pooling("mean")])
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: None)
    with pytest.raises(FastflowError, match=r"the bench of .*st, .* needs sentence_transformers, which is not inst"):
        open_reference(subject_of(tmp_path, made))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sentence-transformers", "fastembed"])
def test_installed_engines_of_texts_agree_with_pytorch(tmp_path, bert, sentences, family):
    if reason := missing(family, "float32") or missing("sentence-transformers", "float32"):
        pytest.skip(reason)
    modules = [pooling("cls", "mean"), dense(8), NORMALIZE]
    saved = make_directory(tmp_path / "st", bert, modules, length=9, **PROMPTED)
    for model in (bert, saved):
        subject, results = subject_of(tmp_path, model), Results()
        check = PooledCheck(subject, sentences[:20], make_tokenizer(subject))
        wanted = [(family, dtype) for dtype in PEERS[family].dtypes]
        found = {one.dtype: check(one) for one in open_peers(subject, wanted, 1, results)}
        assert results.skipped == []
        assert set(found) == set(PEERS[family].dtypes)
        assert found["float32"].max_abs_err <= 1e-4


def test_a_plain_folder_is_averaged_over_its_last_layer_and_a_saved_one_by_its_own_modules(tmp_path, bert):
    saved = make_directory(tmp_path / "st", bert, [pooling("cls")])
    assert [plain_layers(subject_of(tmp_path, model)) for model in (bert, saved)] == [(3,), None]


def test_fastembed_reads_the_length_limit_from_its_folder(tmp_path, bert):
    saved = make_directory(tmp_path / "st", bert, [pooling("cls")], length=9)
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(b"graph")
    folder = peers_engines.make_fastembed_folder(subject_of(tmp_path, saved), graph)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert (settings["model_max_length"], settings["max_length"]) == (9, 9)
    assert {path.name for path in folder.iterdir()} >= {"model.onnx", "tokenizer.json", "special_tokens_map.json"}


def of_pytorch():
    products = (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    return (torch.get_num_threads(), *products, torch.is_inference_mode_enabled())


def of_its_compiler():
    return logging.getLogger("torch._dynamo").level, torch._dynamo.config.recompile_limit


@pytest.mark.parametrize(
    ("manager", "state", "inside"),
    [(lambda: settings(3), of_pytorch, (3, False, False, True)), (compiling, of_its_compiler, (logging.ERROR, 64))],
)
def test_settings_of_a_run_end_with_it_and_with_an_error(monkeypatch, manager, state, inside):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = state()
    with manager():
        assert state() == inside
    assert state() == before
    with pytest.raises(ZeroDivisionError), manager():
        raise ZeroDivisionError
    assert state() == before
