"""The end-to-end suite on a GPU: one text after another for latency, a whole list for throughput; tokens included.

fastflow returns calibrated vectors, its peers stop at pooled ones, which is a little less work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from fastflow.bench.measure.compare import Agreement, Measured, compare
from fastflow.bench.measure.row import Results, Row
from fastflow.bench.measure.subject import Subject
from fastflow.bench.peers.encoder import excuse, left_out, said
from fastflow.bench.peers.gpu import (
    PEERS,
    TEXTS_ONLY,
    GraphOfEachLength,
    chosen,
    open_peers,
    ours,
    sentence_transformers,
)
from fastflow.bench.peers.pytorch import settings
from fastflow.bench.peers.text_engines import Embed, TextCandidate, plain_layers
from fastflow.bench.report.ratios_texts import gpu_text_ratios
from fastflow.bench.suites import encoder_gpu
from fastflow.bench.suites.encoder_gpu import latency_quantiles
from fastflow.bench.suites.sizes import Sizes
from fastflow.bench.suites.texts import Check, Tokenize, of_texts, on_padded, real_texts, tokenizer_of
from fastflow.bench.suites.workbench import Workbench

Say = Callable[[str], None]
SHORT = 32  # tokens of the longest text timed alone
PADDED = ("torch-eager",)  # the others would compile or capture for every shape
ALONE = "torch-graph"  # one text at a time: a graph for each of the few lengths that short texts have


def run_end_to_end_gpu(
    bench: Workbench, against: Sequence[str] | None, sizes: Sizes, threads: int, say: Say
) -> Results:
    """Run the suite on the model or the shape given, else on the model in the package and BERT-base's shape."""
    families, results = chosen(against), Results()
    texts, source = real_texts(sizes.texts.most)
    for subject in bench.subjects():
        say(f"end-to-end: {subject.label}: opening the engines")
        with settings(threads):
            run_subject(subject, texts, source, families, threads, sizes, say, results)
    results.ratios = gpu_text_ratios(results.rows)
    return results


def run_subject(
    subject: Subject, texts: list[str], source: str, families: Sequence[str], threads: int, sizes: Sizes, say: Say,
    results: Results,
) -> None:  # fmt: skip
    """Check and time everybody on ``texts``; adds to ``results``."""
    tokenize = tokenizer_of(subject)
    lengths = np.diff(tokenize(texts).offsets)
    inputs = f"{source}: {len(texts)} texts, {int(lengths.sum())} tokens; peers stop at pooled vectors"
    results.subjects.append({"subject": subject.label, "inputs": inputs})
    candidates = _candidates(subject, families, tokenize, sizes.quick, results.skipped)
    short = [text for text, length in zip(texts, lengths, strict=True) if length <= SHORT]
    short = short[: sizes.texts.alone] or texts[:1]
    check = Check(subject, texts, tokenize)

    def admit(candidate: TextCandidate) -> tuple[Embed, Agreement]:
        return lambda texts: candidate.prepare(texts)(), check(candidate)

    def timer(calls: Mapping[str, Embed]) -> dict[str, tuple[list[float], list[float]]]:
        say(f"end-to-end: {subject.label}: {len(short)} texts one at a time, then {len(texts)} together")
        alone = in_turn(calls, [[text] for text in short])
        many = {key: call for key, call in calls.items() if not key.startswith(ALONE)}
        together = in_turn(many, [texts] * sizes.texts.together)
        return {key: (alone[key], together.get(key, [])) for key in calls}

    def leave_out(candidate: TextCandidate, reason: str) -> None:
        results.skipped.append(left_out(subject, candidate.name, candidate.dtype, reason))

    measured = compare(candidates, admit, timer, excuse, leave_out)
    mean = int(np.diff(tokenize(short).offsets).mean())
    for which, batch, tokens, flop in (
        (0, 1, SHORT, subject.flop(1, mean)),
        (1, len(texts), int(lengths.sum()), sum(subject.flop(1, int(n)) for n in lengths)),
    ):
        results.add(
            row(subject, found, seconds, threads, batch, tokens, flop)
            for found in measured if (seconds := found.timing[which])
        )  # fmt: skip


def row(
    subject: Subject, found: Measured[TextCandidate, Agreement, Any], seconds: Sequence[float], threads: int,
    batch: int, tokens: int, flop: float,
) -> Row:  # fmt: skip
    """The row of a candidate whose calls with ``batch`` texts took ``seconds``."""
    candidate, quantiles = found.candidate, latency_quantiles(seconds)
    ms = quantiles["median_ms"]
    return Row(
        suite="end-to-end", subject=subject.label, name=candidate.name, backend=candidate.backend,
        dtype=candidate.dtype, threads=threads, batch=batch, tokens=tokens, runs=len(seconds), calls_per_run=1,
        texts_per_s=batch / ms * 1e3, gflops=flop / ms / 1e6, **quantiles, **found.accuracy._asdict(),
    )  # fmt: skip


def in_turn(calls: Mapping[str, Embed], lists: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """Seconds of each call for each of ``lists``, alternately, every other round backwards; the first warms up."""
    seconds: dict[str, list[float]] = {key: [] for key in calls}
    for number, texts in enumerate([lists[0], *lists]):
        for key in list(calls)[:: -1 if number % 2 else 1]:
            start = perf_counter()
            calls[key](texts)
            if number:
                seconds[key].append(perf_counter() - start)
    return seconds


def _candidates(
    subject: Subject, families: Sequence[str], tokenize: Tokenize, quick: bool, skipped: list[dict[str, Any]]
) -> list[TextCandidate]:
    """Everybody who runs; Sentence Transformers' plain encoder directory gives it the mean of the last layer."""
    found = []
    for dtype, runtime in ours(subject):
        found.append(of_texts("fastflow", dtype, "triton", runtime.encode, runtime.pool))
    padding = [family for family in families if family in PADDED]
    engines = open_peers(subject, padding, encoder_gpu.WHERE, quick, skipped)
    found += [on_padded(engine, tokenize) for engine in engines]
    for dtype in PEERS[ALONE] if ALONE in families else ():
        graphs = GraphOfEachLength(subject, dtype, encoder_gpu.WHERE, tokenize)
        found.append(replace(of_texts(ALONE, dtype, "torch", graphs), alone=True))
    for dtype in PEERS[TEXTS_ONLY] if TEXTS_ONLY in families else ():
        try:
            embed = sentence_transformers(subject, dtype, encoder_gpu.WHERE)
        except Exception as error:  # somebody else's loader raises anything; the run goes on without it
            skipped.append(left_out(subject, TEXTS_ONLY, dtype, f"it cannot be opened: {said(error)}"))
            continue
        found.append(of_texts(TEXTS_ONLY, dtype, "torch", embed, layers=plain_layers(subject)))
    return found
