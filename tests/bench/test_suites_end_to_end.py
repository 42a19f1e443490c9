"""Texts end to end, weighted."""

from __future__ import annotations

import pytest

from fastflow import Runtime
from fastflow.bench.measure.row import Results
from fastflow.bench.peers.encoder import open_peers
from fastflow.bench.suites import end_to_end, texts
from fastflow.bench.suites.workbench import Workbench

from support.benches import plain
from support.builders import make_model
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling

pytestmark = pytest.mark.usefixtures("as_in_a_run")


@pytest.mark.slow
def test_texts_end_to_end(weighted_subject, sentences, monkeypatch):
    runtime = Runtime(weighted_subject.model, backend="reference")
    ours = texts.of_texts("fastflow", "float32", "reference", runtime.encode, runtime.pool)
    liar = plain(weighted_subject)
    monkeypatch.setattr(end_to_end, "_ours", lambda *_: [ours])
    monkeypatch.setattr(end_to_end, "open_peers", lambda *args: [*open_peers(*args), liar])
    results = Results(ceilings=[{"fma_gflops": 100.0}])
    end_to_end.run_subject(weighted_subject, sentences[:20], "texts", ["torch-eager"], 1, lambda message: None, results)
    rows = {(row["name"], row["dtype"]): row["max_abs_err"] for row in results.rows}
    assert set(rows) == {("fastflow", "float32"), ("torch-eager", "float32"), ("torch-eager", "bfloat16")}
    assert max(off for (_, dtype), off in rows.items() if dtype == "float32") <= 1e-5
    assert [entry["name"] for entry in results.skipped] == ["plain float32"]
    for row in results.rows:  # bfloat16 is held to twice float32's peak
        assert row["compute_fraction"] == pytest.approx(row["gflops"] / {"float32": 100, "bfloat16": 200}[row["dtype"]])


def run(subject, sentences, families):
    results = Results(ceilings=[{"fma_gflops": 100.0}])
    end_to_end.run_subject(subject, sentences[:20], "texts", families, 1, lambda message: None, results)
    return {(row["name"], row["dtype"]): row["max_abs_err"] for row in results.rows}, results.skipped


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cls", "last"])
def test_a_model_of_any_pooling_runs(tmp_path, bert, sentences, mode):
    pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")
    made = make_model(tmp_path / "m", bert, sentences[:64], "none", pooling=mode)
    errors, skipped = run(Workbench(tmp_path, str(made)).named(), sentences, ["torch-eager"])
    assert {name for name, _ in errors} == {"fastflow", "torch-eager"}
    assert max(off for (_, dtype), off in errors.items() if dtype == "float32") <= 1e-5
    assert skipped == []


@pytest.mark.slow
def test_a_saved_directory_runs_with_its_head_and_its_prompt(tmp_path, bert, sentences):
    pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")
    pytest.importorskip("sentence_transformers", reason="this peer is not installed", exc_type=ImportError)
    prompts = {"prompts": {"query": "a dog: "}, "default_prompt_name": "query"}
    modules = [pooling("cls", "mean"), dense(8), NORMALIZE]
    made = make_directory(tmp_path / "st", bert, modules, length=12, **prompts)
    errors, _ = run(Workbench(tmp_path, str(made)).named(), sentences, ["torch-eager", "sentence-transformers"])
    exact = {name for name, dtype in errors if dtype == "float32"}
    assert exact == {"fastflow", "torch-eager", "sentence-transformers"}
    assert max(off for (_, dtype), off in errors.items() if dtype == "float32") <= 1e-5
