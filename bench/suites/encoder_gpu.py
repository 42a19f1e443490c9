"""The encoder suite on a GPU: token ids in host memory -> pooled vectors in host memory, at fixed batch x tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fastflow.backends.triton import Task
from fastflow.bench.measure.row import Results
from fastflow.bench.measure.subject import Array
from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers.encoder import EncoderCandidate
from fastflow.bench.peers.gpu import MODES, Gpu, chosen, open_peers, ours
from fastflow.bench.peers.pytorch import compiling, settings
from fastflow.bench.report.ratios_texts import gpu_encoder_ratios
from fastflow.bench.suites.encoder import Say, measure, packed
from fastflow.bench.suites.sizes import Sizes
from fastflow.bench.suites.workbench import Workbench

WHERE = Gpu()  # a dry run puts another in its place


def run_encoder_gpu(bench: Workbench, against: Sequence[str] | None, sizes: Sizes, threads: int, say: Say) -> Results:
    """Run the suite on the model given, else on random weights of the shape given, BERT-base's if none is."""
    results, families = Results(), chosen(against)
    say("encoder: measuring the GPU's ceilings")
    limits = WHERE.ceilings(sizes.gpu_probe_s)
    results.ceilings = [limits.as_dict()]
    subject = bench.base() if bench.model is None else bench.named()
    inputs = "random token ids, the same for everybody, texts of equal length; from host memory to host memory"
    results.subjects.append({"subject": subject.label, "inputs": inputs})
    say("encoder: opening the engines")
    with settings(threads), nullcontext() if sizes.quick else compiling():
        engines = [
            EncoderCandidate("fastflow", dtype, "triton", partial(prepare, runtime.session.backend))
            for dtype, runtime in ours(subject)
        ]
        for peer in open_peers(subject, families, WHERE, sizes.quick, results.skipped):
            shapes = sizes.encoder.gpu_compiled if peer.name in MODES else None
            engines.append(replace(peer, shapes=shapes))
        effort = sizes.encoder.effort or effort_of(sizes.quick)
        every, floors = sizes.encoder.gpu, limits.floors_ms
        measure(
            subject,
            engines,
            every,
            lambda batch, tokens: effort,
            floors,
            threads,
            say,
            results,
            WHERE.busy,
            WHERE.device,
        )
    results.ratios = gpu_encoder_ratios(results.rows)
    return results


def prepare(backend: Any, ids: Array, mask: Array) -> Callable[[], Any]:
    """The call of ``packed``, with its graph's ``replay`` and ``stream`` if it is small enough for a graph."""
    call: Any = packed(backend, ids, mask)
    if (graph := backend._graph(*ids.shape, Task(False, False))) is not None:
        call.replay, call.stream = graph._graph.replay, backend._computing
    return call  # type: ignore[no-any-return]


def effort_of(quick: bool) -> Effort:
    """Time for one shape, all candidates together; single calls, since the quantiles of single calls are asked for."""
    return Effort(budget_s=1.0 if quick else 2.5, min_runs=5, max_runs=300, limit_s=10.0, sample_s=0, pause_s=0)


def latency_quantiles(seconds: Sequence[float]) -> dict[str, Any]:
    """Milliseconds of single calls: 20, 50, 80, 95 and 99 %."""
    names = {"p20_ms": 0.2, "median_ms": 0.5, "p80_ms": 0.8, "p95_ms": 0.95, "p99_ms": 0.99}
    return {name: float(np.quantile(seconds, q)) * 1e3 for name, q in names.items()}
