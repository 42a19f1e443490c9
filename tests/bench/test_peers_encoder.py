"""The other engines of an encoder: which are chosen, which are missing, and that they agree with PyTorch."""

import json
import logging
import sys

import numpy as np
import pytest
import torch

from fastflow import Runtime
from fastflow.bench.measure.compare import least_cosine
from fastflow.bench.measure.timing import Effort, cpu_watch
from fastflow.bench.peers import encoder as peers_encoder
from fastflow.bench.peers import gpu as peers_gpu
from fastflow.bench.peers import pooled as peers_pooled
from fastflow.bench.peers import text_engines
from fastflow.bench.peers.encoder import CLASHES, PEERS, chosen, left_out, missing, open_peers, together
from fastflow.bench.peers.gpu import Gpu
from fastflow.bench.peers.pooled import Pooled, reference
from fastflow.bench.peers.pytorch import compiling, settings
from fastflow.bench.peers.text_engines import open_texts, plain_layers
from fastflow.bench.suites import encoder, startup, texts
from fastflow.bench.suites.texts import Check, tokenizer_of
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model

from support.benches import ENGINES, absent, check_agreement, needs, plain, subject_of
from support.builders import make_model
from support.places import ROOT, USERS
from support.sentence_dirs import NORMALIZE, PROMPTED, dense, make_directory, pooling

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")
pytestmark = pytest.mark.usefixtures("as_in_a_run")
ONCE = Effort(budget_s=0, min_runs=1, max_runs=1, sample_s=0, pause_s=0)
OF_TEXTS = ("sentence-transformers", "sentence-transformers-onnx", "sentence-transformers-openvino", "fastembed")


def refuse(*args):
    raise ValueError("not this model\nand more")


def test_who_is_missing_or_fails_is_named(tmp_path, bert, monkeypatch):
    subject, skipped = subject_of(tmp_path, bert), []
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: None if name == "fastembed" else object())
    monkeypatch.setattr(peers_encoder, "torch_eager", refuse)
    monkeypatch.setattr(text_engines, "sentence_transformers", refuse)
    assert list(open_peers(subject, [("torch-eager", "float32")], 1, skipped)) == []
    of_texts = [("sentence-transformers", "bfloat16"), ("fastembed", "int8")]
    assert list(open_texts(subject, of_texts, 1, skipped)) == []
    cannot = "it cannot be opened: ValueError: not this model"
    assert skipped[0] == left_out(subject, "torch-eager", "float32", cannot)
    assert [(entry["name"], entry["reason"]) for entry in skipped[1:]] == [
        ("sentence-transformers bfloat16", cannot),
        ("fastembed int8", absent("fastembed")),
    ]


def test_unknown_peers_and_missing_modules(monkeypatch):
    with pytest.raises(UsageError, match=r"unknown peer 'keras'.*openvino"):
        chosen(["keras"])
    assert chosen(None) == list(PEERS)
    assert chosen(["openvino", "torch-eager"]) == ["torch-eager", "openvino"]
    assert missing("torch-eager", "float32") is None
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: None if name == "nncf" else object())
    assert missing("openvino", "float32") is None
    assert missing("openvino", "int8") == absent("nncf")


def test_a_backend_that_wants_older_libraries_is_sent_to_an_environment_of_its_own(monkeypatch):
    lacking = {"optimum", "optimum.intel"}

    def find(name):
        if name == "optimum.intel" and "optimum" in lacking:
            raise ModuleNotFoundError(name)  # as Python does for a module of a package that is not there
        return None if name in lacking else object()

    monkeypatch.setattr(peers_encoder, "find_spec", find)
    want = "needs optimum.intel, which is not installed: run pip install 'sentence-transformers[openvino]' in an env"
    for there in ("optimum", "optimum.intel"):
        assert want in str(missing("sentence-transformers-openvino", "float32"))
        lacking.remove(there)
    assert missing("sentence-transformers-openvino", "float32") is None


@pytest.mark.parametrize("other", CLASHES)
def test_zentorch_shares_no_process_with_engines_that_it_breaks(tmp_path, bert, monkeypatch, other):
    subject, skipped = subject_of(tmp_path, bert), []
    wanted = [("zentorch", "float32"), ("torch-eager", "float32"), (other, "int8")]
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: None)
    assert together(subject, wanted, skipped) == wanted  # neither is installed
    assert chosen(["zentorch", other]) == ["zentorch", other]
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: object())
    assert together(subject, wanted[:2], skipped) == wanted[:2]
    assert skipped == []
    assert together(subject, wanted, skipped) == wanted[1:]
    assert [entry["name"] for entry in skipped] == ["zentorch float32"]
    assert f"in one process with zentorch {CLASHES[other]}; measure zentorch in a run of its" in skipped[0]["reason"]
    assert chosen(None) == list(PEERS)
    with pytest.raises(UsageError, match=rf"^--against zentorch,{other}: in one process with zentorch {other} "):
        chosen(["zentorch", other])
    for first, second in ((wanted[0], wanted[2]), (wanted[2], wanted[0])):
        monkeypatch.setitem(sys.modules, first[0], object())
        assert list(open_peers(subject, [second], 1, skipped)) == []
        assert f"this process has loaded {first[0]}; give {second[0]} a run of its own" in skipped[-1]["reason"]
        monkeypatch.delitem(sys.modules, first[0])


def test_the_two_that_abort_together_are_opened_one_without_the_other(bert, tmp_path, run_python):
    """In a process of its own: if both are installed, and the rule fails, the interpreter ends with 134."""
    needs(*PEERS["zentorch"][0], *PEERS["xllamacpp"][0], load=False)
    code = """
from pathlib import Path
import sys
from fastflow.bench.peers.encoder import open_peers
from fastflow.bench.suites.workbench import Workbench
skipped = []
wanted = [("zentorch", "float32"), ("xllamacpp", "float32")]
print([c.name for c in open_peers(Workbench(Path(sys.argv[1]), sys.argv[2]).named(), wanted, 1, skipped)])
print([entry["name"] for entry in skipped])
"""
    done = run_python(code, tmp_path, bert)
    assert (done.returncode, done.stdout) == (0, "['xllamacpp']\n['zentorch float32']\n"), done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("family", [*ENGINES, "xllamacpp"])
def test_installed_peers_agree_with_pytorch(family):
    needs(*PEERS[family][0], *peers_encoder.MODULES.get((family, "int8"), ()))
    check_agreement(family)


def test_zentorch_agrees_with_pytorch_in_a_process_of_its_own(run_python):
    """This process may have loaded the engines that clash with it."""
    needs("zentorch", load=False)
    code = """
from support.benches import check_agreement
from fastflow.bench.peers.pytorch import settings
with settings(1):
    check_agreement("zentorch")
"""
    done = run_python(code, env=USERS | {"PYTHONPATH": str(ROOT / "tests")})
    assert done.returncode == 0, done.stderr[-2000:]


def test_who_forgets_the_weights_is_refused(weighted_subject):
    skipped: list = []
    wanted = [("torch-eager", dtype) for dtype in PEERS["torch-eager"][1]]
    engines = [*open_peers(weighted_subject, wanted, 1, skipped), plain(weighted_subject)]
    ids = np.random.default_rng(1).integers(5, len(weighted_subject.weights), (2, 9))
    how = {"limits": lambda *_: (1.0, 1.0), "skipped": skipped, "effort": ONCE}
    rows = encoder.measure_shape(weighted_subject, engines, ids, reference(weighted_subject), 1, **how)
    assert [(row.name, row.dtype) for row in rows] == wanted
    assert [entry["name"] for entry in skipped] == ["plain float32"]
    assert "plain float32 differs from PyTorch in float32: cosine 0.9" in skipped[0]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ENGINES)
def test_installed_peers_weigh_too(weighted_subject, ragged, family):
    needs(*PEERS[family][0], *peers_encoder.MODULES.get((family, "int8"), ()))
    skipped: list = []
    engines = list(open_peers(weighted_subject, [(family, dtype) for dtype in PEERS[family][1]], 1, skipped))
    reasons = [entry["reason"] for entry in skipped if "bfloat16" not in entry["name"]]
    assert len(reasons) == (2 if family == "ctranslate2" and len(weighted_subject.layers) > 1 else 0)
    assert all("it gives the last layer only" in reason for reason in reasons)
    exact, forgetful = reference(weighted_subject)(*ragged), plain(weighted_subject).prepare(*ragged)()
    for engine in engines:
        z = engine.prepare(*ragged)()
        assert least_cosine(engine.name, engine.dtype, z, exact) <= 1 + 1e-6
        assert np.linalg.norm(z - exact) < 0.7 * np.linalg.norm(z - forgetful)


@pytest.mark.slow
def test_the_gpus_peers_weigh_too(weighted_subject, monkeypatch):
    monkeypatch.setattr(peers_gpu, "LOWER", ("bfloat16",))
    gpu, skipped = Gpu("cpu", cpu_watch, side=32, capture=lambda function, x: lambda: function(x)), []
    ids = np.random.default_rng(2).integers(5, len(weighted_subject.weights), (2, 9))
    exact = reference(weighted_subject)(ids, np.ones_like(ids))
    for engine in peers_gpu.open_peers(weighted_subject, ["torch-eager", "torch-graph"], gpu, True, skipped):
        z = engine.prepare(ids, np.ones_like(ids))()
        assert least_cosine(engine.name, engine.dtype, z, exact) <= 1 + 1e-6
        assert engine.dtype not in ("float32", "tf32") or np.abs(z - exact).max() <= 1e-5
    assert skipped == []


@pytest.mark.slow
def test_onnxruntimes_process_starts_with_the_weights(weighted_subject):
    needs(*PEERS["onnxruntime"][0])
    import onnx

    from fastflow.bench.peers.onnx import TABLE, quantised

    (table,) = (one for one in onnx.load(str(quantised(weighted_subject))).graph.initializer if one.name == TABLE)
    assert np.array_equal(onnx.numpy_helper.to_array(table)[:, 0], weighted_subject.weights)
    skipped: list = []
    exact, forgetful = (pooled(weighted_subject, [startup.TEXT], k) for k in (None, weighted_subject.layers))
    jobs = startup.jobs_of(weighted_subject, ["onnxruntime"], 1, skipped)
    for dtype in ("float32", "int8"):
        startup.start("onnxruntime", dtype, jobs["onnxruntime", dtype], exact)
    with pytest.raises(FastflowError, match="onnxruntime float32 differs from PyTorch"):
        startup.start("onnxruntime", "float32", jobs["onnxruntime", "float32"], forgetful)
    assert skipped == []


def pooled(subject, sentences, layers=None):
    """The vectors of the reference that all peers are compared with."""
    return texts.padded(reference(subject, layers), tokenizer_of(subject))(sentences)


def test_the_reference_weighs_as_the_model_does_and_named_layers_plainly(weighted_subject, sentences, bert):
    """Plainly as Sentence Transformers does with the plain encoder directory."""
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


def test_a_saved_directory_is_its_own_reference(tmp_path, bert, sentences, monkeypatch):
    needs("sentence_transformers")
    made = make_directory(tmp_path / "st", bert, [pooling("cls", "mean"), dense(8), NORMALIZE], **PROMPTED)
    found = pooled(subject_of(tmp_path, made), sentences[:9])
    assert found.shape == (9, 8)
    assert np.abs(found - Runtime(made, backend="reference").encode(sentences[:9])).max() <= 1e-5


def test_a_saved_directory_needs_the_library_that_saved_it(tmp_path, bert, monkeypatch):
    made = make_directory(tmp_path / "st", bert, [pooling("mean")])
    monkeypatch.setattr(peers_pooled, "find_spec", lambda name: None)
    with pytest.raises(FastflowError, match=r"the bench of .*st, .* needs sentence_transformers, which is not inst"):
        reference(subject_of(tmp_path, made))


@pytest.mark.slow
@pytest.mark.parametrize("family", OF_TEXTS)
def test_installed_engines_of_texts_agree_with_pytorch(tmp_path, bert, sentences, family):
    if reason := missing(family, "float32") or missing("sentence-transformers", "float32"):
        pytest.skip(reason)
    modules = [pooling("cls", "mean"), dense(8), NORMALIZE]
    saved = make_directory(tmp_path / "st", bert, modules, length=9, **PROMPTED)
    for model in (bert, saved):
        subject, skipped = subject_of(tmp_path, model), []
        check = Check(subject, sentences[:20], tokenizer_of(subject))
        wanted = [(family, dtype) for dtype in PEERS[family][1]]
        found = {one.dtype: check(one) for one in open_texts(subject, wanted, 1, skipped)}
        assert skipped == []
        assert set(found) == set(PEERS[family][1])
        assert found["float32"].max_abs_err <= 1e-4


def test_a_plain_folder_is_averaged_over_its_last_layer_and_a_saved_one_by_its_own_modules(tmp_path, bert):
    saved = make_directory(tmp_path / "st", bert, [pooling("cls")])
    assert [plain_layers(subject_of(tmp_path, model)) for model in (bert, saved)] == [(3,), None]


def test_fastembed_reads_the_length_limit_from_its_folder(tmp_path, bert):
    saved = make_directory(tmp_path / "st", bert, [pooling("cls")], length=9)
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(b"graph")
    folder = text_engines._fastembed_folder(subject_of(tmp_path, saved), graph)
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
