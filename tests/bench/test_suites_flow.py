"""The benchmark measures what it says: candidates agree, take turns, and are reported with their errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastflow.bench.suites import flow
from fastflow.bench.suites.candidates_flow import FlowCandidate
from fastflow.bench.suites.workloads import Workload
from fastflow.errors import FastflowError

from support.benches import FLOW


def test_no_comparison_is_begun_after_the_end(hasty):
    late = replace(FLOW, flow=replace(FLOW.flow, seconds=-1))
    results = flow.run_flow(None, ["lean"], late, "cpu", 1, lambda message: None)
    assert results.rows == []
    assert results.ratios == []
    assert [(entry["batch"], entry["reason"]) for entry in results.skipped] == [
        (batch, "the suite has used up its time") for batch in (1, 3)
    ]


@pytest.mark.slow
def test_a_long_run_forces_instruction_sets_and_cuts_large_batches(hasty, monkeypatch):
    from fastflow.kernels import isa as instructions

    monkeypatch.delenv("FASTFLOW_ISA", raising=False)
    long = replace(FLOW, quick=False, flow=replace(FLOW.flow, batches=(1, 9, 40)))
    results = flow.run_flow(None, ["folded"], long, "cpu", 2, lambda message: None)
    first = [r for r in results.rows if r["threads"] == 2 and r["subject"] == results.rows[0]["subject"]]
    ours = {r["name"]: r["backend"] for r in first if r["name"].startswith("fastflow")}
    best, *others = instructions.usable_isas()
    assert ours == {"fastflow": f"cpu {best}", **{f"fastflow-{isa}": f"cpu {isa}" for isa in others}}
    assert {r["batch"] for r in first} == {1, 9, 40}
    assert {r["note"] is None for r in first if r["batch"] == 40 and r["backend"] == "torch"} == {False}
    assert {r["note"] for r in first if r["batch"] != 40} == {None}
    assert {r["threads"] for r in results.rows} == {1, 2}
    assert len({r["subject"] for r in results.rows}) == 3  # then the flow with recolour, and the affine flow


def test_a_model_is_timed_on_its_own_embeddings(hasty, model):
    results = flow.run_flow(str(model), ["torch-eager"], FLOW, "cpu", 1, lambda message: None)
    assert "made-up sentences" in results.subjects[0]["inputs"]
    assert {r["name"] for r in results.rows} == {"fastflow", "torch-eager"}


def test_a_candidate_that_disagrees_stops_the_run(hasty, monkeypatch):
    honest = flow.torch_peers

    def with_liar(workload: Workload, device: str, wanted: set[str]) -> tuple:
        peers, skipped = honest(workload, device, wanted)
        liar = FlowCandidate("liar", "float32", "torch", lambda x, out: lambda: torch.zeros_like(x))
        return [*peers, liar], skipped

    monkeypatch.setattr(flow, "torch_peers", with_liar)
    with pytest.raises(FastflowError, match="liar differs from float64"):
        flow.run_flow(None, ["lean"], FLOW, "cpu", 1, lambda message: None)


def test_what_needs_a_compiler_may_be_left_out_and_nothing_else(hasty, monkeypatch):
    honest = flow.torch_peers

    def with_failure(optional: bool) -> None:
        def call() -> None:
            raise RuntimeError("no compiler\nand a long story")

        failing = FlowCandidate("failing", "float32", "torch", lambda x, out: call, optional=optional)
        monkeypatch.setattr(flow, "torch_peers", lambda *args: ([*honest(*args)[0], failing], []))

    with_failure(optional=True)
    results = flow.run_flow(None, ["lean"], FLOW, "cpu", 1, lambda message: None)
    assert {r["name"] for r in results.rows} == {"fastflow", "torch-lean-eager"}
    assert [(entry["name"], entry["batch"]) for entry in results.skipped] == [("failing", 1)]
    assert results.skipped[0]["reason"] == "its first call failed: no compiler"
    with_failure(optional=False)
    with pytest.raises(RuntimeError, match="no compiler"):
        flow.run_flow(None, ["lean"], FLOW, "cpu", 1, lambda message: None)
