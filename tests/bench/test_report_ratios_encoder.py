"""Ratios of the encoder: the fastest peer of the class, lists and starts."""

from __future__ import annotations

import pytest

from fastflow.bench.report.ratios_encoder import encoder_ratios, ragged_ratios, startup_ratios

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")


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
        (pytest.approx(3.9), 2.0, None, True),
    ]
    memory = {"resident_mb": 310.0, "peak_mb": 500.0}
    starts = [
        row("startup", "fastflow", "bfloat16", 600, **memory),
        row("startup", "sentence-transformers", "float32", 4000, **memory),
    ]
    judged = [(r["unit"], r["must"], r["reached"]) for r in startup_ratios(starts, "s")]
    assert judged == [("s", 1.0, True), ("x", 5.0, True), ("MB", 300.0, False), ("MB", None, None)]
    assert {r["reached"] for r in startup_ratios(starts, "another")} == {None}


def test_a_library_counts_with_its_best_backend_in_no_lower_precision():
    times = {
        ("fastflow", "float32"): 10, ("fastflow", "bfloat16"): 5, ("fastflow", "int8"): 2,
        ("sentence-transformers", "float32"): 60, ("sentence-transformers", "bfloat16"): 30,
        ("sentence-transformers-onnx", "float32"): 40, ("sentence-transformers-onnx", "int8"): 9,
        ("sentence-transformers-openvino", "bfloat16"): 20, ("fastembed", "float32"): 25, ("fastembed", "int8"): 3,
    }  # fmt: skip
    rows = [row("end-to-end", name, dtype, ms) for (name, dtype), ms in times.items()]
    best = [r for r in ragged_ratios(rows) if "at its best" in r["name"]]
    texts, fast = "sentence-transformers", "fastembed"
    assert [(r["name"].removeprefix("end-to-end, s, "), r["value"], r["reached"]) for r in best] == [
        (f"{library} at its best: fastflow {dtype} against {peer}", value, value >= 2)
        for library, dtype, peer, value in (
            (texts, "float32", "sentence-transformers-onnx float32", 4.0),
            (fast, "float32", "fastembed float32", 2.5),
            (texts, "bfloat16", "sentence-transformers-openvino bfloat16", 4.0),
            (fast, "bfloat16", "fastembed float32", 5.0),
            (texts, "int8", "sentence-transformers-onnx int8", 4.5),
            (fast, "int8", "fastembed int8", 1.5),
        )
    ]
