"""What is left out of a run of the flow, and why."""

from __future__ import annotations

from fastflow.bench.suites import flow_limits
from fastflow.bench.suites.candidates_flow import FlowCandidate
from fastflow.bench.suites.sizes import QUICK
from fastflow.bench.suites.workloads import synthetic


def test_the_slowest_are_left_out_by_name_until_the_rest_fits():
    one = flow_limits.Pass(synthetic(1, 1, 4, "additive", 2, dim=8), 2, (1,), frozenset(), QUICK)
    candidates = [
        FlowCandidate(name, "float32", "torch", lambda x, out: lambda: x) for name in ("quick", "slow", "slower", "new")
    ]
    seconds = one.allowance_s(1000) / 1000 / (one.effort(1000).min_runs + 1)
    speed = {"quick": 0.1 * seconds, "slow": 0.8 * seconds, "slower": 0.9 * seconds}
    kept, left_out = flow_limits.affordable(candidates, speed, 1000, one)
    assert [c.name for c in kept] == ["quick", "slow", "new"]
    assert [(entry["name"], entry["batch"]) for entry in left_out] == [("slower", 1000)]
    assert "calls would take about" in left_out[0]["reason"]


def test_a_batch_that_does_not_fit_says_what_it_needs(monkeypatch):
    subject = synthetic(1, 1, 4, "additive", 2, dim=8)
    assert flow_limits.too_large(subject, 10, "cpu") is None
    monkeypatch.setattr(flow_limits, "memory_available", lambda: 2**30)
    assert "GiB are free" in flow_limits.too_large(subject, 10, "cpu")
