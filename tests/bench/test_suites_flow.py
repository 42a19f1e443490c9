"""The benchmark measures what it says: candidates agree, take turns, and are reported with their errors."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from places import ROOT

from fastflow.bench import cli
from fastflow.bench.measure.compare import Candidate, Errors, check, checked
from fastflow.bench.measure.machine import Ceilings, Neighbours, ceilings, describe, usable_threads
from fastflow.bench.measure.probe import Probe, TorchProbe
from fastflow.bench.measure.timing import Effort, alternate, inner_calls, summarise
from fastflow.bench.peers import flow as peers_flow
from fastflow.bench.peers import port as peers_port
from fastflow.bench.peers.folded import folded, folded_state
from fastflow.bench.report import files
from fastflow.bench.report import table as report
from fastflow.bench.report.ratios import flow_ratios
from fastflow.bench.suites import candidates_flow, flow, flow_limits
from fastflow.bench.suites.sizes import QUICK, FlowSizes, Sizes
from fastflow.bench.suites.workloads import Workload, sentences, synthetic, trained_like, weights
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.plan.fold import fold
from fastflow.stages.calibration import Stage
from fastflow.train.methods.flow import Flow, FlowConfig


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


SHAPES = [
    (96, 3, 3, 32, "additive", "reversal"),
    (40, 1, 2, 7, "additive", "reversal"),
    (48, 2, 4, 17, "additive", "random"),
    (48, 2, 2, 8, "additive", "lu"),
    (96, 2, 3, 9, "affine", "reversal"),
    (32, 4, 1, 5, "affine", "random"),
]


def trained(dim: int, levels: int, depth: int, width: int, coupling: str, permutation: str) -> tuple[Stage, Flow]:
    """A flow whose coupling nets matter, as a stage and as the float64 module."""
    rng = np.random.default_rng(dim + width)
    x = (rng.standard_normal((512, dim)) * rng.uniform(0.2, 2, dim) + 3 * rng.standard_normal(dim)).astype(np.float32)
    settings = {"levels": levels, "depth": depth, "width": width, "coupling": coupling, "permutation": permutation}
    stage = trained_like(x, 3, **settings)
    module = Flow(FlowConfig(dim, **settings))
    module.load_state_dict({name: torch.from_numpy(array) for name, array in stage.params.items()}, strict=True)
    return stage, module


def peers_of(stages: tuple[Stage, ...], dim: int) -> dict:
    plans = fold(stages, dim)
    built = {
        "port": peers_port.port(stages, "cpu"),
        "lean": peers_flow.lean(stages, "cpu"),
        "folded": folded(plans, "cpu"),
        "folded_state": folded_state(plans, "cpu"),
    }
    return {name: function for name, function in built.items() if function is not None}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_peers_compute_the_training_flow(shape):
    stage, module = trained(*shape)
    dim, coupling, permutation = shape[0], shape[4], shape[5]
    peers = peers_of((stage,), dim)
    assert ("port" in peers) == ((coupling, permutation) == ("additive", "reversal"))
    assert ("folded_state" in peers) == (coupling == "additive" and permutation != "lu")
    for batch in (0, 1, 3, 17):
        x = torch.randn(batch, dim, generator=torch.Generator().manual_seed(batch)) * 2 + 1
        with torch.inference_mode():
            unfused = module.float()(x)[0].double()
            exact = module.double()(x.double())[0]
            allowed = 2 * float((unfused - exact).abs().sum()) / max(1, exact.numel()) + 2e-6
            for name, peer in peers.items():
                z = peer(x.clone())
                assert z.shape == exact.shape, name
                assert z.dtype == torch.float32, name
                assert bool(torch.isfinite(z).all()), name
                assert float((z - exact).abs().sum()) / max(1, exact.numel()) <= allowed, name


def test_peers_take_chains():
    rng = np.random.default_rng(1)
    stage, _ = trained(32, 2, 2, 8, "additive", "reversal")
    matrix = np.linalg.qr(rng.standard_normal((50, 32)))[0]
    whiten = Stage("whiten", {}, {"mean": rng.standard_normal(50).astype("f"), "matrix": matrix.astype("f")})
    scale = Stage("standardize", {}, {"mean": np.ones(32, "f"), "deviation": rng.uniform(1, 2, 32).astype("f")})
    x = torch.from_numpy(rng.standard_normal((9, 50)).astype("f"))
    for stages in ((whiten, stage), (whiten, scale), (whiten, stage, scale)):
        exact = peers_flow.unfused(stages, "cpu", torch.float64)(x)
        peers = peers_of(stages, 50)
        assert "port" not in peers
        for name, peer in peers.items():
            assert float((peer(x) - exact).norm() / exact.norm()) <= 2e-6, name


def test_the_port_computes_the_loss_it_is_charged_for():
    stage, module = trained(96, 3, 3, 32, "additive", "reversal")
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(0))
    loss = peers_port.Port(stage, "cpu").with_loss(x)[1]
    with torch.no_grad():
        assert float(loss) == pytest.approx(float(module.bits_per_dimension(x)), rel=1e-4)


def test_operations_are_counted_as_dispatched():
    subject = synthetic(3, 3, 32, "additive", 4, dim=96)
    x = torch.from_numpy(subject.x)
    counts = {
        name: peers_flow.count_operations(peer, x)
        for name, peer in (
            peers_of(subject.stages, 96) | {"equations": peers_flow.unfused(subject.stages, "cpu", torch.float32)}
        ).items()
    }
    assert counts["lean"] == (82, 0)
    assert counts["folded_state"] == (48, 0)
    assert counts["port"][1] == 36  # three flags a step and three argument checks for each of three priors
    assert counts["port"][0] > 300
    assert counts["folded"][0] < counts["lean"][0] < counts["equations"][0] < counts["port"][0]


@pytest.mark.parametrize(("coupling", "levels"), [("additive", 3), ("additive", 2), ("affine", 2)])
def test_counted_weights_are_the_plans_nonzero_blocks(coupling, levels):
    subject = synthetic(levels, 3, 32, coupling, 2, dim=768)
    plan = subject.plans[0]
    arrays = [plan.U, plan.B, plan.V, plan.S, plan.s] + [a for a in (plan.G, plan.R) if a is not None]
    assert weights(plan) == sum(np.count_nonzero(array) for array in arrays)
    if (coupling, levels) == ("additive", 3):
        assert subject.flop() == pytest.approx(0.307e6, rel=0.02)
        assert subject.weight_bytes() == pytest.approx(0.61e6, rel=0.04)
    assert subject.traffic(10) == subject.weight_bytes() + 10 * 2 * 768 * 4


def test_a_wrong_result_is_an_error_not_a_row():
    exact = np.random.default_rng(0).standard_normal((4, 8))
    unfused = Errors(1e-7, 1e-7)
    right = exact.astype(np.float32)
    assert check("right", right, exact, unfused).relative <= 1e-7
    wrong, missing = right.copy(), right.copy()
    wrong[2, 3] += 1e-3
    missing[0, 0] = np.nan
    for z in (wrong, missing, right[:, :7]):
        with pytest.raises(FastflowError, match="bench: broken"):
            check("broken", z, exact, unfused)
    found = check("ill conditioned", wrong, exact, Errors(1e-3, 1e-3))
    assert found.max_abs == pytest.approx(1e-3, rel=1e-3)
    assert found.relative <= 4e-3


def test_rows_repeat_and_pieces_cover_the_tail():
    subject = synthetic(1, 1, 4, "additive", 5, dim=8)
    assert np.array_equal(subject.rows(3), subject.x[:3])
    assert np.array_equal(subject.rows(12), np.concatenate([subject.x, subject.x, subject.x[:2]]))
    x, out = torch.arange(22.0).view(11, 2), torch.full((11, 2), -1.0)
    assert torch.equal(candidates_flow.in_pieces(lambda part: part * 2, x, out, 4), x * 2)
    exact = np.random.default_rng(2).standard_normal((5, 3))
    candidate, scale = Candidate("last", "float32", "torch", lambda x, out: lambda: x), Errors(1e-7, 1e-7)
    z = exact[np.arange(12) % 5].astype(np.float32)
    assert checked(candidate, z, exact, scale).max_abs <= 1e-6
    z[11, 2] += 1
    with pytest.raises(FastflowError, match="last"):
        checked(candidate, z, exact, scale)


def row(name: str, batch: int, ms: float, threads: int = 1, subject: str = "s") -> dict:
    return {
        "suite": "flow", "subject": subject, "name": name, "batch": batch, "threads": threads, "median_ms": ms,
        "times_floor": ms * 100,
    }  # fmt: skip


def test_ratios_put_each_bound_to_each_form():
    rows = [
        *(row("fastflow", 1, 0.01), row("torch-lean-eager", 1, 0.39), row("torch-ukp-eager", 1, 4.0)),
        *(
            row("torch-folded-eager", 1, 0.2),
            row("torch-folded-state-eager", 1, 0.05),
            row("torch-lean-compile", 1, 0.04),
        ),
        *(row("fastflow", 1024, 0.03), row("torch-lean-eager", 1024, 0.15), row("fastflow", 1, 0.02, threads=2)),
        row("fastflow", 1, 99.0, subject="another"),
    ]
    entries = {
        (r["name"].partition(": fastflow ")[2], r["name"][:9], r["threads"]): r for r in flow_ratios(rows, "cpu")
    }
    lean = entries["against unfused PyTorch eager, lean (torch-lean-eager)", "flow B=1:", 1]
    assert (lean["value"], lean["must"], lean["reached"]) == (pytest.approx(39), 40, False)
    by_peer = {
        name[name.index("(") + 1 : -1]: r for (name, b, t), r in entries.items() if "(" in name and b == "flow B=1:"
    }
    assert by_peer["torch-ukp-eager"]["reached"] is True
    assert by_peer["torch-folded-eager"]["reached"] is True
    assert by_peer["torch-folded-state-eager"]["value"] == pytest.approx(5)
    assert by_peer["torch-lean-compile"]["must"] is None  # the fastest of all, for information
    assert by_peer["torch-lean-compile"]["value"] == pytest.approx(4)
    times = [r for r in flow_ratios(rows, "cpu") if r["unit"] == "us"]
    assert [(r["threads"], r["value"], r["reached"]) for r in times] == [
        (1, pytest.approx(10), True),
        (2, pytest.approx(20), False),
    ]
    floor = [r for r in flow_ratios(rows, "cpu") if r["unit"] == "x floor"]
    assert [(r["value"], r["reached"]) for r in floor] == [(pytest.approx(3), False)]
    assert flow_ratios([row("torch-lean-eager", 1, 1.0)], "cpu") == []
    assert any(r["aim"] == 40 for r in flow_ratios(rows, "cuda"))


def test_the_slowest_are_left_out_by_name_until_the_rest_fits():
    one = flow_limits.Pass(synthetic(1, 1, 4, "additive", 2, dim=8), 2, (1,), frozenset(), QUICK)
    candidates = [
        Candidate(name, "float32", "torch", lambda x, out: lambda: x) for name in ("quick", "slow", "slower", "new")
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


TINY = Sizes(
    quick=True,
    flow=FlowSizes(
        batches=(1, 3), affine=(1, 3), whole=32, dim=64, model_rows=8,
        effort=Effort(budget_s=0, min_runs=2, sample_s=1e-5, pause_s=0),
    ),
)  # fmt: skip
LIMITS = Ceilings(1, "", 100.0, 50.0, {"L2": 200.0, "L3": 100.0, "memory": 10.0}, {"L2": 1e6, "L3": 1e7})


def test_no_comparison_is_begun_after_the_end(hasty):
    late = replace(TINY, flow=replace(TINY.flow, seconds=-1))
    results = flow.run_flow(None, ["lean"], late, "cpu", 1, lambda message: None)
    assert results.rows == []
    assert results.ratios == []
    assert [(entry["batch"], entry["reason"]) for entry in results.skipped] == [
        (batch, "the suite has used up its time") for batch in (1, 3)
    ]


def test_floor_and_levels():
    assert [LIMITS.level(size) for size in (1e6, 2e6, 2e7)] == ["L2", "L3", "memory"]
    assert LIMITS.floor_ms(1e9, 1e6, 1e5) == pytest.approx(10.0)  # arithmetic
    assert LIMITS.floor_ms(1e3, 1e8, 1e8) == pytest.approx(10.0)  # memory


@pytest.mark.parametrize("probe", [Probe, TorchProbe])
def test_probes_measure_something_plausible(probe):
    made = probe()
    assert 0.5 < made.fma_gflops(1, 0.01) < 2000
    for rate in (made.read_gbs(1, 0.25, 0.01), made.copy_gbs(1, 0.5, 0.01)):
        assert 0.1 < rate < 5000


def test_without_a_compiler_pytorch_stands_in_and_the_source_says_so(monkeypatch):
    monkeypatch.setattr("fastflow.bench.measure.probe.shutil.which", lambda name: None)
    monkeypatch.setattr("fastflow.bench.measure.machine.caches", lambda: {"L2": 256})
    found = ceilings([1], 0.005)[1]
    assert "no C compiler" in found.source
    assert set(found.gbs) == {"L2", "memory"}


def test_the_machine_is_described_without_names_or_paths():
    machine = describe()
    assert machine["processors_usable"] >= 1
    assert machine["versions"]["torch"] == torch.__version__
    assert str(Path.home()) not in json.dumps(machine)
    assert not any("host" in key or "node" in key for key in machine)


def test_what_others_use_is_what_we_do_not(monkeypatch):
    stat = ["cpu  100 10 20 900 5 1 1 3 0 0", "cpu  250 10 20 950 5 1 1 3 0 0"]  # hundredths of a second
    times = [(0.5, 0.0, 0.0, 0.0, 100.0), (0.6, 0.2, 0.1, 0.1, 102.0)]
    monkeypatch.setattr("fastflow.bench.measure.machine._text", lambda path: stat.pop(0))
    monkeypatch.setattr("fastflow.bench.measure.machine.os.times", lambda: os.times_result(times.pop(0)))
    monkeypatch.setattr("fastflow.bench.measure.machine.os.sysconf", lambda name: 100)
    assert Neighbours().processors() == pytest.approx((1.5 - 0.5) / 2)
    monkeypatch.undo()
    monkeypatch.setattr("fastflow.bench.measure.machine._text", lambda path: "")
    assert Neighbours().processors() is None


WORDS = ("must", "aim", "target", "REACHED", "reached", "judged")


def test_no_target_is_judged_on_a_busy_machine_and_none_is_printed(hasty, monkeypatch, capsys):
    for others, reached in ((0.0, {True, False}), (usable_threads() / 2, {None})):
        monkeypatch.setattr(Neighbours, "processors", lambda self, others=others: others)
        done = cli.run(against=["lean", "folded"], device="cpu", threads=1, sizes=TINY)
        judged = {ratio["reached"] for ratio in done["ratios"] if (ratio["must"] or ratio["aim"]) is not None}
        assert judged
        assert judged <= reached
        shown = capsys.readouterr().out
        assert "In short; x: the peer's time over fastflow's" in shown
        assert not [word for word in WORDS if word in shown]
        assert all(f"{ratio['value']:.1f} {ratio['unit']}" in shown for ratio in done["ratios"])
        assert ("not judged" in report.table(done, targets=True)) == (reached == {None})


def test_targets_are_printed_from_a_kept_file(capsys):
    kept = ROOT / "bench" / "results" / "end-to-end-cpu"
    report.main([f"{kept}.json"])
    shown = capsys.readouterr().out
    assert shown == kept.with_suffix(".txt").read_text(encoding="utf-8")
    assert "(must >= 2: NOT REACHED)" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "usage: python -m fastflow.bench.report.table FILE.json"),
        (["absent.json"], "absent.json cannot be read as JSON"),
        ([__file__], "cannot be read as JSON"),
    ],
)
def test_a_file_that_is_no_run_is_one_sentence(arguments, said):
    with pytest.raises(SystemExit, match=said):
        report.main(arguments)


def test_sentences_differ():
    made = sentences(3072)
    assert len(set(made)) == 3072
    assert all(a != b for a, b in pairwise(made))


@pytest.fixture
def hasty(monkeypatch) -> None:
    """The machine's ceilings are measured in tests of their own."""
    pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")
    monkeypatch.setattr(flow, "ceilings", lambda counts, seconds: {n: replace(LIMITS, threads=n) for n in counts})


ROW_KEYS = {
    *("suite", "name", "backend", "dtype", "batch", "tokens", "median_ms", "p20_ms", "p80_ms", "runs", "max_abs_err"),
    *("subject", "threads", "gflops", "gbs", "floor_ms", "times_floor", "err_against_unfused", "relative_err", "note"),
}


def test_a_whole_run_writes_json_table_and_plot(hasty, tmp_path, capsys):
    data, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    against = ["ukp", "lean", "torch-folded-state-eager"]
    cli.run(against=against, json_path=data, plot_path=picture, device="cpu", threads=1, sizes=TINY)
    written = json.loads(data.read_text())
    names = {"fastflow", "torch-ukp-eager", "torch-lean-eager", "torch-folded-state-eager"}
    assert {(r["name"], r["batch"]) for r in written["rows"]} == {(name, batch) for name in names for batch in (1, 3)}
    for r in written["rows"]:
        assert set(r) >= ROW_KEYS
        assert (r["suite"], r["dtype"], r["tokens"], r["threads"]) == ("flow", "float32", None, 1)
        assert 0 < r["p20_ms"] <= r["median_ms"] <= r["p80_ms"]
        assert 0 <= r["max_abs_err"] < 1e-3
    assert written["machine"]["ceilings"][0]["threads"] == 1
    assert all(
        set(ratio) == {"name", "threads", "value", "unit", "must", "aim", "reached"} for ratio in written["ratios"]
    )
    assert "torch-lean-eager" in " ".join(ratio["name"] for ratio in written["ratios"])
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.png"}
    shown = capsys.readouterr()
    assert all(name in shown.out for name in names)
    assert "bench: " in shown.err


def test_a_long_run_forces_instruction_sets_and_cuts_large_batches(hasty, monkeypatch):
    from fastflow.kernels import isa as instructions

    monkeypatch.delenv("FASTFLOW_ISA", raising=False)
    long = replace(TINY, quick=False, flow=replace(TINY.flow, batches=(1, 9, 40)))
    results = flow.run_flow(None, ["folded"], long, "cpu", 2, lambda message: None)
    first = [r for r in results.rows if r["threads"] == 2 and r["subject"] == results.rows[0]["subject"]]
    ours = {r["name"]: r["backend"] for r in first if r["name"].startswith("fastflow")}
    best, *others = instructions.usable_isas()
    assert ours == {"fastflow": f"cpu {best}", **{f"fastflow-{isa}": f"cpu {isa}" for isa in others}}
    assert {r["batch"] for r in first} == {1, 9, 40}
    assert {r["note"] is None for r in first if r["batch"] == 40 and r["backend"] == "torch"} == {False}
    assert {r["note"] for r in first if r["batch"] != 40} == {None}
    assert {r["threads"] for r in results.rows} == {1, 2}
    assert len({r["subject"] for r in results.rows}) == 2  # the affine flow comes last


def test_a_model_is_timed_on_its_own_embeddings(hasty, model):
    results = flow.run_flow(str(model), ["torch-eager"], TINY, "cpu", 1, lambda message: None)
    assert "made-up sentences" in results.subjects[0]["inputs"]
    assert {r["name"] for r in results.rows} == {"fastflow", "torch-eager"}


def test_a_candidate_that_disagrees_stops_the_run(hasty, monkeypatch):
    honest = flow.torch_peers

    def with_liar(workload: Workload, device: str, wanted: set[str]) -> tuple:
        peers, skipped = honest(workload, device, wanted)
        liar = Candidate("liar", "float32", "torch", lambda x, out: lambda: torch.zeros_like(x))
        return [*peers, liar], skipped

    monkeypatch.setattr(flow, "torch_peers", with_liar)
    with pytest.raises(FastflowError, match="liar differs from float64"):
        flow.run_flow(None, ["lean"], TINY, "cpu", 1, lambda message: None)


def test_what_needs_a_compiler_may_be_left_out_and_nothing_else(hasty, monkeypatch):
    honest = flow.torch_peers

    def with_failure(optional: bool) -> None:
        def call() -> None:
            raise RuntimeError("no compiler\nand a long story")

        failing = Candidate("failing", "float32", "torch", lambda x, out: call, optional=optional)
        monkeypatch.setattr(flow, "torch_peers", lambda *args: ([*honest(*args)[0], failing], []))

    with_failure(optional=True)
    results = flow.run_flow(None, ["lean"], TINY, "cpu", 1, lambda message: None)
    assert {r["name"] for r in results.rows} == {"fastflow", "torch-lean-eager"}
    assert [(entry["name"], entry["batch"]) for entry in results.skipped] == [("failing", 1)]
    assert results.skipped[0]["reason"] == "its first call failed: no compiler"
    with_failure(optional=False)
    with pytest.raises(RuntimeError, match="no compiler"):
        flow.run_flow(None, ["lean"], TINY, "cpu", 1, lambda message: None)


def test_wrong_usage(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="no bench suite 'speed'; suites: flow, encoder, end-to-end, startup"):
        cli.run(suites=["flow", "speed"])
    with pytest.raises(UsageError, match=r"unknown peer 'keras'.*torch-lean-eager"):
        cli.run(against=["keras"], device="cpu")
    with pytest.raises(UsageError, match="its folder does not exist"):
        cli.run(json_path=tmp_path / "absent" / "bench.json")
    with pytest.raises(UsageError, match="unknown device"):
        cli.run(device="tpu")
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    with pytest.raises(FastflowError, match=re.escape(str(missing_extra("bench", "matplotlib", "--plot")))):
        cli.run(plot_path=tmp_path / "bench.png")


def test_quick_runs_compile_nothing_and_families_pick_their_rows():
    assert not any("compile" in name for name in candidates_flow.chosen(None, "cpu", quick=True))
    assert candidates_flow.chosen(["lean"], "cpu", quick=False) == {"torch-lean-eager", "torch-lean-compile"}
    assert "torch-lean-graph" in candidates_flow.chosen(["torch-lean"], "cuda", quick=True)
    assert candidates_flow.chosen(["torch"], "cpu", quick=False) == {"torch-eager"}


def test_durations_and_json_numbers_are_readable():
    assert [report.duration(ms) for ms in (0.00512, 0.0123, 0.9996, 12.34, 1250.0)] == [
        "5.12 us", "12.3 us", "1000 us", "12.3 ms", "1.25 s",
    ]  # fmt: skip
    assert files.number({"a": [1.23456789, 2, None], "b": True}) == {"a": [1.23457, 2, None], "b": True}


def test_nothing_half_written(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        files.write_json({"value": float("nan")}, tmp_path / "bench.json")
    with pytest.raises(FastflowError, match="cannot be written"):
        files.write_json({"value": 1.0}, tmp_path / "absent" / "bench.json")
    assert list(tmp_path.iterdir()) == []
