"""The encoder suite: token ids in host memory in, pooled vectors out, at fixed batch x tokens.

Everybody runs the same weights and is checked against PyTorch in float32. GFLOP/s count the products, GB/s the
layers' weights once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fastflow.backends.choose import open_backend
from fastflow.backends.triton import Task
from fastflow.bench.measure.compare import Agreement, compare, measure_agreement
from fastflow.bench.measure.row import Results, Row, make_row
from fastflow.bench.measure.subject import BYTES, Array, Subject
from fastflow.bench.measure.timing import Call, Effort, Timing, alternate
from fastflow.bench.peers import gpu as gpu_peers
from fastflow.bench.peers.encoder import (
    COMPILED,
    PEERS,
    EncoderCandidate,
    choose,
    excuse,
    list_wanted,
    open_peers,
    open_reference,
)
from fastflow.bench.peers.gpu import compiling, settings
from fastflow.bench.report.ratios import compute_encoder_ratios, compute_gpu_encoder_ratios
from fastflow.bench.suites.sizes import Shape
from fastflow.bench.suites.workbench import Request
from fastflow.model.artifact import load_model
from fastflow.model.encoder.architecture import read_config
from fastflow.model.tokenizer.encode import Tokens

DTYPES = ("float32", "bfloat16", "int8")
GPU = gpu_peers.Gpu()  # a dry run replaces it
GPU_SUITES = "the encoder suites on a GPU"


class Course(NamedTuple):
    """Everybody at every shape."""

    engines: list[EncoderCandidate]
    shapes: tuple[Shape, ...]
    effort: Callable[[int, int], Effort]  # of batch x tokens
    gpu: gpu_peers.Gpu | None = None


def run_encoder(request: Request) -> Results:
    """Run the suite on the model given, else on random weights of a shape."""
    results, gpu, quick = Results(), request.on_gpu, request.sizes.quick
    families = choose(request.against, gpu_peers.PEERS, GPU_SUITES) if gpu else choose(request.against)
    subject = request.bench.base() if request.bench.model is None else request.bench.named()
    where = "from host memory to host memory" if gpu else "vectors are pooled but not calibrated"
    inputs = f"random token ids, the same for everybody, texts of equal length; {where}"
    results.subjects.append({"subject": subject.label, "inputs": inputs})
    with settings(request.threads), nullcontext() if quick else compiling():
        course = (_plan_on_gpu if gpu else _plan_on_cpu)(request, subject, families, results)
        measure(subject, course, request, results)
    results.ratios = (compute_gpu_encoder_ratios if gpu else compute_encoder_ratios)(results.rows)
    return results


def _plan_on_cpu(request: Request, subject: Subject, families: list[str], results: Results) -> Course:
    sizes, threads = request.sizes, request.threads
    request.say("encoder: opening the engines")
    engines = [*open_ours(request, subject)]
    ids_only = [family for family in families if not PEERS[family].takes_texts]
    for engine in open_peers(subject, list_wanted(ids_only, False, sizes.quick), threads, results):
        assert isinstance(engine, EncoderCandidate)  # noqa: S101 - for the type checker
        # torch.compile takes long for each shape
        engines.append(replace(engine, shapes=sizes.encoder.chosen if engine.name == COMPILED else None))

    def effort(batch: int, tokens: int) -> Effort:
        return sizes.encoder.effort or _choose_effort(batch, tokens, sizes.quick)

    return Course(engines, sizes.encoder.shapes, effort)


def _plan_on_gpu(request: Request, subject: Subject, families: list[str], results: Results) -> Course:
    sizes, quick = request.sizes.encoder, request.sizes.quick
    request.say("encoder: opening the engines")
    engines = [
        EncoderCandidate("fastflow", dtype, "triton", partial(_prepare_graph, runtime.session.backend))
        for dtype, runtime in gpu_peers.open_ours(subject)
    ]
    for peer in gpu_peers.open_peers(subject, families, GPU, quick, results):
        engines.append(replace(peer, shapes=sizes.gpu_compiled if peer.name in gpu_peers.MODES else None))
    single = Effort(budget_s=1.0 if quick else 2.5, min_runs=5, max_runs=300, limit_s=10.0, sample_s=0, pause_s=0)
    effort = sizes.effort or single
    return Course(engines, sizes.gpu, lambda batch, tokens: effort, GPU)


def measure(subject: Subject, course: Course, request: Request, results: Results) -> None:
    """Check and time everybody at every shape that fits."""
    exact = open_reference(subject, device=course.gpu.device if course.gpu else "cpu")
    longest = subject.shape.positions - subject.shape.position_start
    vocabulary = int(read_config(subject.encoder)["vocab_size"])
    for batch, tokens in course.shapes:
        if tokens <= longest:
            request.say(f"encoder: {batch} x {tokens}, {len(course.engines)} engines")
            ids = np.random.default_rng(batch * 1000 + tokens).integers(5, vocabulary, (batch, tokens))
            results.add(measure_shape(subject, course, ids, exact, request.threads, results))


def open_ours(request: Request, subject: Subject) -> Iterator[EncoderCandidate]:
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
    """Return the packed call; a small one has the ``replay`` and ``stream`` of its graph."""
    call: Any = _prepare_packed(backend, ids, mask)
    if (graph := backend._graph(*ids.shape, Task(False, False))) is not None:
        call.replay, call.stream = graph._graph.replay, backend._computing
    return call  # type: ignore[no-any-return]


def _choose_effort(batch: int, tokens: int, quick: bool) -> Effort:
    pause = 5e-3  # some libraries' threads spin a little after a call
    if batch * tokens > 256:
        return Effort(budget_s=0, min_runs=3 if batch * tokens <= 1024 else 2, sample_s=0, pause_s=pause)
    return Effort(budget_s=4.0 if quick else 8.0, min_runs=3 if quick else 5, max_runs=40, sample_s=0, pause_s=pause)


def measure_shape(
    subject: Subject, course: Course, ids: Array, reference: Callable[[Array, Array], Array], threads: int,
    results: Results,
) -> list[Row]:  # fmt: skip
    """Return the rows of a shape; a wrong or failing peer is left out, also of later shapes."""
    batch, tokens = ids.shape
    mask = np.ones_like(ids)
    exact = reference(ids, mask)
    calls: dict[str, Call] = {}

    def admit(candidate: EncoderCandidate) -> tuple[Call, Agreement]:
        call = candidate.prepare(ids, mask)
        found = measure_agreement(candidate, np.array(call()), exact)
        for _ in range(2 if batch * tokens <= 256 else 0):  # some engines prepare themselves in the first calls
            call()
        return call, found

    def leave_out(candidate: EncoderCandidate, reason: str) -> None:
        results.leave_out(subject.label, candidate.key, f"{batch} x {tokens}: {reason}")
        course.engines.remove(candidate)

    def time_all(admitted: Mapping[str, Call]) -> Mapping[str, Timing]:
        calls.update(admitted)
        return alternate(admitted, course.effort(batch, tokens))

    rows = []
    taking_part = [c for c in course.engines if c.shapes is None or (batch, tokens) in c.shapes]
    for candidate, accuracy, timing in compare(taking_part, admit, time_all, excuse, leave_out):
        traffic = float(subject.matrix_weights() * BYTES[candidate.dtype])
        rows.append(make_row(
            "encoder", subject=subject.label, **candidate.as_fields(), threads=threads, batch=batch, tokens=tokens,
            **timing._asdict(), **accuracy._asdict(), gflops=subject.flop(batch, tokens) / timing.median_ms / 1e6,
            gbs=traffic / timing.median_ms / 1e6,
            gpu_ms=course.gpu.busy(calls[candidate.key]) if course.gpu else None,
        ))  # fmt: skip
    return rows
