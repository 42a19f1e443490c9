"""The suites that run whole encoders: candidates agree with PyTorch, and who is missing is named."""

import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.bench import cli
from fastflow.bench.measure.compare import COSINES
from fastflow.bench.measure.load import Outcome
from fastflow.bench.measure.row import Results, make_row
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers.encoder import MODULES, PEERS, EncoderCandidate, TextCandidate, open_peers, open_reference
from fastflow.bench.report.ratios import compute_serve_ratios
from fastflow.bench.report.table import make_tables
from fastflow.bench.suites import cold_start, encoder, end_to_end, rerank, serve, texts
from fastflow.bench.suites import workbench as benches
from fastflow.bench.suites.sizes import QUICK, ServeSizes
from fastflow.bench.suites.workbench import SHAPES, Workbench, open_workbench
from fastflow.cache_folder import cache_directory
from fastflow.console import Terminated, _terminable
from fastflow.errors import FastflowError
from fastflow.model.encoder.weights import encoder_hash
from fastflow.model.tokenizer import Tokenizer

from support.benches import ENCODER, SMALL, absent, ask, needs, plain, subject_of
from support.builders import make_model
from support.sentence_dirs import NORMALIZE, PROMPTED, dense, make_directory, pooling

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")
pytestmark = pytest.mark.usefixtures("as_in_a_run")


@pytest.mark.whole
def test_a_whole_run_has_every_suite_and_names_who_is_missing(small_bench, tmp_path, capsys):
    data = tmp_path / "bench.json"
    suites = ["encoder", "end-to-end", "startup"]
    cli.run(suites=suites, sizes=ENCODER, json_path=data, device="cpu", threads=2)
    written, shown = json.loads(data.read_text()), capsys.readouterr().out
    rows = written["rows"]
    assert all(0 < row["p20_ms"] <= row["median_ms"] <= row["p80_ms"] for row in rows)
    for suite, peers in (("encoder", {"torch-eager"}), ("end-to-end", {"torch-eager"}), ("startup", set())):
        of_suite = [row for row in rows if row["suite"] == suite]
        assert {row["name"] for row in of_suite} == {"fastflow", *peers}
        ours = {row["dtype"] for row in of_suite if row["name"] == "fastflow"}
        assert ours == {"float32", "bfloat16", "int8"}
        assert {row["subject"] for row in of_suite} == {"a BERT, random weights: 3 layers, 128 wide"}
    lacking = {name: peer for name, peer in PEERS.items() if not name.startswith("torch")}
    (default,) = {entry["reason"] for entry in written["skipped"] if entry["name"] == "every engine"}
    assert "which it saved, needs sentence_transformers, which is not installed: run pip install" in default
    assert {(e["name"], e["reason"]) for e in written["skipped"] if e["name"] != "every engine"} == {
        (f"{name} {dtype}", absent(", ".join((*peer.modules, *MODULES.get((name, dtype), ())))))
        for name, peer in lacking.items() for dtype in peer.dtypes
    }  # fmt: skip
    assert "left out: " in shown
    assert absent("sentence_transformers") in shown
    assert all(set(r) == {"name", "threads", "value", "unit"} for r in written["ratios"])


@pytest.mark.slow
def test_rows_of_the_encoder_agree_with_pytorch(small_bench):
    long = replace(ENCODER, quick=False, encoder=replace(ENCODER.encoder, shapes=((1, 3), (2, 9), (3, 17))))
    results = encoder.run_encoder(ask(small_bench, ["torch-eager"], long, 2))
    for row in results.rows:
        assert row["least_cosine"] >= COSINES[row["dtype"]]
    exact = [row for row in results.rows if row["name"].startswith("fastflow") and row["dtype"] == "float32"]
    assert max(row["max_abs_err"] for row in exact) <= 1e-5
    assert {(row["batch"], row["tokens"]) for row in exact} == {(1, 3), (2, 9), (3, 17)}


def test_a_model_given_takes_the_place_of_bert_base(small_bench, model):
    given = Workbench(small_bench.folder / "other", str(model))
    given.folder.mkdir()
    results = encoder.run_encoder(ask(given, ["torch-eager"], ENCODER))
    assert {row["subject"] for row in results.rows} == {"the model given: 3 layers, 32 wide"}
    assert {row["name"] for row in results.rows} == {"fastflow", "torch-eager"}


@pytest.mark.slow
def test_a_wrong_engine_is_an_entry_with_its_name_and_not_a_row(small_bench, monkeypatch):
    liar = EncoderCandidate("liar", "float32", "x", lambda ids, mask: lambda: np.ones((len(ids), 128)))

    def broken() -> None:
        raise RuntimeError("out of luck\nand more")

    failing = EncoderCandidate("failing", "int8", "x", lambda ids, mask: broken)
    monkeypatch.setattr(encoder, "open_peers", lambda *args: iter([liar, failing]))
    results = encoder.run_encoder(ask(small_bench, ["torch-eager"], ENCODER))
    assert {row["name"] for row in results.rows} == {"fastflow"}
    reasons = {entry["name"]: entry["reason"] for entry in results.skipped}
    assert set(reasons) == {"liar float32", "failing int8"}
    assert len(results.skipped) == 2, "who is wrong is not asked again"
    assert "liar float32 differs from PyTorch in float32" in reasons["liar float32"]
    assert reasons["failing int8"] == "1 x 3: its call failed: RuntimeError: out of luck"
    ours = EncoderCandidate("fastflow", "float32", "x", liar.prepare)
    monkeypatch.setattr(encoder, "open_ours", lambda *args: iter([ours]))
    with pytest.raises(FastflowError, match="fastflow float32 differs"):
        encoder.run_encoder(ask(small_bench, ["torch-eager"], ENCODER))


@pytest.mark.slow
def test_without_a_number_of_threads_a_run_takes_fastflows_default(small_bench, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = cli.run(suites=["encoder"], against=["torch-eager"], sizes=ENCODER, device="cpu")
    assert {row["threads"] for row in done["rows"]} == {1}


def run_subject(subject, sentences, peers, results):
    request = ask(Workbench(subject.folder, None), peers, ENCODER)
    end_to_end.run_subject(request, subject, sentences, "texts", peers, results)


@pytest.mark.slow
def test_texts_end_to_end(weighted_subject, sentences, monkeypatch):
    runtime = Runtime(weighted_subject.model, backend="reference")
    ours = TextCandidate("fastflow", "float32", "reference", runtime.encode, runtime.pool)
    liar = plain(weighted_subject)
    monkeypatch.setattr(end_to_end, "DTYPES", ())
    monkeypatch.setattr(end_to_end, "open_peers", lambda *args: [*open_peers(*args), ours, liar])
    results = Results()
    run_subject(weighted_subject, sentences[:20], ["torch-eager"], results)
    rows = {(row["name"], row["dtype"]): row["max_abs_err"] for row in results.rows}
    assert set(rows) == {("fastflow", "float32"), ("torch-eager", "float32"), ("torch-eager", "bfloat16")}
    assert max(off for (_, dtype), off in rows.items() if dtype == "float32") <= 1e-5
    assert [entry["name"] for entry in results.skipped] == ["plain float32"]
    assert {row["runs"] for row in results.rows} == {3}, "so few operations are timed more than once"


def test_on_a_gpu_lists_single_texts_and_long_ones_have_rows(weighted_subject, sentences, monkeypatch):
    runtime = Runtime(weighted_subject.model, backend="reference")
    ours = TextCandidate("fastflow", "float32", "reference", runtime.encode, runtime.pool)
    monkeypatch.setattr(end_to_end, "_open_on_gpu", lambda *args: [ours])
    monkeypatch.setattr(benches.SuiteRun, "on_gpu", True)
    results = Results()
    run_subject(weighted_subject, sentences[:20], [], results)
    single = [row["tokens"] for row in results.rows if row["batch"] == 1]
    assert (len(results.rows), single) == (3, [end_to_end.SHORT])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cls", "last", "saved"])
def test_a_model_of_any_pooling_runs(tmp_path, bert, sentences, mode):
    peers = ["torch-eager"]
    if mode == "saved":
        needs("sentence_transformers")
        peers.append("sentence-transformers")
        modules = [pooling("cls", "mean"), dense(8), NORMALIZE]
        made = make_directory(tmp_path / "m", bert, modules, length=12, **PROMPTED)
    else:
        made = make_model(tmp_path / "m", bert, sentences[:64], "none", pooling=mode)
    results = Results()
    run_subject(subject_of(tmp_path, made), sentences[:20], peers, results)
    exact = [row for row in results.rows if row["dtype"] == "float32"]
    assert {row["name"] for row in exact} == {"fastflow", *peers}
    assert max(row["max_abs_err"] for row in exact) <= 1e-5
    assert mode == "saved" or results.skipped == []


ENDS_ITS_PARENT = """
import os, signal, sys, time
open(sys.argv[1], 'w').write(str(os.getpid()))
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(20)
"""


def test_an_interrupted_bench_ends_its_process_and_the_guard_of_it(tmp_path):
    threads = set(threading.enumerate())
    with pytest.raises(Terminated), _terminable():
        cold_start.start("peer int8", [sys.executable, "-c", ENDS_ITS_PARENT, str(tmp_path / "pid")])
    assert all(guard.finished.is_set() for guard in set(threading.enumerate()) - threads)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_padded_batches_come_back_in_the_texts_order(small_bench, sentences):
    subject = small_bench.base()
    embed = texts.embed_padded(open_reference(subject), Tokenizer(subject.encoder, 64))
    whole = embed(sentences[:70])
    assert max(np.abs(whole[i] - embed([sentences[i]])[0]).max() for i in (0, 31, 32, 69)) <= 1e-5
    assert embed([]).shape == (0, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
def test_every_load_has_its_row(tmp_path, model):
    sizes, said = ServeSizes(texts=64, shares=(0.1, 3.0), seconds=0.2, lead=0.1, most=60, connections=40), []
    request = ask(Workbench(tmp_path, str(model)), None, replace(QUICK, serve=sizes))
    results = serve.run_serve(replace(request, say=said.append))
    loads = [("Runtime alone", 64, None), ("Runtime alone", 1, None)]
    loads += [("fastflow", batch, share) for batch, share in ((1, 0.1), (1, 3.0), (32, 1.3))]
    assert [(row["name"], row["batch"], row["share"]) for row in results.rows] == loads
    for row in results.rows[2:]:
        assert row["runs"] + row["refused"] + row["failed"] > 0
        assert row["generator_cpu"] > 0
    assert results.rows[2]["runs"] >= 10
    assert results.rows[4]["resident_mb"] > 10
    assert any("lists" in ratio["name"] for ratio in results.ratios)
    assert len(said) == 4


def test_a_load_without_an_answer_has_a_row_without_times():
    results, who = Results(), {"subject": "s", "name": "fastflow", "share": 0.5, "batch": 1, "threads": 1}
    serve.add_load(Outcome(unsent=9, seconds=1.0), who, results)
    (row,) = results.rows
    assert (row["median_ms"], row["p99_ms"], row["failed"]) == (None, None, 9)
    alone = make_row("serve", subject="s", name="Runtime alone", batch=2, threads=1, texts_per_s=1.0)
    assert compute_serve_ratios([alone, row]) == []
    assert make_tables([row])
    json.dumps(row, allow_nan=False)


def test_a_server_that_does_not_start_says_why():
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(FastflowError, match="no such model"), serve.run_server(command):
        pass


def test_a_subject_is_made_once_with_the_weights_of_every_run_and_its_files_go():
    with open_workbench(None, SMALL) as bench, open_workbench(None, SMALL) as another:
        base = bench.base()
        assert encoder_hash(base.encoder) == encoder_hash(another.base().encoder)
        assert bench.base() is base
        assert (base.label, base.depth) == ("a BERT, random weights: 3 layers, 128 wide", 3)
        assert base.folder.is_dir()
        assert bench.pick_subject().model == "default"
        assert bench.pick_subject().folder != base.folder
        folder = bench.folder
    assert not folder.exists()


@pytest.mark.parametrize("usual", ["elsewhere", None])
def test_trials_of_a_run_stay_out_of_the_users_cache(tmp_path, monkeypatch, usual):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if usual:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / usual))
    before = dict(os.environ)
    with open_workbench(None, SMALL) as bench:
        assert cache_directory().is_relative_to(bench.folder)
        assert Path(os.environ["HF_HOME"]) == tmp_path / (usual or ".cache") / "huggingface"
    assert dict(os.environ) == before


def test_a_subject_is_described_by_its_model(tmp_path, bert, sentences):
    made = make_model(tmp_path / "m", bert, sentences[:64], "none", pooling="cls")
    subject = subject_of(tmp_path, made)
    assert (subject.mode, subject.layers, subject.saved, subject.prompt) == ("cls", (3,), None, "")
    made = make_directory(tmp_path / "st", bert, [pooling("cls"), dense(8), NORMALIZE], **PROMPTED)
    subject = subject_of(tmp_path, made)
    assert (subject.saved, subject.prompt, subject.encoder) == (made, "a dog: ", made)
    apart = make_directory(tmp_path / "apart", bert, [pooling("mean", include_prompt=False)], **PROMPTED)
    with pytest.raises(FastflowError, match="bench: the model given leaves its default prompt out of the pooling"):
        subject_of(tmp_path, apart)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_takes_the_place_of_bert_base_and_not_its_name(tmp_path, monkeypatch, shape):
    made, real = {}, benches.make_base
    monkeypatch.setattr(benches, "make_base", lambda directory, bert: made.update(bert) or real(directory, SMALL))
    named = {"minilm-l6": "MiniLM-L6", "minilm-l12": "MiniLM-L12", "bert-base": "BERT-base"}[shape]
    label = Workbench(tmp_path, None, None, shape).base().label
    assert label == f"shape of {named}, random weights: 3 layers, 128 wide"
    assert made == SHAPES[shape]
    assert benches.NAMES.keys() == SHAPES.keys()


def test_end_to_end_runs_what_was_asked_for(tmp_path, bert, monkeypatch):
    monkeypatch.setattr(Workbench, "base", lambda self: "base")
    monkeypatch.setattr(Workbench, "pick_subject", lambda self: "named")
    assert Workbench(tmp_path, None).subjects() == ["named", "base"]
    assert Workbench(tmp_path, str(bert)).subjects() == ["named"]
    assert Workbench(tmp_path, None, None, "minilm-l6").subjects() == ["base"]


@pytest.mark.slow
def test_rerankers_are_compared_with_other_engines(monkeypatch):
    """Every engine scores as PyTorch does; one that does not is left out, and ours ends the run."""
    needs("sentence_transformers", "onnx", "onnxruntime")
    monkeypatch.setattr(rerank, "EFFORT", Effort(budget_s=0, min_runs=2, sample_s=0, pause_s=0))
    monkeypatch.setitem(rerank.LEAST, "bfloat16", 0.95)  # so few scores of so small a model
    with open_workbench(None, SMALL) as bench:
        request = ask(bench, None, replace(ENCODER, rerank=((8, 4), (6, 9))))
        results = rerank.run_rerank(request)
        skipped = {entry["name"]: entry["reason"] for entry in results.skipped}
        names = {(name, dtype) for name in rerank.PEERS for dtype in PEERS[name].dtypes}
        assert all("pip install" in reason or "has no bfloat16 arithmetic" in reason for reason in skipped.values())
        names = {each for each in names if " ".join(each) not in skipped}
        names |= {("fastflow", dtype) for dtype in rerank.DTYPES}
        for size in ((8, 4), (6, 9)):
            rows = [row for row in results.rows if (row["batch"], row["tokens"]) == size]
            assert {(row["name"], row["dtype"]) for row in rows} == names
            assert all(row["least_cosine"] >= rerank.LEAST[row["dtype"]] for row in rows)
        of_float = [ratio["name"] for ratio in results.ratios if "fastflow float32" in ratio["name"]]
        assert [name.partition(": ")[0] for name in of_float] == ["rerank 8 x 4", "rerank 6 x 9"]
        assert "scores, against PyTorch's in float32" in "\n".join(make_tables(results.rows))
        liars = [TextCandidate(name, "int8", "x", lambda pairs: np.arange(len(pairs))) for name in ("liar", "fastflow")]
        monkeypatch.setattr(rerank, "open_peers", lambda *_: liars[:1])
        left = rerank.run_rerank(replace(request, against=[])).skipped
        assert {entry["name"] for entry in left} == {"liar int8"}
        assert "is not timed, since a wrong result has no speed" in left[0]["reason"]
        monkeypatch.setattr(rerank, "open_peers", lambda *_: liars[1:])
        with pytest.raises(FastflowError, match="fastflow int8 has a correlation of"):
            rerank.run_rerank(replace(request, against=[]))
