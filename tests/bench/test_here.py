"""``fastflow bench`` without a suite, and the static suite: everybody opens one directory; who is wrong is left out."""

from __future__ import annotations

import json
from time import process_time

import numpy as np
import onnx
import pytest

from fastflow.bench import cli
from fastflow.bench import here as module
from fastflow.bench.here import find_table
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers import encoder
from fastflow.bench.peers.engines import export_onnx
from fastflow.bench.suites import static
from fastflow.bench.suites.workbench import open_workbench
from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.processor import isa
from fastflow.model.static.write import write_static

from support.benches import ENCODER, ask
from support.builders import wordpiece
from support.commands import assert_one_sentence, run
from support.static_dirs import numbers, static_embedding_dir


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(module, "EFFORT", Effort(budget_s=0, min_runs=1, max_runs=1, sample_s=0, pause_s=0))
    monkeypatch.setattr(module, "MOST", 33)
    monkeypatch.setattr(module, "perf_counter", process_time)  # a busy machine takes no fewer texts


def test_rows_are_dtypes_and_peers_and_the_ratio_is_of_their_speeds(bert, monkeypatch):
    monkeypatch.setattr(module, "PEERS", ("sentence-transformers", "fastembed"))
    monkeypatch.setattr(encoder, "missing", lambda name, dtype: "absent" if name == "fastembed" else None)
    found = module.measure_here(str(bert), 1)
    named = {(row["name"], row["dtype"]): row for row in found["rows"]}
    assert {("fastflow", dtype) for dtype in ("float32", "bfloat16")} <= set(named)
    assert (found["threads"], found["texts"], found["model"]) == (1, 33, str(bert))
    base = named["sentence-transformers", "float32"]
    assert found["against"] == "sentence-transformers"
    for row in named.values():
        assert row["ratio"] == pytest.approx(row["texts_per_s"] / base["texts_per_s"])
    assert found["skipped"][-1] == "fastembed: not installed (pip install onnx fastembed)"
    shown = module.make_table(found).splitlines()
    assert shown[0] == f"model {bert}, 1 thread, kernels for {isa()}, 33 short sentences: texts a second"
    assert len(shown) == 3 + len(found["rows"]) + len(found["skipped"])
    assert found["processors_used_by_others"] >= 0
    assert shown[2 + len(found["rows"])].startswith("other processes used ")
    assert "*" not in "".join(shown)


FOUND = {"model": "m", "threads": 1, "texts": 33, "skipped": [], "processors_used_by_others": None,
         "processors_usable": 2, "instructions": "avx2", "table": False}  # fmt: skip


def test_a_busy_machine_and_few_texts_are_said_so():
    row = {"name": "fastflow", "dtype": "float32", "texts_per_s": 9.0, "ratio": 1.0}
    found = FOUND | {"work": "words", "layers": True, "against": "x", "rows": [row]}
    plain = module.make_table(found).splitlines()
    assert len(plain) == 2
    quiet = module.make_table(found | {"processors_used_by_others": 0.2}).splitlines()
    assert quiet == [*plain, "other processes used 0.20 of 2 processors meanwhile"]
    loud = module.make_table(found | {"processors_used_by_others": 0.21, "texts": 32}).splitlines()
    assert loud[2] == "the slowest takes 1 s or more for 32 texts: of so few, speeds are rough"
    advice = "too busy to compare engines, run this again on a quiet machine"
    assert loud[3] == f"other processes used 0.21 of 2 processors meanwhile: {advice}"


def test_a_model_without_layers_has_one_row_for_its_dtypes_are_one():
    for model in ("static", "untuned"):
        assert list(module.open_ours(model, 1)[0]) == [("fastflow", "float32")]


def test_where_no_layer_is_needed_the_peer_that_computes_all_is_marked():
    row = {"dtype": "float32", "texts_per_s": 9.0, "ratio": 9.0}
    found = FOUND | {"work": "words, calibration flow", "layers": False, "against": "other"}
    found["rows"] = [row | {"name": name} for name in ("fastflow", "sentence-transformers", "onnxruntime")]
    shown = module.make_table(found).splitlines()
    assert [line.endswith("*") for line in shown[1:4]] == [False, True, False]
    assert shown[4].startswith("* more work: this model needs no layer of its encoder")
    assert shown[5] == "fastflow computes words, calibration flow; onnxruntime the same without the calibration"
    found["rows"][1]["ratio"] = 0.0014
    assert "    9  0.0014 x other *" in module.make_table(found)
    assert "*" not in module.make_table(found | {"table": True}), "of a table it computes no more than the others"
    del found["rows"][1]
    assert "*" not in module.make_table(found)


@pytest.mark.slow
def test_a_table_is_compared_with_those_that_open_it(tmp_path):
    pytest.importorskip("model2vec")
    found = module.measure_here("static", 1)
    assert [row["name"] for row in found["rows"]] == ["fastflow", "model2vec"]
    assert found["against"] == "model2vec"
    shown = module.make_table(found).splitlines()
    assert shown[3].endswith("; model2vec the same")
    assert any(line.startswith("left out: tokenizers-numpy float32: ") for line in shown)
    static_embedding_dir(tmp_path)
    other = module.measure_here(str(tmp_path), 1)
    assert [row["name"] for row in other["rows"]] == ["fastflow"]
    assert other["skipped"] == ["the other engines: they are compared on directories of model2vec"]


def test_a_peer_of_a_table_with_other_vectors_is_left_out(monkeypatch):
    monkeypatch.setattr(static, "open_model2vec", lambda path: lambda texts: np.ones((len(texts), 256), np.float32))
    opened, left_out = static.open_engines(find_table("static"), 1, ["A man plays a guitar.", "Shares fell."])
    assert [each.name for each in opened] == []
    assert any(reason.startswith("model2vec: ") for reason in left_out)


@pytest.mark.slow
def test_the_peers_of_a_model_without_layers_compute_none():
    """ONNX Runtime's file holds no layer, so it is what the others are compared with."""
    found = module.measure_here("untuned", 1)
    assert found["layers"] is False
    assert found["against"] == next(row["name"] for row in found["rows"] if row["name"] in module.PEERS[1:])
    with open_workbench("untuned") as bench:
        kinds = {node.op_type for node in onnx.load(str(export_onnx(bench.pick_subject()))).graph.node}
    assert "Gather" in kinds
    assert not kinds & {"MatMul", "Gemm", "Softmax"}


def test_without_pytorch_fastflow_is_timed_alone(model, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    printed = json.loads(run("bench", "-m", model, "--threads", 1, "--json").stdout)
    assert {row["name"] for row in printed["rows"]} == {"fastflow"}
    assert printed["rows"][0]["ratio"] == 1.0
    assert printed["skipped"][-1].startswith("the other engines: they are made with PyTorch")


def test_what_it_does_not_take(vector_model):
    with pytest.raises(UsageError, match="calibrates vectors: time it with fastflow bench --suite flow"):
        module.measure_here(str(vector_model))
    for words in (["--quick"], ["--against", "fastembed"], ["--device", "cuda"]):
        assert_one_sentence(run("bench", *words), 2, "name a --suite for these options")
    assert_one_sentence(run("bench", "--suite", "flow", "--json"), 2, "a suite prints its table: give --json FILE")


@pytest.fixture
def table(tmp_path):
    tokenizer = wordpiece()
    path = tmp_path / "table"
    write_static(path, tokenizer, numbers((tokenizer.get_vocab_size(), 16)), normalize=True, max_length=None)
    return path


@pytest.fixture(autouse=True)
def few_texts(monkeypatch):
    """Texts of which the tokenizer knows every word, and one of which it does not."""
    texts = ["the dog sees the bird", "a cat runs", "two trees near the river", "☃"]
    monkeypatch.setattr(static, "real_texts", lambda most: (texts, "texts"))


@pytest.mark.slow
def test_a_run_has_bulk_single_texts_and_starts(table, tmp_path, capsys):
    file = tmp_path / "bench.json"
    cli.run(str(table), ["static"], ["tokenizers-numpy"], sizes=ENCODER, json_path=file, device="cpu", threads=1)
    report, shown = json.loads(file.read_text()), capsys.readouterr().out
    assert report["skipped"] == []
    kinds = [(row["name"], row["batch"], row["tokens"] is None) for row in report["rows"]]
    names = ("fastflow", "tokenizers-numpy")
    assert kinds == [(name, *kind) for kind in ((3, False), (1, False), (1, True)) for name in names]
    bulk, _, single, *_ = report["rows"]
    assert bulk["texts_per_s"] > 0
    assert bulk["max_abs_err"] < 1e-6
    assert single["p99_ms"] >= single["median_ms"]
    assert single["tokens"] == round(bulk["tokens"] / 3) == 5
    assert len(report["ratios"]) == 3
    assert "static, 3 texts of" in shown


def test_the_table_of_a_model_is_taken():
    with open_workbench("static") as bench:
        subject = static.make_subject(bench)
    assert subject.label == "the model given: a table of 30522 x 256"
    assert (subject.path.parent.name, subject.path.name) == ("static", "0_Transformer")


def test_a_peer_with_other_vectors_is_left_out(table, monkeypatch):
    monkeypatch.setattr(static, "open_numpy", lambda path: lambda texts: np.ones((len(texts), 16)))
    monkeypatch.setattr(static, "add_starts", lambda *given: None)
    with open_workbench(str(table)) as bench:
        results = static.run_static(ask(bench, ["tokenizers-numpy"], ENCODER))
    assert {row["name"] for row in results.rows} == {"fastflow"}
    assert "it is not timed" in results.skipped[0]["reason"]


def test_our_own_fault_ends_the_run(table, monkeypatch):
    encode = static.Runtime.encode
    wrong = {"cpu": -1, "reference": 1}
    monkeypatch.setattr(static.Runtime, "encode", lambda self, texts: wrong[self.backend] * encode(self, texts))
    with open_workbench(str(table)) as bench, pytest.raises(FastflowError):
        static.run_static(ask(bench, [], ENCODER))


@pytest.mark.parametrize(
    ("model", "against", "sentence"),
    [("bert", None, "no directory of model2vec"), (None, ["keras"], "unknown peer 'keras' for the static suite")],
)
def test_wrong_usage(request, model, against, sentence):
    path = model and request.getfixturevalue(model)
    with open_workbench(path and str(path)) as bench, pytest.raises(UsageError, match=sentence):
        static.run_static(ask(bench, against, ENCODER))
