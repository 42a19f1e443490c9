"""How much each suite measures; QUICK for ``--quick``, else FULL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastflow.bench.measure.timing import Effort

Shape = tuple[int, int]  # batch x tokens


@dataclass(frozen=True)
class FlowSizes:
    """Rows of a batch and seconds of the flow suite."""

    batches: tuple[int, ...] = (1, 8, 32, 256, 1024, 16384)
    affine: tuple[int, ...] = (1, 32, 1024)  # batches of the affine flow and of the flow with recolour
    dim: int = 768  # channels of the synthetic vectors
    model_rows: int = 256  # distinct sentences of a model's own inputs
    seconds: float = 300  # after which no comparison begins
    budgets: tuple[float, float] = (6.0, 10.0)  # seconds for a comparison, and for one of over 10,000 rows
    compiled: frozenset[int] | None = None  # batches at which compiled peers run; None: all
    effort: Effort | None = None  # for every comparison; None: depends on the batch


@dataclass(frozen=True)
class EncoderSizes:
    """Shapes of batches of token ids, texts of equal length."""

    shapes: tuple[Shape, ...] = ((1, 8), (1, 16), (1, 32), (8, 32), (32, 32), (32, 128))
    chosen: frozenset[Shape] = frozenset({(1, 16), (8, 32)})  # shapes for compiled PyTorch
    gpu: tuple[Shape, ...] = ((1, 12), (256, 128), (1, 128), (32, 32))
    gpu_compiled: frozenset[Shape] = frozenset({(1, 12), (256, 128)})  # torch.compile takes long for each shape
    effort: Effort | None = None  # for every shape; None: depends on the tokens


@dataclass(frozen=True)
class TextSizes:
    """Texts of the end-to-end suites."""

    most: int | None = None  # most texts, spread over the list; None: all
    alone: int = 100  # texts embedded one at a time, on a GPU
    together: int = 3  # repetitions of the whole list, on a GPU


@dataclass(frozen=True)
class ServeSizes:
    """Loads of the serve suite."""

    texts: int = 256  # distinct texts
    shares: tuple[float, ...] = (0.1, 0.5, 0.9, 3.0)  # loads, as shares of the Runtime's rate
    seconds: float = 8.0  # of each load
    lead: float = 1.0  # untimed seconds before: an overload begins with a burst
    most: int = 20_000  # requests of each load
    connections: int = 4000  # more than the queue, so that clients hold no request back


@dataclass(frozen=True)
class Sizes:
    """All sizes of a run."""

    quick: bool = False  # nothing is compiled
    flow: FlowSizes = FlowSizes()
    gpu_flow: FlowSizes = FlowSizes(
        batches=(1, 32, 1024, 65_536, 1_000_000), affine=(1, 1024), budgets=(1.5, 1.5),
        compiled=frozenset({1, 1024}),
    )  # fmt: skip
    encoder: EncoderSizes = EncoderSizes()
    texts: TextSizes = TextSizes()
    serve: ServeSizes = ServeSizes()
    rerank: tuple[Shape, ...] = ((100, 20), (100, 120), (100, 400))  # documents x tokens of a document
    duplicates: tuple[int, ...] = (10_000, 100_000, 1_000_000)  # texts
    probe: tuple[float, int] = (0.05, 0)  # seconds of a sample of the ceilings; side of its matrices (0: default)
    starts: int = 5  # timed starts of each process
    bert: Mapping[str, Any] = field(default_factory=dict)  # differences of the random BERT from BERT-base


FULL = Sizes()
QUICK = Sizes(
    quick=True, flow=FlowSizes(batches=(1, 32, 1024), seconds=35, budgets=(2.5, 2.5)),
    gpu_flow=FlowSizes(batches=(1, 1024), seconds=20, budgets=(0.5, 0.5)),
    encoder=EncoderSizes(shapes=((1, 16), (8, 32)), gpu=((1, 12), (32, 32))), texts=TextSizes(most=128, alone=40),
    serve=ServeSizes(texts=64, shares=(0.5, 3.0), seconds=1.0, lead=0.2, most=2000, connections=64), starts=2,
    probe=(0.005, 1024), duplicates=(2000,),
)  # fmt: skip
