"""The suite of the flow: candidates agree, are timed and reported, or left out by name."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from fastflow.bench.measure.compare import Errors, check_stretches
from fastflow.bench.measure.row import Results
from fastflow.bench.suites import candidates_flow, flow
from fastflow.bench.suites.candidates_flow import FlowCandidate
from fastflow.bench.suites.sizes import QUICK
from fastflow.bench.suites.workbench import Workbench
from fastflow.bench.suites.workloads import make_sentences, make_synthetic
from fastflow.errors import FastflowError, UsageError
from fastflow.kernels import isa as instructions
from fastflow.plan.in_place import products

from support.benches import FLOW, ask


def run(against, sizes=FLOW, threads=1, model=None):
    return flow.run_flow(ask(Workbench(Path(), model), against, sizes, threads))


def test_no_comparison_is_begun_after_the_end():
    late = replace(FLOW, flow=replace(FLOW.flow, seconds=-1))
    results = run(["lean"], late)
    assert results.rows == []
    assert results.ratios == []
    assert [(entry["batch"], entry["reason"]) for entry in results.skipped] == [
        (batch, "the suite has used up its time") for batch in (1, 3)
    ]


def test_a_model_of_vectors_is_refused_before_anything_is_measured(vector_model, monkeypatch):
    monkeypatch.setattr(flow, "list_passes", lambda *_: pytest.fail("something was measured"))
    with pytest.raises(UsageError, match="calibrates vectors and has no encoder"):
        run(None, QUICK, model=str(vector_model))


@pytest.mark.slow
def test_a_long_run_forces_instruction_sets_and_cuts_large_batches(monkeypatch):
    monkeypatch.delenv("FASTFLOW_ISA", raising=False)
    long = replace(FLOW, quick=False, flow=replace(FLOW.flow, batches=(1, 9, 40)))
    results = run(["folded-state"], long, 2)
    first = [r for r in results.rows if r["threads"] == 2 and r["subject"] == results.rows[0]["subject"]]
    ours = {r["name"]: r["backend"] for r in first if r["name"].startswith("fastflow")}
    best, *others = instructions.usable_isas()
    assert ours == {"fastflow": f"cpu {best}", **{f"fastflow-{isa}": f"cpu {isa}" for isa in others}}
    assert {r["batch"] for r in first} == {1, 9, 40}
    assert {r["note"] is None for r in first if r["batch"] == 40 and r["backend"] == "torch"} == {False}
    assert {r["note"] for r in first if r["batch"] != 40} == {None}
    assert {r["threads"] for r in results.rows} == {1, 2}
    assert len({r["subject"] for r in results.rows}) == 3  # then the flow with recolour, and the affine flow


def test_a_model_is_timed_on_its_own_embeddings(model):
    results = run(["torch-eager"], model=str(model))
    assert "made-up sentences" in results.subjects[0]["inputs"]
    assert {r["name"] for r in results.rows} == {"fastflow", "torch-eager"}


def broken():
    raise RuntimeError("no compiler\nand a long story")


def run_with(monkeypatch, call, optional=False):
    """The quick run with one more candidate."""
    honest = flow.open_peers
    more = FlowCandidate("more", "float32", "torch", lambda x, out: lambda: call(x), optional=optional)
    with monkeypatch.context() as patch:
        patch.setattr(flow, "open_peers", lambda *given: [*honest(*given), more])
        return run(["lean"])


def test_who_disagrees_or_fails_ends_the_run_unless_it_needs_a_compiler(monkeypatch):
    with pytest.raises(FastflowError, match="more differs from float64"):
        run_with(monkeypatch, torch.zeros_like)
    with pytest.raises(RuntimeError, match="no compiler"):
        run_with(monkeypatch, lambda x: broken())
    results = run_with(monkeypatch, lambda x: broken(), optional=True)
    assert {r["name"] for r in results.rows} == {"fastflow", "torch-lean-eager"}
    assert [(entry["name"], entry["batch"]) for entry in results.skipped] == [("more", 1)]
    assert results.skipped[0]["reason"] == "its first call failed: no compiler"


def test_the_slowest_are_left_out_by_name_until_the_rest_fits():
    one = flow.Pass(make_synthetic(1, 1, 4, "additive", 2, dim=8), 2, (1,), frozenset(), QUICK)
    candidates = [
        FlowCandidate(name, "float32", "torch", lambda x, out: lambda: x) for name in ("quick", "slow", "slower", "new")
    ]
    seconds = one.allowance_s(1000) / 1000 / (one.effort(1000).min_runs + 1)
    speed = {"quick": 0.1 * seconds, "slow": 0.8 * seconds, "slower": 0.9 * seconds}
    results = Results()
    kept = flow.drop_slowest(candidates, speed, 1000, one, results)
    assert [c.name for c in kept] == ["quick", "slow", "new"]
    assert [(entry["name"], entry["batch"]) for entry in results.skipped] == [("slower", 1000)]
    assert "calls would take about" in results.skipped[0]["reason"]


def test_a_batch_that_does_not_fit_says_what_it_needs(monkeypatch):
    subject = make_synthetic(1, 1, 4, "additive", 2, dim=8)
    assert flow.explain_too_large(subject, 10, "cpu") is None
    monkeypatch.setattr(flow, "estimate_free_memory", lambda: 2**30)
    assert "GiB are free" in flow.explain_too_large(subject, 10, "cpu")


def test_pieces_cover_the_tail_and_repeated_rows_are_checked():
    x, out = torch.arange(22.0).view(11, 2), torch.full((11, 2), -1.0)
    assert torch.equal(candidates_flow.call_in_pieces(lambda part: part * 2, x, out, 4), x * 2)
    exact = np.random.default_rng(2).standard_normal((5, 3))
    candidate, scale = FlowCandidate("last", "float32", "torch", lambda x, out: lambda: x), Errors(1e-7, 1e-7)
    z = exact[np.arange(12) % 5].astype(np.float32)
    assert check_stretches(candidate, z, exact, scale).max_abs <= 1e-6
    z[11, 2] += 1
    with pytest.raises(FastflowError, match="last"):
        check_stretches(candidate, z, exact, scale)


def test_quick_runs_compile_nothing_and_families_pick_their_rows():
    assert not any("compile" in name for name in candidates_flow.choose(None, "cpu", quick=True))
    assert candidates_flow.choose(["lean"], "cpu", quick=False) == {"torch-lean-eager", "torch-lean-compile"}
    assert "torch-lean-graph" in candidates_flow.choose(["torch-lean"], "cuda", quick=True)
    assert candidates_flow.choose(["torch"], "cpu", quick=False) == {"torch-eager"}


@pytest.mark.slow
@pytest.mark.parametrize(("coupling", "levels"), [("additive", 3), ("additive", 2), ("affine", 2)])
def test_counted_weights_are_the_plans_nonzero_blocks(coupling, levels):
    subject = make_synthetic(levels, 3, 32, coupling, 2, dim=768)
    for plan in (*subject.plans, *subject.sparse):
        arrays = [plan.U, plan.B, plan.V, plan.S] + [a for a in (plan.G, plan.R) if a is not None]
        assert products(plan) == sum(np.count_nonzero(array) for array in arrays)
    if (coupling, levels) == ("additive", 3):
        assert subject.flop() == pytest.approx(0.276e6, rel=0.02)
        assert subject.weight_bytes() == pytest.approx(0.55e6, rel=0.04)
    assert subject.traffic(10) == subject.weight_bytes() + 10 * 2 * 768 * 4


def test_sentences_differ():
    made = make_sentences(3072)
    assert len(set(made)) == 3072
    assert all(a != b for a, b in pairwise(made))
