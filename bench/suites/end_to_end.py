"""The end-to-end suite: a list of texts in, vectors out, tokenisation included, in one call.

The texts are real and of every length. fastflow gets the list as a user gives it, and returns calibrated vectors;
Sentence Transformers too, in its defaults; the engines that want padded ids get them as their users would: the same
fast tokenizer, sorted by length, cut into batches. Peers stop at the pooled vectors, which is a little less work.
*of peak* is the share of the arithmetic ceiling that is spent on the texts' own tokens, whoever pads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fastflow.bench.measure.compare import Agreement, Measured, compare
from fastflow.bench.measure.machine import ceilings, peak_gflops
from fastflow.bench.measure.row import Results, Row
from fastflow.bench.measure.subject import Subject
from fastflow.bench.measure.timing import Call, Effort, Timing, alternate
from fastflow.bench.peers.encoder import PEERS, TEXTS, chosen, excuse, left_out, open_peers
from fastflow.bench.peers.pytorch import settings
from fastflow.bench.peers.text_engines import TextCandidate, open_texts
from fastflow.bench.report.ratios_texts import ragged_ratios
from fastflow.bench.suites.encoder import DTYPES, Say, body_of
from fastflow.bench.suites.sizes import Sizes
from fastflow.bench.suites.texts import Check, of_texts, on_padded, real_texts, tokenizer_of
from fastflow.bench.suites.workbench import Workbench
from fastflow.runtime import Runtime

PADDED = ("torch-eager", "zentorch", "onnxruntime", "onnxruntime-plain", "openvino", "xllamacpp")
ONCE_FLOP = 1e12  # a call of more is timed once: it lasts many seconds, and averages over the machine's moods


def run_end_to_end(bench: Workbench, against: Sequence[str] | None, sizes: Sizes, threads: int, say: Say) -> Results:
    """Run the suite on the model given; without one on that in the package and on BERT-base with random weights."""
    families, results = chosen(against), Results()
    say("end-to-end: measuring the machine's ceilings")
    results.ceilings = [ceilings([threads], sizes.probe_s)[threads].as_dict()]
    texts, source = real_texts(sizes.texts.most)
    for subject in bench.subjects():
        with settings(threads):
            run_subject(subject, texts, source, families, threads, say, results)
    results.ratios = ragged_ratios(results.rows)
    return results


def run_subject(
    subject: Subject, texts: list[str], source: str, families: Sequence[str], threads: int, say: Say, results: Results
) -> None:
    """Check and time everybody on ``texts``; adds to ``results``."""
    say(f"end-to-end: {subject.label}: opening the engines")
    tokenize = tokenizer_of(subject)
    lengths = np.diff(tokenize(texts).offsets)
    inputs = f"{source}: {len(texts)} texts, {int(lengths.sum())} tokens, {lengths.min()} to {lengths.max()} a text"
    results.subjects.append({"subject": subject.label, "inputs": f"{inputs}; peers stop at pooled vectors"})
    candidates = [*_ours(subject, threads)]
    wanted = [(family, dtype) for family in PADDED if family in families for dtype in PEERS[family][1]]
    candidates += [on_padded(engine, tokenize) for engine in open_peers(subject, wanted, threads, results.skipped)]
    wanted = [(family, dtype) for family in TEXTS if family in families for dtype in PEERS[family][1]]
    candidates += open_texts(subject, wanted, threads, results.skipped)
    check, flop = Check(subject, texts, tokenize), sum(subject.flop(1, int(length)) for length in lengths)
    runs = 1 if flop > ONCE_FLOP else 3

    def admit(candidate: TextCandidate) -> tuple[Call, Agreement]:
        found = check(candidate)
        candidate.prepare(check.few)()  # warmed up, all the way
        return candidate.prepare(texts), found

    def timer(calls: Mapping[str, Call]) -> dict[str, Timing]:
        say(f"end-to-end: {subject.label}: {len(texts)} texts, {len(calls)} candidates")
        return alternate(calls, Effort(budget_s=0, min_runs=runs, max_runs=runs, sample_s=0, pause_s=5e-2))

    def leave_out(candidate: TextCandidate, reason: str) -> None:
        results.skipped.append(left_out(subject, candidate.name, candidate.dtype, reason))

    def gflops(found: Measured[TextCandidate, Agreement, Timing]) -> float:
        return flop / found.timing.median_ms / 1e6

    results.add(
        Row.timed(
            found.timing, suite="end-to-end", subject=subject.label, name=found.candidate.name,
            backend=found.candidate.backend, dtype=found.candidate.dtype, threads=threads, batch=len(texts),
            tokens=int(lengths.sum()), **found.accuracy._asdict(),
            texts_per_s=len(texts) / found.timing.median_ms * 1e3, gflops=gflops(found),
            compute_fraction=gflops(found) / peak_gflops(results.ceilings[0], found.candidate.dtype),
        )
        for found in compare(candidates, admit, timer, excuse, leave_out)
    )  # fmt: skip


def _ours(subject: Subject, threads: int) -> list[TextCandidate]:
    out = []
    for dtype in DTYPES:
        runtime = Runtime(subject.model, "cpu", dtype, threads, backend="cpu")
        out.append(of_texts("fastflow", dtype, f"cpu {body_of(dtype)}", runtime.encode, runtime.pool))
    return out
