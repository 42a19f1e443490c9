"""Candidates take turns within their budget; the clock is one that only work moves."""

from __future__ import annotations

import pytest

from fastflow.bench.measure.timing import Effort, alternate, inner_calls, summarise


class FakeTime:
    """A clock that only work moves: ``costs`` gives the seconds of one call by name."""

    def __init__(self, costs: dict[str, float]) -> None:
        self.now, self.log, self.pauses = 0.0, [], 0
        self.calls = {name: lambda name=name, cost=cost: self.work(name, cost) for name, cost in costs.items()}

    def work(self, name: str, seconds: float) -> None:
        self.now += seconds
        self.log.append(name)

    def watch(self, call: object, calls: int) -> float:
        start = self.now
        for _ in range(calls):
            call()
        return self.now - start

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        self.log.append("|")


def run_alternate(time: FakeTime, effort: Effort) -> dict:
    return alternate(time.calls, effort, time.watch, lambda: time.now, time.pause)


def test_candidates_take_turns_and_every_other_round_goes_backwards():
    time = FakeTime({"a": 1e-4, "b": 3e-3, "c": 0.2})
    timings = run_alternate(time, Effort(budget_s=0, min_runs=4, max_runs=9, sample_s=2e-3))
    samples = [part for part in "".join(time.log).split("|")[1:] if part]
    assert [part[0] for part in samples] == list("abccbaabccba")
    assert all(len(set(part)) == 1 for part in samples)  # nobody runs inside another's sample
    assert {name: timing.inner for name, timing in timings.items()} == {"a": 20, "b": 1, "c": 1}
    assert {len(part) for part in samples if part[0] == "a"} == {25}  # a quarter untimed, then the sample
    assert {len(part) for part in samples if part[0] == "b"} == {2}
    assert [len(part) for part in samples if part[0] == "c"] == [2, 1, 1, 1]  # too long to be warmed up every time
    assert {timing.runs for timing in timings.values()} == {4}
    assert [timings[name].median_ms for name in "abc"] == pytest.approx([0.1, 3.0, 200.0])
    assert time.pauses == 12


def test_the_budget_ends_the_rounds_but_not_before_min_runs_nor_beyond_max_runs():
    def runs(**limits: float) -> int:  # calls of one second, nothing else costs time
        return run_alternate(FakeTime({"a": 1.0}), Effort(sample_s=0, **limits))["a"].runs

    assert runs(budget_s=6.5, min_runs=2, max_runs=99) == 7
    assert runs(budget_s=0, min_runs=2, max_runs=99) == 2
    assert runs(budget_s=1e9, min_runs=2, max_runs=5) == 5
    assert runs(budget_s=0, min_runs=9, max_runs=99, limit_s=2.5) == 3
    assert runs(budget_s=0, min_runs=9, max_runs=99, limit_s=0) == 1
    assert run_alternate(FakeTime({}), Effort()) == {}


def test_an_interruption_does_not_make_a_short_call_look_long():
    time = FakeTime({})
    delays = [5e-3]  # the first call is held up

    def call() -> None:
        time.work("a", 1e-5 + (delays.pop() if delays else 0.0))

    assert inner_calls(call, time.watch, 1e-3) == 100


def test_a_sample_of_no_length_is_one_call_and_costs_none():
    time = FakeTime({"a": 9.0})
    assert inner_calls(time.calls["a"], time.watch, 0) == 1
    assert time.log == []


def test_quantiles():
    timing = summarise([0.005, 0.001, 0.003, 0.002, 0.004, 0.006], 7)
    assert (timing.p20_ms, timing.median_ms, timing.p80_ms) == pytest.approx((2.0, 3.5, 5.0))
    assert (timing.runs, timing.inner) == (6, 7)
