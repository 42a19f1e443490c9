"""The other engines: which are chosen, which are missing, and that they agree."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from fastflow.bench.peers import encoder as peers_encoder
from fastflow.bench.peers.encoder import CLASHES, PEERS, chosen, left_out, missing, open_peers, together
from fastflow.errors import UsageError

from support.benches import absent, check_agreement
from support.places import ROOT, USERS

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


@pytest.mark.parametrize("other", CLASHES)
def test_zentorch_shares_no_process_with_engines_that_it_breaks(small_bench, monkeypatch, other):
    subject, skipped = small_bench.base(), []
    wanted = [("zentorch", "float32"), ("torch-eager", "float32"), (other, "int8")]
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


def test_the_two_that_abort_together_are_opened_one_without_the_other(small_bench, tmp_path, run_python):
    """In a process of its own: if both are installed, and the rule fails, the interpreter ends with 134."""
    for module in {*PEERS["zentorch"][0], *PEERS["xllamacpp"][0]}:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
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
    done = run_python(code, tmp_path, small_bench.base().encoder)
    assert (done.returncode, done.stdout) == (0, "['xllamacpp']\n['zentorch float32']\n"), done.stderr[-2000:]


@pytest.mark.usefixtures("as_in_a_run")
@pytest.mark.parametrize("family", ["onnxruntime", "onnxruntime-plain", "openvino", "ctranslate2", "xllamacpp"])
def test_installed_peers_agree_with_pytorch(family):
    for module in (*PEERS[family][0], *peers_encoder.MODULES.get((family, "int8"), ())):
        pytest.importorskip(module, reason="this peer is not installed", exc_type=ImportError)
    check_agreement(family)


def test_zentorch_agrees_with_pytorch_in_a_process_of_its_own(run_python):
    """This process may have loaded the engines that clash with it."""
    if find_spec("zentorch") is None:
        pytest.skip("this peer is not installed")
    code = """
from support.benches import check_agreement
from fastflow.bench.peers.pytorch import settings
with settings(1):
    check_agreement("zentorch")
"""
    done = run_python(code, env=USERS | {"PYTHONPATH": str(ROOT / "tests")})
    assert done.returncode == 0, done.stderr[-2000:]
