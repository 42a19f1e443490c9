"""Sizes and ceilings of benchmarks that end at once, and what they are of."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from fastflow.bench.measure.compare import check_cosine
from fastflow.bench.measure.row import Results
from fastflow.bench.measure.subject import Subject
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers.encoder import PEERS, EncoderCandidate, open_peers
from fastflow.bench.peers.pooled import open_reference
from fastflow.bench.suites.sizes import EncoderSizes, FlowSizes, Sizes, TextSizes
from fastflow.bench.suites.workbench import Request, Workbench, open_workbench
from fastflow.bench.suites.workloads import make_trained_like
from fastflow.errors import missing_extra
from fastflow.stages.calibration import Stage
from fastflow.train.methods.flow import Flow, FlowConfig

FLOW = Sizes(
    quick=True,
    flow=FlowSizes(
        batches=(1, 3), affine=(1, 3), dim=64, model_rows=8,
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


ENGINES = ("onnxruntime", "onnxruntime-plain", "openvino")  # of ids, installed or not


def needs(*modules: str, load: bool = True) -> None:
    """Skip a test of a peer whose modules are not installed; not ``load``: without importing them here."""
    for module in modules:
        if load:
            pytest.importorskip(module, reason="this peer is not installed", exc_type=ImportError)
        elif find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def subject_of(folder: Path, model: Path) -> Subject:
    """The ``model`` given as the benches' subject, whose files lie in a folder of their own."""
    place = folder / f"of-{model.name}"
    place.mkdir()
    return Workbench(place, str(model)).named()


def absent(modules: str) -> str:
    """The reason for a peer whose modules are not installed."""
    return str(missing_extra("peers", modules, "this peer"))


def check_agreement(family: str) -> None:
    """The vectors of ``family``, in all of its precisions, are PyTorch's."""
    with open_workbench(None, SMALL) as bench:
        subject, results = bench.base(), Results()
        engines = list(open_peers(subject, [(family, dtype) for dtype in PEERS[family].dtypes], 2, results))
        assert [entry for entry in results.skipped if "bfloat16" not in entry["name"]] == []
        ids = np.random.default_rng(0).integers(5, 30000, (3, 17))
        mask = np.ones_like(ids)
        mask[1, 9:], mask[2, 1:] = 0, 0
        exact = open_reference(subject)(ids, mask)
        for engine in engines:
            assert check_cosine(engine.name, engine.dtype, engine.prepare(ids, mask)(), exact) <= 1 + 1e-6


def ask(bench: Workbench, against: list[str] | None, sizes: Sizes, threads: int = 1, **more) -> Request:
    """A request that says nothing."""
    return Request(bench, against, sizes, threads, lambda message: None, **more)


def plain(subject):
    """A candidate that forgets the weights of tokens."""
    run = open_reference(subject, subject.layers)
    return EncoderCandidate("plain", "float32", "torch", lambda ids, mask: lambda: run(ids, mask))


def trained(dim: int, levels: int, depth: int, width: int, coupling: str, permutation: str) -> tuple[Stage, Flow]:
    """A flow whose coupling nets matter, as a stage and as the float64 module."""
    rng = np.random.default_rng(dim + width)
    x = (rng.standard_normal((512, dim)) * rng.uniform(0.2, 2, dim) + 3 * rng.standard_normal(dim)).astype(np.float32)
    settings = {"levels": levels, "depth": depth, "width": width, "coupling": coupling, "permutation": permutation}
    stage = make_trained_like(x, 3, **settings)
    module = Flow(FlowConfig(dim, **settings))
    module.load_state_dict({name: torch.from_numpy(array) for name, array in stage.params.items()}, strict=True)
    return stage, module
