"""Fixtures of the benchmarks' tests: models so small that a run ends at once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def small_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A small BERT in BERT-base's place; no engine but PyTorch's."""
    pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")
    from fastflow.bench.peers import encoder as peers
    from fastflow.bench.suites import workbench

    from support.benches import SMALL

    monkeypatch.delenv("FASTFLOW_ISA", raising=False)
    lacking = {"onnx", "onnxruntime", "openvino", "nncf", "sentence_transformers", "fastembed"}
    real = peers.find_spec
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name in lacking else real(name))
    with workbench.open_workbench(None, SMALL) as bench:
        yield bench


@pytest.fixture(scope="package", params=["first-last", "last"])
def weighted_subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, bert: Path, sentences: list[str]
) -> Any:
    """A weighted model, raw, that pools the first layer and the last, or the last alone."""
    from fastflow.bench.suites.workbench import Workbench

    from support.builders import make_model

    folder = tmp_path_factory.mktemp("weighted")
    made = make_model(folder / "m", bert, sentences, "none", pooling=request.param, weighted=True)
    return Workbench(folder, str(made)).pick_subject()


@pytest.fixture
def ragged(weighted_subject: Any) -> tuple[Any, Any]:
    """ids and mask (3, 17) of texts of 17, 9 and 1 tokens."""
    ids = np.random.default_rng(0).integers(5, len(weighted_subject.weights), (3, 17))
    mask = (np.arange(17) < np.array([[17], [9], [1]])).astype(np.int64)
    return ids * mask, mask


@pytest.fixture
def as_in_a_run() -> Iterator[None]:
    from fastflow.bench.peers.gpu import settings

    with settings(1):
        yield
