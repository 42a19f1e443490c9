"""Timing several candidates fairly: in one process, alternately, each sample long enough for the clock.

A machine's speed drifts, so candidates are never timed in sequence but round by round, and every other round
goes backwards, so that nobody always runs after the same neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

import numpy as np

Call = Callable[[], object]
Watch = Callable[[Call, int], float]  # (call, n) -> seconds that n calls in a row take
MOST_CALLS = 1 << 20
LONG_S = 0.1  # what takes longer is believed at once and needs no warming up


@dataclass(frozen=True)
class Timing:
    """Milliseconds for one call: median, 20 % and 80 % quantile of ``runs`` samples of ``inner`` calls each."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    runs: int
    inner: int


@dataclass(frozen=True)
class Effort:
    """How long to measure one comparison: all its candidates together."""

    budget_s: float = 6.0  # stop after this long ...
    min_runs: int = 5  # ... but never with fewer samples of each candidate
    max_runs: int = 60
    limit_s: float = 60.0  # but after this long one sample of each is enough
    sample_s: float = 2e-2  # inner calls are added until one sample lasts about this long: threads settle within it
    pause_s: float = 1e-2  # before each sample: worker threads of the candidate before stop spinning and go to sleep


def cpu_watch(call: Call, calls: int, clock: Callable[[], float] = perf_counter) -> float:
    """Wall-clock seconds that ``calls`` calls take."""
    start = clock()
    for _ in range(calls):
        call()
    return clock() - start


def cuda_watch(call: Call, calls: int) -> float:
    """Seconds between two events on the current CUDA stream around ``calls`` calls, the device idle before."""
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def inner_calls(call: Call, watch: Watch, sample_s: float) -> int:
    """How many calls make a sample of about ``sample_s`` seconds, at least 1; for 0 seconds 1, without trying.

    Each try counts the faster of two runs: an interruption by another process would make microseconds look long.
    """
    if sample_s <= 0:
        return 1
    calls = 1
    while (elapsed := _faster(call, watch, calls, sample_s)) < sample_s / 2 and calls < MOST_CALLS:
        calls *= 2
    return min(MOST_CALLS, max(1, round(calls * sample_s / elapsed))) if elapsed > 0 else calls


def _faster(call: Call, watch: Watch, calls: int, sample_s: float) -> float:
    elapsed = watch(call, calls)
    return min(elapsed, watch(call, calls)) if sample_s / 2 <= elapsed < LONG_S else elapsed


def alternate(
    candidates: Mapping[str, Call],
    effort: Effort,
    watch: Watch = cpu_watch,
    clock: Callable[[], float] = perf_counter,
    pause: Callable[[float], Any] = sleep,
) -> dict[str, Timing]:
    """Time every candidate, {name: Timing}; all have the same number of samples.

    A candidate is a call without arguments, already warmed up and checked. Each sample is preceded by a quarter as many
    untimed calls, at least one: they refill the caches that the candidate before emptied and wake the threads.
    """
    calls = {name: inner_calls(call, watch, effort.sample_s) for name, call in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    start, rounds = clock(), 0
    while candidates and rounds < effort.max_runs:
        spent = clock() - start
        if rounds and spent >= (effort.budget_s if rounds >= effort.min_runs else effort.limit_s):
            break
        for name in list(candidates)[:: -1 if rounds % 2 else 1]:
            pause(effort.pause_s)
            if effort.sample_s > 0 and not (calls[name] == 1 and samples[name] and samples[name][-1] > LONG_S):
                watch(candidates[name], max(1, calls[name] // 4))
            samples[name].append(watch(candidates[name], calls[name]) / calls[name])
        rounds += 1
    return {name: summarise(times, calls[name]) for name, times in samples.items()}


def summarise(seconds: list[float], inner: int) -> Timing:
    """Quantiles (linear interpolation) of samples given in seconds for one call."""
    p20, median, p80 = (float(q) * 1e3 for q in np.quantile(seconds, [0.2, 0.5, 0.8]))
    return Timing(median, p20, p80, len(seconds), inner)
