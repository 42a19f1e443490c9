"""The suites that run whole encoders: candidates agree with PyTorch, what is absent is named, targets are put right."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest

from fastflow.bench import cli
from fastflow.bench.measure.compare import COSINES, Candidate, least_cosine
from fastflow.bench.measure.machine import Ceilings
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers import encoder as peers_encoder
from fastflow.bench.peers.encoder import PEERS, chosen, left_out, missing, open_peers
from fastflow.bench.peers.pooled import reference
from fastflow.bench.report.ratios_encoder import encoder_ratios, ragged_ratios, startup_ratios
from fastflow.bench.suites import encoder, startup, texts, workbench
from fastflow.bench.suites.sizes import EncoderSizes, Sizes, TextSizes
from fastflow.errors import FastflowError, UsageError, missing_extra

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")
LIMITS = Ceilings(2, "", 100.0, 50.0, {"L2": 200.0, "memory": 10.0}, {"L2": 1e6})
SMALL = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
TINY = Sizes(
    quick=True,
    encoder=EncoderSizes(
        shapes=((1, 3), (2, 9)), chosen=frozenset({(1, 3)}),
        effort=Effort(budget_s=0, min_runs=2, sample_s=0, pause_s=0),
    ),
    texts=TextSizes(most=40), starts=1, bert=SMALL,
)  # fmt: skip
COMMON = {
    *("suite", "subject", "name", "backend", "dtype", "threads", "batch", "tokens", "median_ms", "p20_ms", "p80_ms"),
    *("runs", "calls_per_run", "max_abs_err", "note"),
}


@pytest.fixture
def hasty(monkeypatch, tmp_path):
    """A small BERT in BERT-base's place; no engine but PyTorch's."""
    monkeypatch.delenv("FASTFLOW_ISA", raising=False)
    monkeypatch.setattr(encoder, "ceilings", lambda counts, seconds: {n: replace(LIMITS, threads=n) for n in counts})
    monkeypatch.setattr(encoder, "read_gbs", lambda threads, seconds: 20.0)
    absent = {"onnx", "onnxruntime", "openvino", "nncf", "ctranslate2", "sentence_transformers"}
    real = peers_encoder.find_spec
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: None if name in absent else real(name))
    with workbench.workbench(None, TINY.bert) as bench:
        yield bench


def quiet(message: str) -> None:
    """Say nothing."""


def absent(modules: str) -> str:
    """The reason for a peer whose modules are not installed."""
    return str(missing_extra("peers", modules, "this peer"))


@pytest.mark.whole
def test_a_whole_run_has_every_suite_and_names_who_is_missing(hasty, tmp_path, capsys):
    data, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    suites = ["encoder", "end-to-end", "startup"]
    cli.run(suites=suites, sizes=TINY, json_path=data, plot_path=picture, device="cpu", threads=2)
    written, shown = json.loads(data.read_text()), capsys.readouterr().out
    rows = written["rows"]
    assert all(set(row) >= COMMON for row in rows)
    assert all(0 < row["p20_ms"] <= row["median_ms"] <= row["p80_ms"] for row in rows)
    for suite, peers in (("encoder", {"torch-eager"}), ("end-to-end", {"torch-eager"}), ("startup", set())):
        of_suite = [row for row in rows if row["suite"] == suite]
        assert {row["name"] for row in of_suite} == {"fastflow", *peers}
        ours = {row["dtype"] for row in of_suite if row["name"] == "fastflow"}
        assert ours == {"float32", "bfloat16", "int8"}
        assert len({row["subject"] for row in of_suite}) == (1 if suite == "encoder" else 2)
    left = {(entry["name"], entry["reason"]) for entry in written["skipped"]}
    assert left == {
        ("onnxruntime float32", absent("onnx, onnxruntime")),
        ("onnxruntime int8", absent("onnx, onnxruntime")),
        *((f"openvino {dtype}", absent("onnx, openvino")) for dtype in ("float32", "bfloat16")),
        ("openvino int8", absent("onnx, openvino, nncf")),
        *((f"ctranslate2 {dtype}", absent("ctranslate2")) for dtype in ("float32", "int8")),
        ("sentence-transformers float32", absent("sentence_transformers")),
    }
    assert "left out: " in shown
    assert absent("ctranslate2") in shown
    assert all(set(r) == {"name", "threads", "value", "unit", "must", "aim", "reached"} for r in written["ratios"])
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_rows_of_the_encoder_agree_with_pytorch_and_count_what_the_layers_need(hasty):
    long = replace(TINY, quick=False, encoder=replace(TINY.encoder, shapes=((1, 3), (2, 9), (3, 17))))
    results = encoder.run_encoder(hasty, ["torch-eager"], long, 2, quiet)
    subject = hasty.base()
    per_layer = 4 * 128 * 128 + 2 * 128 * 512
    assert subject.matrix_weights() == 3 * per_layer
    assert subject.flop(2, 9) == 2 * 18 * 3 * (per_layer + 2 * 9 * 128)
    for row in results.rows:
        assert row["least_cosine"] >= COSINES[row["dtype"]]
        assert row["floor_ms"] > 0
        assert row["times_floor"] == pytest.approx(1 / max(row["compute_fraction"], row["bandwidth_fraction"]))
    exact = [row for row in results.rows if row["name"].startswith("fastflow") and row["dtype"] == "float32"]
    assert max(row["max_abs_err"] for row in exact) <= 1e-5
    shapes = {(row["batch"], row["tokens"]) for row in results.rows if row["name"] == "fastflow"}
    assert shapes == {(1, 3), (2, 9), (3, 17)}
    forced = {(row["batch"], row["tokens"]) for row in results.rows if row["name"] == "fastflow-portable"}
    assert forced == {(1, 3)}
    assert {row["backend"] for row in results.rows if row["name"] == "fastflow-portable"} == {"cpu portable"}


def test_a_model_given_takes_the_place_of_bert_base(hasty, model):
    given = workbench.Workbench(hasty.folder / "other", str(model))
    given.folder.mkdir()
    results = encoder.run_encoder(given, ["torch-eager"], TINY, 1, quiet)
    assert {row["subject"] for row in results.rows} == {"the model given: 3 layers, 32 wide"}
    assert {row["name"] for row in results.rows} == {"fastflow", "torch-eager"}


def test_a_wrong_engine_is_an_entry_with_its_name_and_not_a_row(hasty, monkeypatch):
    liar = Candidate("liar", "float32", "x", lambda ids, mask: lambda: np.ones((len(ids), 128)))

    def broken() -> None:
        raise RuntimeError("out of luck\nand more")

    failing = Candidate("failing", "int8", "x", lambda ids, mask: broken)
    monkeypatch.setattr(encoder, "open_peers", lambda *args: iter([liar, failing]))
    results = encoder.run_encoder(hasty, ["torch-eager"], TINY, 1, quiet)
    assert {row["name"] for row in results.rows} == {"fastflow"}
    reasons = {entry["name"]: entry["reason"] for entry in results.skipped}
    assert set(reasons) == {"liar float32", "failing int8"}
    assert "liar float32 differs from PyTorch in float32" in reasons["liar float32"]
    assert reasons["failing int8"] == "1 x 3: its call failed: RuntimeError: out of luck"
    ours = Candidate("fastflow", "float32", "x", liar.prepare)
    monkeypatch.setattr(encoder, "ours", lambda *args: iter([ours]))
    with pytest.raises(FastflowError, match="fastflow float32 differs"):
        encoder.run_encoder(hasty, ["torch-eager"], TINY, 1, quiet)


def test_an_engine_that_cannot_be_opened_is_named_with_the_reason(hasty, monkeypatch):
    def refuse(*args: object) -> None:
        raise ValueError("not this model")

    monkeypatch.setattr(peers_encoder, "torch_eager", refuse)
    skipped: list = []
    assert list(open_peers(hasty.base(), [("torch-eager", "float32")], 1, skipped)) == []
    assert skipped == [
        left_out(hasty.base(), "torch-eager", "float32", "it cannot be opened: ValueError: not this model")
    ]


def test_cosine_bounds_by_precision():
    exact = np.eye(2)
    tilted = exact + np.array([[0, 0.03], [0, 0]])
    assert least_cosine("a", "int8", tilted, exact) == pytest.approx(1 / np.sqrt(1 + 0.03**2))
    assert least_cosine("a", "bfloat16", tilted, exact) >= 0.999
    with pytest.raises(FastflowError, match="a float32 differs"):
        least_cosine("a", "float32", tilted, exact)
    for wrong in (exact[:, :1], np.full((2, 2), np.nan)):
        with pytest.raises(FastflowError, match="bench: a int8"):
            least_cosine("a", "int8", wrong, exact)


def test_padded_batches_come_back_in_the_texts_order(hasty, sentences):
    from fastflow.model.tokens import Tokenizer

    subject = hasty.base()
    tokenize, run = Tokenizer(subject.encoder, 64), reference(subject)
    given = sentences[:70]
    whole = texts.padded(run, tokenize)(given)
    for i in (0, 31, 32, 69):
        alone = texts.padded(run, tokenize)([given[i]])
        assert np.abs(whole[i] - alone[0]).max() <= 1e-5
    assert texts.padded(run, tokenize)([]).shape == (0, 0)


def test_unknown_peers_and_missing_modules(monkeypatch):
    with pytest.raises(UsageError, match=r"unknown peer 'keras'.*openvino"):
        chosen(["keras"])
    assert chosen(None) == list(PEERS)
    assert chosen(["openvino", "torch-eager"]) == ["torch-eager", "openvino"]
    assert missing("torch-eager", "float32") is None
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: None if name == "nncf" else object())
    assert missing("openvino", "float32") is None
    assert missing("openvino", "int8") == absent("nncf")


def test_a_process_that_fails_says_why():
    import sys

    with pytest.raises(FastflowError, match=r"peer int8 failed: ValueError: no such file"):
        startup.start("peer", "int8", [sys.executable, "-c", "raise ValueError('no such file')"], np.ones((1, 2)))


def row(suite: str, name: str, dtype: str, ms: float, **more: object) -> dict:
    given = {"suite": suite, "subject": "s", "name": name, "dtype": dtype, "threads": 2, "batch": 1, "tokens": 16}
    return {**given, "median_ms": ms, "times_floor": ms, **more}


def test_ratios_take_the_fastest_peer_of_the_class():
    at = {
        *(("fastflow", "float32", 10.0), ("onnxruntime", "float32", 12.0), ("openvino", "float32", 11.0)),
        *(("fastflow", "int8", 4.0), ("onnxruntime", "int8", 5.0), ("ctranslate2", "int8", 3.0)),
        *(("fastflow", "bfloat16", 1.1), ("openvino", "bfloat16", 7.7), ("fastflow-avx2", "float32", 24.0)),
    }
    found = {r["name"]: r for r in encoder_ratios([row("encoder", *one) for one in sorted(at)])}
    value = {name.removeprefix("encoder 1x16: "): (round(r["value"], 3), r["reached"]) for name, r in found.items()}
    assert value == {
        "fastflow float32 against openvino float32": (1.1, True),
        "fastflow int8 against ctranslate2 int8": (0.75, False),
        "fastflow bfloat16 against openvino bfloat16": (7.0, True),
        "fastflow bfloat16 against the machine's floor": (1.1, True),
        "fastflow-avx2 float32 against onnxruntime float32": (0.5, False),
    }
    many = [row("encoder", name, dtype, ms, batch=8, tokens=32) for name, dtype, ms in sorted(at)]
    aims = {r["name"].split(" against")[0]: r["aim"] for r in encoder_ratios(many)}
    assert aims["encoder 8x32: fastflow bfloat16"] == pytest.approx(2.5)
    assert aims["encoder 8x32: fastflow int8"] == pytest.approx(4)


def test_ratios_of_lists_and_of_starts():
    ragged = [row("end-to-end", "fastflow", "float32", 10), row("end-to-end", "sentence-transformers", "float32", 39)]
    assert [(r["value"], r["must"], r["aim"], r["reached"]) for r in ragged_ratios(ragged)] == [
        (pytest.approx(3.9), 2.0, None, True),
        (pytest.approx(3.9), None, 4.0, False),
    ]
    memory = {"resident_mb": 310.0, "peak_mb": 500.0}
    starts = [
        row("startup", "fastflow", "bfloat16", 600, **memory),
        row("startup", "sentence-transformers", "float32", 4000, **memory),
    ]
    judged = [(r["unit"], r["must"], r["reached"]) for r in startup_ratios(starts, "s")]
    assert judged == [("s", 1.0, True), ("x", 5.0, True), ("MB", 300.0, False), ("MB", None, None)]
    assert {r["reached"] for r in startup_ratios(starts, "another")} == {None}


@pytest.mark.parametrize("family", ["onnxruntime", "openvino", "ctranslate2"])
def test_installed_peers_agree_with_pytorch(family):
    for module in (*PEERS[family][0], *peers_encoder.MODULES.get((family, "int8"), ())):
        pytest.importorskip(module, reason="this peer is not installed", exc_type=ImportError)
    importlib.import_module("fastflow.bench.peers.onnx")
    with workbench.workbench(None, SMALL) as bench:
        subject, skipped = bench.base(), []
        engines = list(open_peers(subject, [(family, dtype) for dtype in PEERS[family][1]], 2, skipped))
        assert [entry for entry in skipped if "bfloat16" not in entry["name"]] == []
        ids = np.random.default_rng(0).integers(5, 30000, (3, 17))
        mask = np.ones_like(ids)
        mask[1, 9:], mask[2, 1:] = 0, 0
        exact = reference(subject)(ids, mask)
        for engine in engines:
            assert least_cosine(engine.name, engine.dtype, engine.prepare(ids, mask)(), exact) <= 1 + 1e-6


def test_without_a_number_of_threads_a_run_takes_fastflows_default(hasty, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = cli.run(suites=["encoder"], against=["torch-eager"], sizes=TINY, device="cpu")
    assert {row["threads"] for row in done["rows"]} == {1}
