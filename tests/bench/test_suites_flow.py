"""The suite of the flow: its peers compute what training computed; candidates agree, are timed, or left out by name."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fastflow.bench.peers.flow import build_folded, build_lean, build_unfused
from fastflow.bench.suites import flow
from fastflow.bench.suites.flow import FlowCandidate, make_synthetic
from fastflow.bench.suites.sizes import QUICK
from fastflow.bench.suites.workbench import Workbench
from fastflow.errors import FastflowError, UsageError
from fastflow.plan import fold
from fastflow.plan.builder import products
from fastflow.transforms.calibration import Stage

from support.benches import FLOW, ask, trained

SHAPES = [
    (96, 3, 3, 32, "additive", "reversal"),
    (40, 1, 2, 7, "additive", "reversal"),
    (48, 2, 4, 17, "additive", "random"),
    (48, 2, 2, 8, "additive", "lu"),
    (96, 2, 3, 9, "affine", "reversal"),
    (32, 4, 1, 5, "affine", "random"),
]


def open_peers(stages, dim):
    return {"lean": build_lean(stages, "cpu"), "folded": build_folded(fold(stages, dim), "cpu")}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_the_peers_compute_the_training_flow(shape):
    stage, module = trained(*shape)
    peers = open_peers((stage,), shape[0])
    for batch in (0, 1, 3, 17):
        x = torch.randn(batch, shape[0], generator=torch.Generator().manual_seed(batch)) * 2 + 1
        with torch.inference_mode():
            unfused = module.float()(x)[0].double()
            exact = module.double()(x.double())[0]
            allowed = 2 * float((unfused - exact).abs().sum()) / max(1, exact.numel()) + 2e-6
            for name, peer in peers.items():
                z = peer(x.clone())
                assert (z.shape, z.dtype) == (exact.shape, torch.float32), name
                assert bool(torch.isfinite(z).all()), name
                assert float((z - exact).abs().sum()) / max(1, exact.numel()) <= allowed, name


def test_the_peers_take_chains():
    rng = np.random.default_rng(1)
    stage, _ = trained(32, 2, 2, 8, "additive", "reversal")
    matrix = np.linalg.qr(rng.standard_normal((50, 32)))[0]
    whiten = Stage("whiten", {}, {"mean": rng.standard_normal(50).astype("f"), "matrix": matrix.astype("f")})
    scale = Stage("standardize", {}, {"mean": np.ones(32, "f"), "deviation": rng.uniform(1, 2, 32).astype("f")})
    x = torch.from_numpy(rng.standard_normal((9, 50)).astype("f"))
    for stages in ((whiten, stage), (whiten, scale), (whiten, stage, scale)):
        exact = build_unfused(stages, "cpu", torch.float64)(x)
        for name, peer in open_peers(stages, 50).items():
            assert float((peer(x) - exact).norm() / exact.norm()) <= 2e-6, name


def run(against, sizes=FLOW, threads=1, model=None):
    return flow.run_flow(ask(Workbench(Path(), model), against, sizes, threads))


def test_no_comparison_is_begun_after_the_end():
    late = replace(FLOW, flow=replace(FLOW.flow, seconds=-1))
    results = run(["lean"], late)
    assert results.rows == results.ratios == []
    assert [entry["batch"] for entry in results.skipped] == [1, 3]
    assert {entry["reason"] for entry in results.skipped} == {"the suite has used up its time"}


def test_a_model_of_vectors_is_refused_before_anything_is_measured(vector_model, monkeypatch):
    monkeypatch.setattr(flow, "list_passes", lambda *_: pytest.fail("something was measured"))
    with pytest.raises(UsageError, match="calibrates vectors and has no encoder"):
        run(None, QUICK, model=str(vector_model))


@pytest.mark.slow
def test_a_long_run_has_both_numbers_of_threads_and_three_flows(monkeypatch):
    long = replace(FLOW, quick=False, flow=replace(FLOW.flow, batches=(1, 9, 40)))
    results = run(["lean"], long, 2)
    first = [r for r in results.rows if r["threads"] == 2 and r["subject"] == results.rows[0]["subject"]]
    assert {r["batch"] for r in first} == {1, 9, 40}
    assert {r["threads"] for r in results.rows} == {1, 2}
    assert len({r["subject"] for r in results.rows}) == 3  # then the flow with recolour, and the affine flow


def test_a_model_is_timed_on_its_own_embeddings(model):
    results = run(["torch-eager"], model=str(model))
    assert "the model's pooled embeddings" in results.subjects[0]["inputs"]
    assert {r["name"] for r in results.rows} == {"fastflow", "torch-eager"}


def broken():
    raise RuntimeError("no compiler\nand a long story")


def run_with(monkeypatch, call, optional=False):
    honest = flow.open_peers
    more = FlowCandidate("more", "float32", "torch", lambda x: lambda: call(x), optional=optional)
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


@pytest.mark.slow
def test_quick_runs_compile_nothing_and_families_pick_their_rows():
    assert not any("compile" in name for name in flow.choose_rows(None, "cpu", quick=True))
    assert flow.choose_rows(["lean"], "cpu", quick=False) == {"torch-lean-eager", "torch-lean-compile"}
    assert "torch-lean-graph" in flow.choose_rows(["torch-lean"], "cuda", quick=True)
    assert flow.choose_rows(["torch"], "cpu", quick=False) == {"torch-eager"}
    made = make_synthetic(1, 2, 4, "additive", 8, dim=16)
    rows = flow.list_rows("cpu", quick=False)
    peers = flow.open_peers(made, "cpu", rows)
    assert [peer.name for peer in peers] == rows
    assert {peer.name for peer in peers if peer.optional} == {"torch-lean-compile", "torch-folded-state-compile"}


@pytest.mark.slow
@pytest.mark.parametrize(("coupling", "levels"), [("additive", 3), ("additive", 2), ("affine", 2)])
def test_counted_weights_are_the_plans_nonzero_blocks(coupling, levels):
    subject = make_synthetic(levels, 3, 32, coupling, 2, dim=768)
    for plan in subject.plans:
        arrays = [plan.U, plan.B, plan.V, plan.S] + ([] if plan.R is None else [plan.R])
        assert products(plan) == sum(np.count_nonzero(array) for array in arrays)
    if (coupling, levels) == ("additive", 3):
        assert subject.flop() == pytest.approx(0.276e6, rel=0.02)
        assert subject.weight_bytes() == pytest.approx(0.55e6, rel=0.04)
    assert subject.traffic(10) == subject.weight_bytes() + 10 * 2 * 768 * 4
