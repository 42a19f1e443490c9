"""The suites that run whole encoders: candidates agree with PyTorch, what is absent is named, targets are put right."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fastflow.bench import cli
from fastflow.bench.measure.compare import COSINES
from fastflow.bench.peers.encoder import EncoderCandidate
from fastflow.bench.suites import encoder, workbench
from fastflow.errors import FastflowError

from support.benches import ENCODER, absent

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")


COMMON = {
    *("suite", "subject", "name", "backend", "dtype", "threads", "batch", "tokens", "median_ms", "p20_ms", "p80_ms"),
    *("runs", "calls_per_run", "max_abs_err", "note"),
}


def apart(module: str, extra: str) -> str:
    """The reason for a backend of Sentence Transformers, which itself is missing too."""
    return (
        f"this peer needs sentence_transformers, optimum.{module}, which is not installed: run pip install "
        f"'sentence-transformers[{extra}]' in an environment of its own, for it wants older versions of transformers"
    )


def quiet(message: str) -> None:
    """Say nothing."""


@pytest.mark.whole
def test_a_whole_run_has_every_suite_and_names_who_is_missing(small_bench, tmp_path, capsys):
    data, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    suites = ["encoder", "end-to-end", "startup"]
    cli.run(suites=suites, sizes=ENCODER, json_path=data, plot_path=picture, device="cpu", threads=2)
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
        *((f"onnxruntime {dtype}", absent("onnx, onnxruntime")) for dtype in ("float32", "int8")),
        *((f"onnxruntime-plain {dtype}", absent("onnx, onnxruntime")) for dtype in ("float32", "int8")),
        *((f"openvino {dtype}", absent("onnx, openvino")) for dtype in ("float32", "bfloat16")),
        ("openvino int8", absent("onnx, openvino, nncf")),
        *((f"ctranslate2 {dtype}", absent("ctranslate2")) for dtype in ("float32", "int8")),
        *((f"xllamacpp {dtype}", absent("gguf, xllamacpp")) for dtype in ("float32", "bfloat16", "int8")),
        *((f"zentorch {dtype}", absent("zentorch")) for dtype in ("float32", "bfloat16")),
        *((f"sentence-transformers {dtype}", absent("sentence_transformers")) for dtype in ("float32", "bfloat16")),
        *((f"sentence-transformers-onnx {dtype}", apart("onnxruntime", "onnx")) for dtype in ("float32", "int8")),
        *((f"sentence-transformers-openvino {dtype}", apart("intel", "openvino")) for dtype in ("float32", "bfloat16")),
        *((f"fastembed {dtype}", absent("onnx, fastembed")) for dtype in ("float32", "int8")),
    }
    assert "left out: " in shown
    assert absent("ctranslate2") in shown
    assert all(set(r) == {"name", "threads", "value", "unit", "must", "aim", "reached"} for r in written["ratios"])
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_rows_of_the_encoder_agree_with_pytorch_and_count_what_the_layers_need(small_bench):
    long = replace(ENCODER, quick=False, encoder=replace(ENCODER.encoder, shapes=((1, 3), (2, 9), (3, 17))))
    results = encoder.run_encoder(small_bench, ["torch-eager"], long, 2, quiet)
    subject = small_bench.base()
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


def test_a_model_given_takes_the_place_of_bert_base(small_bench, model):
    given = workbench.Workbench(small_bench.folder / "other", str(model))
    given.folder.mkdir()
    results = encoder.run_encoder(given, ["torch-eager"], ENCODER, 1, quiet)
    assert {row["subject"] for row in results.rows} == {"the model given: 3 layers, 32 wide"}
    assert {row["name"] for row in results.rows} == {"fastflow", "torch-eager"}


@pytest.mark.slow
def test_a_wrong_engine_is_an_entry_with_its_name_and_not_a_row(small_bench, monkeypatch):
    liar = EncoderCandidate("liar", "float32", "x", lambda ids, mask: lambda: np.ones((len(ids), 128)))

    def broken() -> None:
        raise RuntimeError("out of luck\nand more")

    failing = EncoderCandidate("failing", "int8", "x", lambda ids, mask: broken)
    monkeypatch.setattr(encoder, "open_peers", lambda *args: iter([liar, failing]))
    results = encoder.run_encoder(small_bench, ["torch-eager"], ENCODER, 1, quiet)
    assert {row["name"] for row in results.rows} == {"fastflow"}
    reasons = {entry["name"]: entry["reason"] for entry in results.skipped}
    assert set(reasons) == {"liar float32", "failing int8"}
    assert "liar float32 differs from PyTorch in float32" in reasons["liar float32"]
    assert reasons["failing int8"] == "1 x 3: its call failed: RuntimeError: out of luck"
    ours = EncoderCandidate("fastflow", "float32", "x", liar.prepare)
    monkeypatch.setattr(encoder, "ours", lambda *args: iter([ours]))
    with pytest.raises(FastflowError, match="fastflow float32 differs"):
        encoder.run_encoder(small_bench, ["torch-eager"], ENCODER, 1, quiet)


def row(suite: str, name: str, dtype: str, ms: float, **more: object) -> dict:
    given = {"suite": suite, "subject": "s", "name": name, "dtype": dtype, "threads": 2, "batch": 1, "tokens": 16}
    return {**given, "median_ms": ms, "times_floor": ms, **more}


@pytest.mark.slow
def test_without_a_number_of_threads_a_run_takes_fastflows_default(small_bench, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = cli.run(suites=["encoder"], against=["torch-eager"], sizes=ENCODER, device="cpu")
    assert {row["threads"] for row in done["rows"]} == {1}
