"""The other engines: which are chosen, which are missing, and that they agree."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from benches import SMALL, absent

from fastflow.bench.measure.compare import least_cosine
from fastflow.bench.peers import encoder as peers_encoder
from fastflow.bench.peers.encoder import PEERS, chosen, left_out, missing, open_peers, together
from fastflow.bench.peers.pooled import reference
from fastflow.bench.suites import workbench
from fastflow.errors import UsageError

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")


def test_an_engine_that_cannot_be_opened_is_named_with_the_reason(small_bench, monkeypatch):
    def refuse(*args: object) -> None:
        raise ValueError("not this model")

    monkeypatch.setattr(peers_encoder, "torch_eager", refuse)
    skipped: list = []
    assert list(open_peers(small_bench.base(), [("torch-eager", "float32")], 1, skipped)) == []
    assert skipped == [
        left_out(small_bench.base(), "torch-eager", "float32", "it cannot be opened: ValueError: not this model")
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


def test_zentorch_and_ctranslate2_are_never_in_one_process(small_bench, monkeypatch):
    subject, skipped = small_bench.base(), []
    wanted = [("zentorch", "float32"), ("torch-eager", "float32"), ("ctranslate2", "int8")]
    assert together(subject, wanted, skipped) == wanted  # CTranslate2 is not installed
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: object())
    assert together(subject, wanted[:2], skipped) == wanted[:2]
    assert skipped == []
    assert together(subject, wanted, skipped) == wanted[1:]
    assert [entry["name"] for entry in skipped] == ["zentorch float32"]
    assert "CTranslate2 gives wrong vectors in a process that loaded it" in skipped[0]["reason"]
    monkeypatch.setitem(sys.modules, "ctranslate2", object())
    monkeypatch.setitem(sys.modules, "zentorch", object())
    assert list(open_peers(subject, wanted[2:], 1, skipped)) == []
    assert "in a process that loaded zentorch its vectors are wrong" in skipped[1]["reason"]


@pytest.mark.usefixtures("as_in_a_run")
@pytest.mark.parametrize(
    "family", ["onnxruntime", "onnxruntime-plain", "openvino", "ctranslate2", "zentorch", "xllamacpp"]
)
def test_installed_peers_agree_with_pytorch(family):
    for module in (*PEERS[family][0], *peers_encoder.MODULES.get((family, "int8"), ())):
        pytest.importorskip(module, reason="this peer is not installed", exc_type=ImportError)
    if family == "ctranslate2" and "zentorch" in sys.modules:
        pytest.skip("zentorch was loaded before, beside which its vectors are wrong")
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
