"""The encoder suite: token ids in, pooled vectors out, at fixed batch x tokens, by fastflow and by its peers.

Everybody runs the same weights with the same number of threads, is checked against PyTorch in float32, and takes turns
with the others. GFLOP/s count the products, GB/s the layers' weights read once; the floor is the longer of what the
measured ceilings allow for both: in bfloat16 and int8 those of AMX's tiles, or twice and four times float32's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fastflow.backends.choose import open_backend
from fastflow.bench.measure.compare import Agreement, Measured, agreement, compare
from fastflow.bench.measure.machine import Ceilings, ceilings, peak_gflops
from fastflow.bench.measure.probe import Probe
from fastflow.bench.measure.row import Results, Row
from fastflow.bench.measure.subject import BYTES, Array, Subject
from fastflow.bench.measure.timing import Call, Effort, Timing, alternate
from fastflow.bench.peers.encoder import (
    COMPILED,
    PEERS,
    TEXTS,
    EncoderCandidate,
    chosen,
    excuse,
    left_out,
    open_peers,
    said,
)
from fastflow.bench.peers.pooled import reference
from fastflow.bench.peers.pytorch import compiling, settings
from fastflow.bench.report.ratios_texts import encoder_ratios
from fastflow.bench.suites.sizes import Shape, Sizes
from fastflow.bench.suites.workbench import Workbench
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.encoder.architecture import read_config
from fastflow.model.tokenizer.encode import Tokens

FORCED = ("avx2", "portable")
DTYPES = ("float32", "bfloat16", "int8")
READ_MB = 256.0  # a thread: far beyond the caches
Say = Callable[[str], None]
Limits = Callable[[str, float, float], tuple[float, float]]  # dtype, operations, bytes -> milliseconds for either


def run_encoder(bench: Workbench, against: Sequence[str] | None, sizes: Sizes, threads: int, say: Say) -> Results:
    """Run the suite on the model given, else on BERT-base with random weights."""
    families = [name for name in chosen(against) if name not in TEXTS]
    results = Results()
    say("encoder: measuring the machine's ceilings")
    limit = ceilings([threads], sizes.probe_s)[threads]
    read = read_gbs(threads, sizes.probe_s) or limit.gbs["memory"]
    results.ceilings = [limit.as_dict() | {"read_gbs": round(read, 1)}]
    say("encoder: opening the engines")
    subject = bench.base() if bench.model is None else bench.named()
    inputs = "random token ids, the same for everybody, texts of equal length; vectors are pooled but not calibrated"
    results.subjects.append({"subject": subject.label, "inputs": inputs})
    wanted = [(f, d) for f in families if not (sizes.quick and f in COMPILED) for d in PEERS[f][1]]
    with settings(threads), nullcontext() if sizes.quick else compiling():
        engines = [*ours(subject, threads, sizes, results.skipped)]
        for engine in open_peers(subject, wanted, threads, results.skipped):
            # torch.compile takes long for each shape
            engines.append(replace(engine, shapes=sizes.encoder.chosen if engine.name == "torch-compile" else None))
        limits = partial(floors_ms, limit, read)

        def effort(batch: int, tokens: int) -> Effort:
            return sizes.encoder.effort or effort_of(batch, tokens, sizes.quick)

        measure(subject, engines, sizes.encoder.shapes, effort, limits, threads, say, results)
    results.ratios = encoder_ratios(results.rows)
    return results


def measure(
    subject: Subject, engines: list[EncoderCandidate], shapes: Sequence[Shape], effort: Callable[[int, int], Effort],
    limits: Limits, threads: int, say: Say, results: Results, busy: Callable[[Call], float | None] | None = None,
    device: str = "cpu",
) -> None:  # fmt: skip
    """Check and time everybody at every shape that the encoder takes; adds to ``results``.

    ``busy``: on a GPU, the milliseconds of its time that a call takes, None for one that does not show them.
    ``device``: where the vectors are computed that everybody is checked against.
    """
    exact, longest = reference(subject, device=device), subject.shape.positions - subject.shape.position_start
    vocabulary = int(read_config(subject.encoder)["vocab_size"])
    for batch, tokens in shapes:
        if tokens > longest:
            continue
        say(f"encoder: {batch} x {tokens}, {len(engines)} engines")
        ids = np.random.default_rng(batch * 1000 + tokens).integers(5, vocabulary, (batch, tokens))
        most = effort(batch, tokens)
        results.add(measure_shape(subject, engines, ids, exact, threads, limits, results.skipped, most, busy))


def floors_ms(limit: Ceilings, read: float, dtype: str, flop: float, traffic: float) -> tuple[float, float]:
    """The least time for ``flop`` operations in ``dtype``, and for reading ``traffic`` bytes."""
    return flop / peak_gflops(limit.as_dict(), dtype) / 1e6, traffic / read / 1e6


def read_gbs(threads: int, seconds: float) -> float | None:
    """10^9 bytes a second that ``threads`` threads read from memory; None if nothing can be compiled."""
    try:
        return Probe().read_gbs(threads, READ_MB, seconds)
    except FastflowError:
        return None  # the caller takes PyTorch's copy rate, and the ceilings' source gives the reason


def ours(subject: Subject, threads: int, sizes: Sizes, skipped: list[dict[str, Any]]) -> Iterator[EncoderCandidate]:
    """fastflow's encoder: every precision on the best instruction set, then unless quick on lesser ones, forced."""
    model = load_model(subject.model)

    def opened(dtype: str) -> Callable[[Array, Array], Callable[[], Any]]:
        backend = open_backend(model, "cpu", "cpu", dtype, threads)
        return lambda ids, mask: packed(backend, ids, mask)

    best, few = {}, sizes.encoder.chosen
    for dtype in DTYPES:
        best[dtype] = body = body_of(dtype)
        yield EncoderCandidate("fastflow", dtype, f"cpu {body}", opened(dtype))
    for isa in () if sizes.quick else FORCED:
        for dtype in DTYPES:
            if best[dtype] == isa:
                continue
            try:
                with forced(isa):
                    yield EncoderCandidate(f"fastflow-{isa}", dtype, f"cpu {body_of(dtype)}", opened(dtype), few)
            except (FastflowError, ValueError) as error:
                skipped.append(left_out(subject, f"fastflow-{isa}", dtype, said(error)))


def body_of(dtype: str) -> str:
    """The instruction set that products of ``dtype`` run on, as things stand."""
    from fastflow.kernels.encoder.cpu import choose

    return str(choose(dtype)[0])


@contextmanager
def forced(isa: str) -> Iterator[None]:
    """FASTFLOW_ISA set, as an encoder reads it when it is made."""
    before = os.environ.get("FASTFLOW_ISA")
    os.environ["FASTFLOW_ISA"] = isa
    try:
        yield
    finally:
        if before is None:
            del os.environ["FASTFLOW_ISA"]
        else:
            os.environ["FASTFLOW_ISA"] = before


def packed(backend: Any, ids: Array, mask: Array) -> Callable[[], Any]:
    """The call that gives ``backend`` the tokens of (B, T) ids, without padding."""
    offsets = np.concatenate([[0], np.cumsum(mask.sum(1))]).astype(np.int64)
    tokens = Tokens(ids[mask.astype(bool)].astype(np.int32), offsets, np.zeros(0, np.int64))
    return lambda: backend.pool(tokens)


def effort_of(batch: int, tokens: int, quick: bool) -> Effort:
    """Time for one shape, all candidates together."""
    few = batch * tokens > 256
    pause = 5e-3  # some libraries' threads spin a little after a call
    if few:
        return Effort(budget_s=0, min_runs=3 if batch * tokens <= 1024 else 2, sample_s=0, pause_s=pause)
    return Effort(budget_s=4.0 if quick else 8.0, min_runs=3 if quick else 5, max_runs=40, sample_s=0, pause_s=pause)


def measure_shape(
    subject: Subject, candidates: list[EncoderCandidate], ids: Array, reference: Callable[[Array, Array], Array],
    threads: int, limits: Limits, skipped: list[dict[str, Any]], effort: Effort,
    busy: Callable[[Call], float | None] | None = None,
) -> list[Row]:  # fmt: skip
    """The rows of one shape. Who is wrong or fails is named in ``skipped`` and, among the peers, not asked again."""
    batch, tokens = ids.shape
    mask = np.ones_like(ids)
    exact = reference(ids, mask)

    def admit(candidate: EncoderCandidate) -> tuple[Call, Agreement]:
        call = candidate.prepare(ids, mask)
        found = agreement(candidate, np.array(call()), exact)
        for _ in range(2 if batch * tokens <= 256 else 0):  # some engines prepare themselves in the first calls
            call()
        return call, found

    def leave_out(candidate: EncoderCandidate, reason: str) -> None:
        skipped.append(left_out(subject, candidate.name, candidate.dtype, f"{batch} x {tokens}: {reason}"))
        candidates.remove(candidate)

    calls: dict[str, Call] = {}

    def timer(admitted: Mapping[str, Call]) -> Mapping[str, Timing]:
        calls.update(admitted)
        return alternate(admitted, effort)

    measured = compare(
        [c for c in candidates if c.shapes is None or (batch, tokens) in c.shapes], admit,
        timer=timer, excuse=excuse, leave_out=leave_out,
    )  # fmt: skip
    rows = [row(subject, found, batch, tokens, threads, limits) for found in measured]
    if busy is None:
        return rows
    return [replace(one, gpu_ms=busy(calls[found.candidate.key])) for one, found in zip(rows, measured, strict=True)]


def row(
    subject: Subject, found: Measured[EncoderCandidate, Agreement, Timing], batch: int, tokens: int, threads: int,
    limits: Limits,
) -> Row:  # fmt: skip
    """The row of a candidate, its work counted and compared with ``limits``."""
    candidate, ms = found.candidate, found.timing.median_ms
    flop, traffic = subject.flop(batch, tokens), float(subject.matrix_weights() * BYTES[candidate.dtype])
    compute, reading = limits(candidate.dtype, flop, traffic)
    floor = max(compute, reading)
    return Row.timed(
        found.timing, suite="encoder", subject=subject.label, name=candidate.name, backend=candidate.backend,
        dtype=candidate.dtype, threads=threads, batch=batch, tokens=tokens, **found.accuracy._asdict(),
        gflops=flop / ms / 1e6, gbs=traffic / ms / 1e6, compute_fraction=compute / ms,
        bandwidth_fraction=reading / ms, floor_ms=floor, times_floor=ms / floor,
    )  # fmt: skip
