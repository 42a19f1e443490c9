"""Sizes of benchmarks that end at once, and their subjects."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fastflow.bench.measure.row import Subject
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers.encoder import EncoderCandidate, open_reference
from fastflow.bench.suites.flow import make_trained_like
from fastflow.bench.suites.sizes import EncoderSizes, FlowSizes, Sizes, TextSizes
from fastflow.bench.suites.workbench import SuiteRun, Workbench
from fastflow.errors import missing_extra
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.transforms.calibration import Stage

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


def needs(*modules: str) -> None:
    """Skip a test of a peer whose modules are not installed."""
    for module in modules:
        pytest.importorskip(module, reason="this peer is not installed", exc_type=ImportError)


def subject_of(folder: Path, model: Path) -> Subject:
    place = folder / f"of-{model.name}"
    place.mkdir()
    return Workbench(place, str(model)).pick_subject()


def absent(modules: str) -> str:
    return str(missing_extra("peers", modules, "this peer"))


def ask(bench: Workbench, against: list[str] | None, sizes: Sizes, threads: int = 1, **more) -> SuiteRun:
    """A request that says nothing."""
    return SuiteRun(bench, against, sizes, threads, lambda message: None, **more)


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
