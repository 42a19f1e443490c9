"""Time candidates by turns in one process; every second round is backwards, because a machine's speed drifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any, NamedTuple, TypeVar

import numpy as np

Call = Callable[[], object]
Watch = Callable[[Call, int], float]  # (call, n) -> seconds that n calls in a row take
Given = TypeVar("Given")
MOST_CALLS = 1 << 20
LONG_S = 0.1  # seconds; a longer sample is neither repeated nor warmed up


class Timing(NamedTuple):
    """Milliseconds of a call: median, 20 % and 80 % quantile of ``runs`` samples, as fields of a row."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    runs: int
    calls_per_run: int


@dataclass(frozen=True)
class Effort:
    """How long to measure one comparison."""

    budget_s: float = 6.0  # seconds of a comparison
    min_runs: int = 5  # fewest samples of each candidate, within limit_s
    max_runs: int = 60
    limit_s: float = 60.0  # seconds after which one sample of each is enough
    sample_s: float = 2e-2  # seconds of a sample: calls are added to reach them
    pause_s: float = 1e-2  # before each sample, until the previous candidate's threads sleep


def cpu_watch(call: Call, calls: int, clock: Callable[[], float] = perf_counter) -> float:
    """Return the wall-clock seconds of ``calls`` calls."""
    start = clock()
    for _ in range(calls):
        call()
    return clock() - start


def cuda_watch(call: Call, calls: int) -> float:
    """Return the seconds of ``calls`` calls between two events on the current CUDA stream."""
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def count_calls(call: Call, watch: Watch, sample_s: float) -> int:
    """Return how many calls make a sample of about ``sample_s`` seconds, from the faster of two runs; 1 for 0 s."""
    if sample_s <= 0:
        return 1
    calls = 1
    while (elapsed := _watch_twice(call, watch, calls, sample_s)) < sample_s / 2 and calls < MOST_CALLS:
        calls *= 2
    return min(MOST_CALLS, max(1, round(calls * sample_s / elapsed))) if elapsed > 0 else calls


def _watch_twice(call: Call, watch: Watch, calls: int, sample_s: float) -> float:
    elapsed = watch(call, calls)
    return min(elapsed, watch(call, calls)) if sample_s / 2 <= elapsed < LONG_S else elapsed


def alternate(
    candidates: Mapping[str, Call],
    effort: Effort,
    watch: Watch = cpu_watch,
    clock: Callable[[], float] = perf_counter,
    pause: Callable[[float], Any] = sleep,
) -> dict[str, Timing]:
    """Time every warmed-up candidate; return {name: Timing} with equal numbers of samples.

    A quarter as many untimed calls precede each sample, to wake threads.
    """
    calls = {name: count_calls(call, watch, effort.sample_s) for name, call in candidates.items()}
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


def take_turns(
    calls: Mapping[str, Callable[[Given], object]], inputs: Sequence[Given], wake: bool = False
) -> dict[str, list[float]]:
    """Return the seconds of each call for each of ``inputs``, by turns, every other round backwards.

    ``wake``: an untimed call precedes each timed one; else one round on the first input precedes all.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number, given in enumerate(inputs if wake else [inputs[0], *inputs]):
        for name in list(calls)[:: -1 if number % 2 else 1]:
            if wake:
                calls[name](given)
            start = perf_counter()
            calls[name](given)
            if wake or number:
                seconds[name].append(perf_counter() - start)
    return seconds


def summarise(seconds: Sequence[float], calls_per_run: int = 1) -> Timing:
    """Return the Timing of samples, each in seconds of one call."""
    p20, median, p80 = (np.quantile(seconds, [0.2, 0.5, 0.8]) * 1e3).tolist()
    return Timing(median, p20, p80, len(seconds), calls_per_run)
