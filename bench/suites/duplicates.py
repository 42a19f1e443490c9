"""The duplicates suite: near pairs among texts, beside exact and approximate libraries that get the same vectors.

Processor time is measured too, since other processes change it less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch

from fastflow.bench.measure.compare import Candidate, compare
from fastflow.bench.measure.meter import Meter
from fastflow.bench.measure.row import Array, Results, make_row
from fastflow.bench.measure.timing import Effort, Timing, alternate, cpu_watch
from fastflow.bench.peers.encoder import choose, excuse
from fastflow.bench.peers.gpu import settings
from fastflow.bench.peers.pairs import LIMIT, PAIRS, PairEngine
from fastflow.bench.report.ratios import compute_duplicates_ratios
from fastflow.bench.suites.encoder import find_instructions
from fastflow.bench.suites.texts import CHANGED, make_near_texts
from fastflow.bench.suites.workbench import SuiteRun
from fastflow.errors import FastflowError, missing_extra
from fastflow.kernels.search import cpu
from fastflow.runtime import Runtime
from fastflow.search.pairs import groups
from fastflow.transforms.vectors import shorten

CHECKED = 2000  # texts on which engines are compared with float64
LONGEST_S, ONCE = 1800, 200_000  # processor seconds of a call; more texts are embedded and compared once, apart
WHOLE, ALONE = "texts to kept texts", "vectors to near pairs"
EFFORT = Effort(budget_s=0, min_runs=3, limit_s=60, sample_s=0, pause_s=5e-3)


@dataclass(frozen=True)
class PairFinder(Candidate):
    """An opened engine."""

    engine: PairEngine
    find: Any


def run_duplicates(request: SuiteRun) -> Results:
    """Run the suite with the packaged ``static``, or the model given."""
    results, every = Results(), []
    model = Runtime(request.bench.model or "static", device="cpu", threads=request.threads)
    for name in ("fastflow", *choose(request.against, [*PAIRS][1:], "the duplicates suite")):
        backend = f"cpu {find_instructions('int8')}" if name == "fastflow" else name
        try:
            find = PAIRS[name].open(model, request.threads)
            every.append(PairFinder(name, "float32", backend, PAIRS[name], find))
        except ImportError as error:
            results.leave_out(ALONE, f"{name} float32", str(missing_extra("peers", str(error.name), "this peer")))
    with settings(request.threads):
        peak, every = measure_peak(), check_all(every, model, results)
        for count in request.sizes.duplicates:
            every = [each for each in every if is_short(each, count, results)]
            request.say(f"duplicates: {count:,} texts, {len(every)} engines")
            measure_size(every, model, make_near_texts(count), request.threads, peak, results)
    inputs = f"{CHANGED:.0%} of the texts are others with a word or the ending replaced; limit {LIMIT}"
    about = f"int8 peak: {peak:.0f} GOP/s a core, the faster of torch._int_mm and our kernel on 2,048^3"
    results.subjects.append({"subject": ALONE, "inputs": f"{inputs}; {about}"})
    results.ratios = compute_duplicates_ratios(results.rows)
    return results


def embed(model: Runtime, texts: Sequence[str]) -> Array:
    """Return the vectors (n, D) float32 of length 1."""
    return shorten(np.asarray(model.encode(texts), np.float32), True, None)


def measure_peak() -> float:
    """Measure the most 10^9 int8 operations of a processor second: of oneDNN's product, and of ours, in cache."""
    a, ones = torch.ones(2048, 2048, dtype=torch.int8), np.ones(2048, np.float32)
    ours = partial(cpu.compare, a.numpy(), ones, ones * 1e9, a.numpy().copy(), ones, ones * 0, 0, 2048, 1, 1)
    calls = ours, partial(torch._int_mm, a, a)
    return 2 * 2048**3 / min(cpu_watch(call, 1, process_time) for _ in range(20) for call in calls) / 1e9


def check_all(candidates: Sequence[PairFinder], model: Runtime, results: Results) -> list[PairFinder]:
    """Return the candidates that agree with float64 on CHECKED texts."""
    texts = make_near_texts(CHECKED)
    x = embed(model, texts)
    wide = x / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    exact = np.argwhere(np.triu(wide @ wide.T, 1) >= LIMIT)
    grouped = sum(len(group) - 1 for group in groups(x, above=LIMIT))

    def admit(candidate: PairFinder) -> tuple[PairFinder, None]:
        found, rule = candidate.find(texts, x)(), candidate.engine.rule
        if rule == "pairs":
            right = np.array_equal(found[np.lexsort(found.T[::-1])], exact)
        elif rule == "kept":  # it may keep too many, but each that it removes has a near one
            right = bool(np.isin(np.setdiff1d(np.arange(len(x)), found), exact[:, 1]).all())
        else:
            right = len(x) - len(found) == grouped
        if not right:
            raise FastflowError(
                f"bench: {candidate.key} finds other pairs than float64; it is not timed, since a wrong result has no "
                "speed"
            )
        return candidate, None

    return [each for each, *_ in compare(
        candidates, admit, dict, excuse, lambda each, reason: results.leave_out(ALONE, each.key, reason)
    )]  # fmt: skip


def is_short(candidate: PairFinder, count: int, results: Results) -> bool:
    """Return whether ``count`` texts take at most LONGEST_S, by the last row; else leave the candidate out."""
    rows = [row for row in results.rows if (row["name"], row["subject"]) == (candidate.name, ALONE)]
    if candidate.name == "fastflow" or not rows:
        return True
    seconds = rows[-1]["cpu_ms"] / 1e3 * (count / rows[-1]["batch"]) ** candidate.engine.power
    if seconds > LONGEST_S:
        reason = f"{count:,} texts would take it about {seconds:,.0f} processor seconds, more than {LONGEST_S:,}"
        results.leave_out(ALONE, candidate.key, reason)
    return seconds <= LONGEST_S


def measure_size(
    candidates: Sequence[PairFinder], model: Runtime, texts: list[str], threads: int, peak: float, results: Results
) -> None:
    """Add the rows of ``texts``: pairs in vectors, then the whole way; over ONCE texts, one engine after the other."""
    x, count, meter, exact = embed(model, texts), len(texts), Meter(), np.zeros((0, 2), np.int64)
    alone = {each.name: partial(each.find, texts, x) for each in candidates}
    timings: dict[str, Timing] = {}

    def add(each: PairFinder, subject: str, timing: Timing, seconds: float, **fields: Any) -> None:
        who = {"subject": subject, **each.as_fields(), "threads": threads, "batch": count}
        results.add([make_row("duplicates", **who, **timing._asdict(), cpu_ms=seconds * 1e3, **fields)])

    for part in [candidates] if count <= ONCE else [[each] for each in candidates]:
        timings |= alternate({each.name: alone[each.name] for each in part}, EFFORT, meter.watch)
        for each in part:
            call, fields = alone[each.name], dict[str, Any]()
            found, seconds = meter.found[call](), median(meter.seconds[call])
            if each.name == "fastflow":
                exact, rate = found, x.shape[1] * count * (count - 1) / seconds / 1e9
                fields = {"gflops": rate, "compute_fraction": rate / peak}
            if len(exact) and each.engine.rule != "groups":
                kept = each.engine.rule == "kept"
                lost = np.isin(exact, found).all(axis=1) if kept else ~np.isin(exact @ [count, 1], found @ [count, 1])
                fields["recall"] = 1 - float(lost.mean())
            add(each, ALONE, timings[each.name], seconds, anonymous_mb=meter.memory[call], pairs=len(exact), **fields)
    takers = [each for each in candidates if each.engine.takes_texts]
    encode: Any = partial(embed, model, texts)
    whole = {each.name: partial(each.find, texts, None) for each in takers} if count <= ONCE else {WHOLE: encode}
    ways = alternate(whole, EFFORT, meter.watch)
    for each in takers:
        if each.name in ways:
            add(each, WHOLE, ways[each.name], median(meter.seconds[whole[each.name]]))
        else:
            median_ms, p20, p80, *_ = (a + b for a, b in zip(timings[each.name], ways[WHOLE], strict=True))
            seconds = sum(median(meter.seconds[call]) for call in (encode, alone[each.name]))
            apart = Timing(median_ms, p20, p80, 1, 1)
            add(each, WHOLE, apart, seconds, note="texts are embedded and compared apart")
