"""The end-to-end suite on a GPU: one text after another for latency, a whole list for throughput; tokens included.

fastflow returns calibrated vectors, its peers stop at pooled ones, which is a little less work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from fastflow.bench.measure.row import Row
from fastflow.bench.peers.encoder import Engine, left_out, said
from fastflow.bench.peers.gpu import PEERS, TEXTS_ONLY, chosen, open_peers, ours, sentence_transformers
from fastflow.bench.peers.pytorch import settings
from fastflow.bench.report.ratios_gpu import text_ratios
from fastflow.bench.suites import encoder_gpu
from fastflow.bench.suites.encoder_gpu import latency_quantiles
from fastflow.bench.suites.end_to_end import CHECKED, Embed, Entry, padded, real_texts
from fastflow.bench.suites.flow import Results
from fastflow.bench.suites.workbench import Subject, Workbench, least_cosine, reference
from fastflow.model.tokens import Tokenizer

Say = Callable[[str], None]
SHORT = 32  # tokens of the longest text timed alone
ALONE, QUICK_ALONE = 300, 40  # texts embedded one at a time
TOGETHER = 4  # times that the whole list is embedded
PADDED = ("torch-eager",)  # the others would compile or capture for every shape


def run_end_to_end_gpu(bench: Workbench, against: Sequence[str] | None, quick: bool, threads: int, say: Say) -> Results:
    """Run the suite on BERT-base with random weights and on the model given, else the one in the package."""
    families, results = chosen(against), Results()
    texts, source = real_texts(quick)
    for subject in dict.fromkeys((bench.named(), bench.base())):
        say(f"end-to-end: {subject.label}: opening the engines")
        with settings(threads):
            run_subject(subject, texts, source, families, threads, quick, say, results)
    results.ratios = text_ratios(results.rows)
    return results


def run_subject(
    subject: Subject, texts: list[str], source: str, families: Sequence[str], threads: int, quick: bool, say: Say,
    results: Results,
) -> None:  # fmt: skip
    """Check and time everybody on ``texts``; adds to ``results``."""
    tokenize = Tokenizer(subject.encoder, subject.max_length)
    lengths = np.diff(tokenize(texts).offsets)
    inputs = f"{source}: {len(texts)} texts, {int(lengths.sum())} tokens; peers stop at pooled vectors"
    results.subjects.append({"subject": subject.label, "inputs": inputs})
    sample = np.unique(np.linspace(0, len(texts) - 1, min(CHECKED, len(texts))).astype(int))
    few = [texts[i] for i in sample]
    calls: dict[tuple[str, str], Embed] = {}
    facts: dict[tuple[str, str], dict[str, Any]] = {}
    for engine, embed, pool, layers in _candidates(subject, families, tokenize, quick, results.skipped):
        exact = padded(reference(subject, layers), tokenize)(few)
        try:
            z = pool(few)
            cosine = least_cosine(engine.name, engine.dtype, z, exact)
        except Exception as error:  # a wrong or failing engine is an entry with its reason, whoever raised it
            if engine.name == "fastflow":
                raise
            results.skipped.append(left_out(subject, engine.name, engine.dtype, said(error)))
            continue
        key = engine.name, engine.dtype
        calls[key] = embed
        facts[key] = {"backend": engine.backend, "least_cosine": cosine, "max_abs_err": float(np.abs(z - exact).max())}
    short = [text for text, length in zip(texts, lengths, strict=True) if length <= SHORT]
    short = short[: QUICK_ALONE if quick else ALONE] or texts[:1]
    say(f"end-to-end: {subject.label}: {len(short)} texts one at a time, then {len(texts)} together")
    for batch, timings in ((1, in_turn(calls, [[t] for t in short])), (len(texts), in_turn(calls, [texts] * TOGETHER))):
        tokens = int(lengths.sum()) if batch > 1 else SHORT
        per_call = [int(n) for n in lengths] if batch > 1 else [int(np.diff(tokenize(short).offsets).mean())]
        flop = sum(subject.flop(1, n) for n in per_call)
        for key, seconds in timings.items():
            quantiles = latency_quantiles(seconds)
            ms = quantiles["median_ms"]
            row = Row(
                suite="end-to-end", subject=subject.label, name=key[0], dtype=key[1], threads=threads, batch=batch,
                tokens=tokens, runs=len(seconds), calls_per_run=1, texts_per_s=batch / ms * 1e3,
                gflops=flop / ms / 1e6, **quantiles, **facts[key],
            )  # fmt: skip
            results.add([row])


def in_turn(
    calls: Mapping[tuple[str, str], Embed], lists: Sequence[Sequence[str]]
) -> dict[tuple[str, str], list[float]]:
    """Seconds that each call takes for each of ``lists``, in turn, every other round backwards; the first warms up."""
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for number, texts in enumerate([lists[0], *lists]):
        for key in list(calls)[:: -1 if number % 2 else 1]:
            start = perf_counter()
            calls[key](texts)
            if number:
                seconds[key].append(perf_counter() - start)
    return seconds


def _candidates(
    subject: Subject, families: Sequence[str], tokenize: Tokenizer, quick: bool, skipped: list[dict[str, Any]]
) -> list[Entry]:
    """Everybody who runs; Sentence Transformers' plain encoder directory gives it the mean of the last layer."""
    found: list[Entry] = []
    for dtype, runtime in ours(subject):
        engine = Engine("fastflow", dtype, "triton", lambda ids, mask: lambda: None)
        found.append((engine, runtime.encode, runtime.pool, None))
    padding = [family for family in families if family in PADDED]
    for engine in open_peers(subject, padding, encoder_gpu.WHERE, quick, skipped):
        embed = padded(lambda ids, mask, e=engine: e.prepare(ids, mask)(), tokenize)  # type: ignore[misc]
        found.append((engine, embed, embed, None))
    for dtype in PEERS[TEXTS_ONLY] if TEXTS_ONLY in families else ():
        try:
            embed = sentence_transformers(subject, dtype, encoder_gpu.WHERE)
        except Exception as error:  # somebody else's loader raises anything; the run goes on without it
            skipped.append(left_out(subject, TEXTS_ONLY, dtype, f"it cannot be opened: {said(error)}"))
            continue
        engine = Engine(TEXTS_ONLY, dtype, "torch", lambda ids, mask: lambda: None)
        found.append((engine, embed, embed, (subject.depth,)))
    return found
