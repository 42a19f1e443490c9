"""The end-to-end suite: texts to vectors, tokenisation included.

fastflow and Sentence Transformers get the list as given. Engines of padded ids get sorted batches of the same
tokenizer, and stop at the pooled vectors. On a GPU single texts are timed too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from fastflow.bench.measure.compare import Deviation
from fastflow.bench.measure.row import Results, Subject
from fastflow.bench.measure.timing import Effort, Timing
from fastflow.bench.peers import gpu as gpu_peers
from fastflow.bench.peers.encoder import TextCandidate, choose, first_line, list_wanted, open_peers, plain_layers
from fastflow.bench.peers.gpu import settings
from fastflow.bench.report.ratios import compute_gpu_text_ratios, compute_list_ratios
from fastflow.bench.suites import encoder
from fastflow.bench.suites.encoder import DTYPES, find_instructions
from fastflow.bench.suites.texts import (
    Lists,
    PooledCheck,
    Tokenize,
    compare_texts,
    make_tokenizer,
    real_texts,
    to_texts,
)
from fastflow.bench.suites.workbench import SuiteRun
from fastflow.runtime import Runtime

ONCE_FLOP = 1e12  # operations: a list with more is timed once
SHORT = 32  # texts with at most so many tokens are timed one at a time
LONG, JOINED = 256, 9  # long texts on a GPU, and the texts in each
PADDED_ON_GPU = "torch-eager"  # other engines would compile or capture every shape of batch
ALONE = "torch-graph"  # embeds one text a call, by a graph for its length


def run_end_to_end(request: SuiteRun) -> Results:
    """Run the suite on the model or shape given, else on the packaged model and BERT-base."""
    results = Results()
    gpu, against = request.on_gpu, request.against
    families = choose(against, gpu_peers.PEERS, encoder.GPU_SUITES) if gpu else choose(against)
    texts, source = real_texts(request.sizes.texts.most)
    for subject in request.keep_judged(request.bench.subjects(), results):
        with settings(request.threads):
            run_subject(request, subject, texts, source, families, results)
    results.ratios = (compute_gpu_text_ratios if gpu else compute_list_ratios)(results.rows)
    return results


def run_subject(
    request: SuiteRun, subject: Subject, texts: list[str], source: str, families: Sequence[str], results: Results
) -> None:
    """Check and time every engine on ``texts``."""
    request.say(f"end-to-end: {subject.label}: opening the engines")
    tokenize = make_tokenizer(subject)
    lengths = np.diff(tokenize(texts).offsets)
    inputs = f"{source}: {len(texts)} texts, {int(lengths.sum())} tokens"
    spread = "" if request.on_gpu else f", {lengths.min()} to {lengths.max()} a text"
    results.subjects.append({"subject": subject.label, "inputs": f"{inputs}{spread}; peers stop at pooled vectors"})
    check, flop = PooledCheck(subject, texts, tokenize), sum(subject.flop(1, int(length)) for length in lengths)
    short = [text for text, length in zip(texts, lengths, strict=True) if length <= SHORT]
    short = short[: request.sizes.texts.alone] or texts[:1]
    flop_of_one = subject.flop(1, int(np.diff(tokenize(short).offsets).mean()))
    if request.on_gpu:
        candidates = [*_open_on_gpu(request, subject, families, tokenize, results)]
        long = [" ".join(texts[i : i + JOINED]) for i in range(0, JOINED * LONG, JOINED)]
        lists = Lists(texts, short, [text for text in long if text], quantiles={"p95_ms": 0.95, "p99_ms": 0.99})
        runs, pause = request.sizes.texts.together, 0.0
    else:
        candidates = [*_open_on_cpu(request, subject, families, tokenize, results)]
        lists, runs, pause = Lists(texts), 1 if flop > ONCE_FLOP else 3, 5e-2

    def judge(candidate: TextCandidate) -> Deviation:
        found = check(candidate)
        if not candidate.alone:
            candidate.embed(texts if request.on_gpu else check.few)  # warm up
        return found

    def make_fields(batch: int, tokens: int, flop: float, timing: Timing) -> dict[str, Any]:
        rate, texts_per_s = flop / timing.median_ms / 1e6, batch / timing.median_ms * 1e3
        return {"batch": batch, "tokens": tokens, "gflops": rate, "texts_per_s": texts_per_s}

    long_lengths = np.diff(tokenize(lists.long).offsets)
    flop_of_long = sum(subject.flop(1, int(length)) for length in long_lengths)
    fields = (
        partial(make_fields, len(texts), int(lengths.sum()), flop), partial(make_fields, 1, SHORT, flop_of_one),
        partial(make_fields, len(lists.long), int(long_lengths.sum()), flop_of_long),
    )  # fmt: skip

    request.say(f"end-to-end: {subject.label}: {len(texts)} texts, {len(candidates)} candidates")
    effort = Effort(budget_s=0, min_runs=runs, max_runs=runs, sample_s=0, pause_s=pause)
    compare_texts("end-to-end", subject.label, candidates, judge, lists, effort, request.threads, fields, results)


def _open_on_cpu(
    request: SuiteRun, subject: Subject, families: Sequence[str], tokenize: Tokenize, results: Results
) -> Iterator[TextCandidate]:
    for dtype in DTYPES:
        runtime = Runtime(subject.model, "cpu", dtype, request.threads, backend="cpu")
        backend = f"cpu {find_instructions(dtype)}"
        yield TextCandidate("fastflow", dtype, backend, runtime.encode, pool=runtime.pool)
    wanted = [each for of_texts in (False, True) for each in list_wanted(families, of_texts, quick=True)]
    for engine in open_peers(subject, wanted, request.threads, results):
        yield engine if isinstance(engine, TextCandidate) else to_texts(engine, tokenize)


def _open_on_gpu(
    request: SuiteRun, subject: Subject, families: Sequence[str], tokenize: Tokenize, results: Results
) -> Iterator[TextCandidate]:
    gpu = encoder.GPU
    for dtype, runtime in gpu_peers.open_ours(subject):
        yield TextCandidate("fastflow", dtype, "triton", runtime.encode, pool=runtime.pool)
    padded = [family for family in families if family == PADDED_ON_GPU]
    for engine in gpu_peers.open_peers(subject, padded, gpu, request.sizes.quick, results):
        yield to_texts(engine, tokenize)
    for dtype in ("float32", *gpu_peers.LOWER) if ALONE in families else ():
        graphs = gpu_peers.GraphOfEachLength(subject, dtype, gpu, tokenize)
        yield TextCandidate(ALONE, dtype, "torch", graphs, alone=True)
    for dtype in gpu_peers.PEERS[gpu_peers.TEXTS_ONLY] if gpu_peers.TEXTS_ONLY in families else ():
        try:
            embed = gpu_peers.open_sentence_transformers(subject, dtype, gpu)
        except Exception as error:
            name = f"{gpu_peers.TEXTS_ONLY} {dtype}"
            results.leave_out(subject.label, name, f"it cannot be opened: {first_line(error)}")
            continue
        yield TextCandidate(gpu_peers.TEXTS_ONLY, dtype, "torch", embed, layers=plain_layers(subject))
