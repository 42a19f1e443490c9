"""Sizes and ceilings of benchmarks that end at once, and what they are of."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from fastflow.bench.measure.compare import least_cosine
from fastflow.bench.measure.machine import Ceilings
from fastflow.bench.measure.subject import Subject
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers.encoder import PEERS, EncoderCandidate, open_peers
from fastflow.bench.peers.pooled import reference
from fastflow.bench.suites.sizes import EncoderSizes, FlowSizes, Sizes, TextSizes
from fastflow.bench.suites.workbench import Workbench, workbench
from fastflow.bench.suites.workloads import trained_like
from fastflow.errors import missing_extra
from fastflow.stages.calibration import Stage
from fastflow.train.methods.flow import Flow, FlowConfig

LIMITS = Ceilings(1, "", 100.0, 50.0, {"L2": 200.0, "L3": 100.0, "memory": 10.0}, {"L2": 1e6, "L3": 1e7})
FLOW = Sizes(
    quick=True,
    flow=FlowSizes(
        batches=(1, 3), affine=(1, 3), whole=32, dim=64, model_rows=8,
        effort=Effort(budget_s=0, min_runs=2, sample_s=1e-5, pause_s=0),
    ),
)  # fmt: skip
SMALL = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
ENCODER = Sizes(
    quick=True,
    encoder=EncoderSizes(
        shapes=((1, 3), (2, 9)), chosen=frozenset({(1, 3)}),
        effort=Effort(budget_s=0, min_runs=2, sample_s=0, pause_s=0),
    ),
    texts=TextSizes(most=40), starts=1, bert=SMALL,
)  # fmt: skip


ENGINES = ("onnxruntime", "onnxruntime-plain", "openvino", "ctranslate2")  # of ids, installed or not


def needs(*modules: str, load: bool = True) -> None:
    """Skip a test of a peer whose modules are not installed; not ``load``: without importing them here."""
    for module in modules:
        if load:
            pytest.importorskip(module, reason="this peer is not installed", exc_type=ImportError)
        elif find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def subject_of(folder: Path, model: Path) -> Subject:
    place = folder / f"of-{model.name}"
    place.mkdir()
    return Workbench(place, str(model)).named()


def absent(modules: str) -> str:
    return str(missing_extra("peers", modules, "this peer"))


def check_agreement(family: str) -> None:
    """The vectors of ``family``, in all of its precisions, are PyTorch's."""
    with workbench(None, SMALL) as bench:
        subject, skipped = bench.base(), []
        engines = list(open_peers(subject, [(family, dtype) for dtype in PEERS[family][1]], 2, skipped))
        assert [entry for entry in skipped if "bfloat16" not in entry["name"]] == []
        ids = np.random.default_rng(0).integers(5, 30000, (3, 17))
        mask = np.ones_like(ids)
        mask[1, 9:], mask[2, 1:] = 0, 0
        exact = reference(subject)(ids, mask)
        for engine in engines:
            assert least_cosine(engine.name, engine.dtype, engine.prepare(ids, mask)(), exact) <= 1 + 1e-6


def plain(subject):
    run = reference(subject, subject.layers)
    return EncoderCandidate("plain", "float32", "torch", lambda ids, mask: lambda: run(ids, mask))


def trained(dim: int, levels: int, depth: int, width: int, coupling: str, permutation: str) -> tuple[Stage, Flow]:
    """A flow whose coupling nets matter, as a stage and as the float64 module."""
    rng = np.random.default_rng(dim + width)
    x = (rng.standard_normal((512, dim)) * rng.uniform(0.2, 2, dim) + 3 * rng.standard_normal(dim)).astype(np.float32)
    settings = {"levels": levels, "depth": depth, "width": width, "coupling": coupling, "permutation": permutation}
    stage = trained_like(x, 3, **settings)
    module = Flow(FlowConfig(dim, **settings))
    module.load_state_dict({name: torch.from_numpy(array) for name, array in stage.params.items()}, strict=True)
    return stage, module
