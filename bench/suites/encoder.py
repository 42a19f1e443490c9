"""The encoder suite: token ids to pooled vectors, both in host memory, at fixed batch x tokens.

All engines have the same weights and are checked against PyTorch in float32. GFLOP/s count the products, GB/s one read
of the layers' weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fastflow.backends.choose import open_backend
from fastflow.backends.triton import Task
from fastflow.bench.measure.compare import Deviation, compare, measure_agreement
from fastflow.bench.measure.row import BYTES, Array, Results, Row, Subject, make_row
from fastflow.bench.measure.timing import Call, Effort, Timing, alternate
from fastflow.bench.peers import gpu as gpu_peers
from fastflow.bench.peers.encoder import (
    COMPILED,
    EncoderCandidate,
    choose,
    excuse,
    list_wanted,
    open_peers,
    open_reference,
)
from fastflow.bench.peers.gpu import compiling, settings
from fastflow.bench.report.ratios import compute_encoder_ratios, compute_gpu_encoder_ratios
from fastflow.bench.suites.workbench import SuiteRun
from fastflow.model.artifact import load_model
from fastflow.model.encoder import read_config
from fastflow.model.tokenizer import Tokens

DTYPES: tuple[Any, ...] = ("float32", "bfloat16", "int8")
GPU = gpu_peers.Gpu()  # a dry run replaces it
GPU_SUITES = "the encoder suites on a GPU"


def run_encoder(request: SuiteRun) -> Results:
    """Run the suite on the model given, else on random weights."""
    results, gpu = Results(), request.on_gpu
    families = choose(request.against, gpu_peers.PEERS, GPU_SUITES) if gpu else choose(request.against)
    subject = request.bench.base() if request.bench.model is None else request.bench.pick_subject()
    where = "from host memory to host memory" if gpu else "vectors are pooled but not calibrated"
    inputs = f"random token ids, the same for everybody, texts of equal length; {where}"
    results.subjects.append({"subject": subject.label, "inputs": inputs})
    with settings(request.threads), nullcontext() if request.sizes.quick else compiling():
        request.say("encoder: opening the engines")
        engines = [*(_open_on_gpu if gpu else _open_on_cpu)(request, subject, families, results)]
        reference = open_reference(subject, device=GPU.device if gpu else "cpu")
        longest = subject.shape.positions - subject.shape.position_start
        vocabulary = int(read_config(subject.encoder)["vocab_size"])
        for batch, tokens in request.sizes.encoder.gpu if gpu else request.sizes.encoder.shapes:
            if tokens <= longest:
                request.say(f"encoder: {batch} x {tokens}, {len(engines)} engines")
                ids = np.random.default_rng(batch * 1000 + tokens).integers(5, vocabulary, (batch, tokens))
                results.add(measure_shape(subject, engines, ids, reference(ids, np.ones_like(ids)), request, results))
    results.ratios = (compute_gpu_encoder_ratios if gpu else compute_encoder_ratios)(results.rows)
    return results


def _open_on_cpu(
    request: SuiteRun, subject: Subject, families: list[str], results: Results
) -> Iterator[EncoderCandidate]:
    sizes = request.sizes
    yield from open_ours(request, subject)
    for engine in open_peers(subject, list_wanted(families, False, sizes.quick), request.threads, results):
        assert isinstance(engine, EncoderCandidate)  # noqa: S101
        yield replace(engine, shapes=sizes.encoder.chosen if engine.name == COMPILED else None)


def _open_on_gpu(
    request: SuiteRun, subject: Subject, families: list[str], results: Results
) -> Iterator[EncoderCandidate]:
    for dtype, runtime in gpu_peers.open_ours(subject):
        yield EncoderCandidate("fastflow", dtype, "triton", partial(_prepare_graph, runtime.session.backend))
    for peer in gpu_peers.open_peers(subject, families, GPU, request.sizes.quick, results):
        yield replace(peer, shapes=request.sizes.encoder.gpu_compiled if peer.name in gpu_peers.MODES else None)


def open_ours(request: SuiteRun, subject: Subject) -> Iterator[EncoderCandidate]:
    """Yield fastflow in every precision."""
    model = load_model(subject.model)
    for dtype in DTYPES:
        prepare = partial(_prepare_packed, open_backend(model, "cpu", "cpu", dtype, request.threads))
        yield EncoderCandidate("fastflow", dtype, f"cpu {find_instructions(dtype)}", prepare)


def find_instructions(dtype: str) -> str:
    """Return the instruction set of products of ``dtype``."""
    from fastflow.kernels.encoder.cpu import choose

    return str(choose(dtype)[0])


def _prepare_packed(backend: Any, ids: Array, mask: Array) -> Callable[[], Any]:
    offsets = np.concatenate([[0], np.cumsum(mask.sum(1))]).astype(np.int64)
    tokens = Tokens(ids[mask.astype(bool)].astype(np.int32), offsets, np.zeros(0, np.int64))
    return lambda: backend.pool(tokens)


def _prepare_graph(backend: Any, ids: Array, mask: Array) -> Callable[[], Any]:
    """Return the call on ids without padding; a small one has ``replay`` and ``stream`` of its CUDA graph."""
    call: Any = _prepare_packed(backend, ids, mask)
    if (graph := backend._graph(*ids.shape, Task(False, False))) is not None:
        call.replay, call.stream = graph._graph.replay, backend._computing
    return call  # type: ignore[no-any-return]


def _choose_effort(request: SuiteRun, batch: int, tokens: int) -> Effort:
    quick = request.sizes.quick
    if request.sizes.encoder.effort is not None:
        return request.sizes.encoder.effort
    if request.on_gpu:  # single calls, for quantiles
        return Effort(budget_s=1.0 if quick else 2.5, min_runs=5, max_runs=300, limit_s=10.0, sample_s=0, pause_s=0)
    pause = 5e-3  # threads of some libraries spin after a call
    if batch * tokens > 256:
        return Effort(budget_s=0, min_runs=3 if batch * tokens <= 1024 else 2, sample_s=0, pause_s=pause)
    return Effort(budget_s=4.0 if quick else 8.0, min_runs=3 if quick else 5, max_runs=40, sample_s=0, pause_s=pause)


def measure_shape(
    subject: Subject, engines: list[EncoderCandidate], ids: Array, exact: Array, request: SuiteRun, results: Results
) -> list[Row]:
    """Return the rows of a shape; a wrong or failing peer leaves ``engines``."""
    batch, tokens = ids.shape
    mask = np.ones_like(ids)
    calls: dict[str, Call] = {}

    def admit(candidate: EncoderCandidate) -> tuple[Call, Deviation]:
        call = candidate.prepare(ids, mask)
        found = measure_agreement(candidate, np.array(call()), exact)
        for _ in range(2 if batch * tokens <= 256 else 0):  # some engines prepare themselves in the first calls
            call()
        return call, found

    def leave_out(candidate: EncoderCandidate, reason: str) -> None:
        results.leave_out(subject.label, candidate.key, f"{batch} x {tokens}: {reason}")
        engines.remove(candidate)

    def time_all(admitted: Mapping[str, Call]) -> Mapping[str, Timing]:
        calls.update(admitted)
        return alternate(admitted, _choose_effort(request, batch, tokens))

    rows = []
    taking_part = [engine for engine in engines if engine.shapes is None or (batch, tokens) in engine.shapes]
    for candidate, accuracy, timing in compare(taking_part, admit, time_all, excuse, leave_out):
        traffic = float(subject.matrix_weights() * BYTES[candidate.dtype])
        rows.append(make_row(
            "encoder", subject=subject.label, **candidate.as_fields(), threads=request.threads, batch=batch,
            tokens=tokens, **timing._asdict(), **accuracy._asdict(),
            gflops=subject.flop(batch, tokens) / timing.median_ms / 1e6, gbs=traffic / timing.median_ms / 1e6,
            gpu_ms=GPU.busy(calls[candidate.key]) if request.on_gpu else None,
        ))  # fmt: skip
    return rows
