"""ONNX Runtime starts with the weights of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.bench.peers.encoder import PEERS
from fastflow.bench.peers.pooled import reference
from fastflow.bench.suites import startup, texts
from fastflow.errors import FastflowError
from fastflow.model.tokens import Tokenizer

pytestmark = pytest.mark.usefixtures("as_in_a_run")


def test_onnxruntimes_process_starts_with_the_weights(weighted_subject):
    for module in PEERS["onnxruntime"][0]:
        pytest.importorskip(module, reason="this peer is not installed", exc_type=ImportError)
    import onnx

    from fastflow.bench.peers.onnx import TABLE, quantised

    table = [tensor for tensor in onnx.load(str(quantised(weighted_subject))).graph.initializer if tensor.name == TABLE]
    assert np.array_equal(onnx.numpy_helper.to_array(table[0])[:, 0], weighted_subject.weights)
    tokenize, skipped = Tokenizer(weighted_subject.encoder, weighted_subject.max_length), []
    exact, forgetful = (
        texts.padded(reference(weighted_subject, k), tokenize)([startup.TEXT]) for k in (None, weighted_subject.layers)
    )
    jobs = startup.jobs_of(weighted_subject, ["onnxruntime"], 1, skipped)
    for dtype in ("float32", "int8"):
        startup.start("onnxruntime", dtype, jobs["onnxruntime", dtype], exact)
    with pytest.raises(FastflowError, match="onnxruntime float32 differs from PyTorch"):
        startup.start("onnxruntime", "float32", jobs["onnxruntime", "float32"], forgetful)
    assert skipped == []
